"""Cgroups of our own for stressors, in either hierarchy: made, counted, ended."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from nodeagent.backends.cgroup import keyed, opened, stalls
from nodeagent.backends.pause import wait_for
from nodeagent.bind.cgroup import folder_of
from nodeagent.bind.node import read_text
from nodeagent.encode.psi import RESOURCES, Stalls, parse
from nodeagent.model.errors import BackendError
from nodeagent.model.steps.process import StressRun

END_S = 20.0
MARK = "faultctl-stress-"


class Home:
    """The cgroups of one step: one in v2, one for each hierarchy in v1."""

    def __init__(self, step: StressRun) -> None:
        self._step = step
        parents = [str(folder_of(step.scope))] if step.scope else step.folders
        self.parents = tuple(map(Path, parents))
        self.children = tuple(parent / step.child for parent in self.parents)
        self.counted = self.parents if step.scope or step.v1 else self.children
        """Whose counters tell how the target fares: of the node, only ours."""

    def parent_is_there(self) -> bool:
        """Whether it is still the cgroup that was bound."""
        if self._step.scope is None:
            return all((parent / "cgroup.procs").exists() for parent in self.parents)
        with opened(self._step.scope) as folder:
            return folder is not None

    def can_be_ended(self) -> bool:
        """cgroup.kill came with Linux 5.14; in v1 processes are frozen and killed one by one."""
        return self._step.v1 or (self.parents[0] / "cgroup.kill").exists() or not self._step.scope

    def exists(self) -> bool:
        """Whether some cgroup of ours is there."""
        return any(child.exists() for child in self.children)

    def make(self) -> None:
        """Make them with their limits. Raises OSError."""
        for child in self.children:
            child.mkdir(exist_ok=True)
        for name, value in self._step.limits:
            for child in self.children:
                if (child / name).exists():
                    (child / name).write_text(value, encoding="ascii")

    def pids(self) -> tuple[int, ...]:
        """Who is in them, by the first."""
        return pids_of(self.children[0])

    def usage_usec(self) -> int:
        """CPU time of the stressors."""
        for child in self.children:
            if used := read_text(child / "cpu.stat"):
                found = keyed(used, ("usage_usec",))
                if found:
                    return found["usage_usec"]
            if (nanos := read_text(child / "cpuacct.usage").strip()).isdigit():
                return int(nanos) // 1000
        return 0

    def memory(self) -> int:
        """Bytes that the target has, the stressors' in it."""
        return self._first(("memory.current", "memory.usage_in_bytes"))

    def counters(self) -> dict[str, int]:
        """What the kernel has counted for the target's limits until now."""
        found = dict.fromkeys(("oom_kill", "nr_throttled", "throttled_usec"), 0)
        for folder in self.counted:
            found["oom_kill"] += _oom_kills(folder)
            stat = read_text(folder / "cpu.stat")
            found |= keyed(stat, ("nr_throttled", "throttled_usec"))
            if nanos := keyed(stat, ("throttled_time",)).get("throttled_time"):
                found["throttled_usec"] = nanos // 1000
        return found

    def stalls(self) -> Stalls:
        """How long tasks of the target, or of the node, have waited; empty in v1."""
        if self._step.scope is not None:
            return stalls(self._step.scope)
        if self._step.v1:
            return {}
        read = {name: read_text(Path("/proc/pressure") / name) for name in RESOURCES}
        return {name: parse(text) for name, text in read.items() if text}

    def _first(self, names: Sequence[str]) -> int:
        for folder in self.counted:
            for name in names:
                if (text := read_text(folder / name).strip()).isdigit():
                    return int(text)
        return 0

    def remove(self) -> None:
        """Kill all that is in them and below, and remove them. Raises BackendError."""
        for child in self.children:
            remove(child)


def _oom_kills(folder: Path) -> int:
    """v2 counts at every ancestor, v1 only where the victim was (memcg_memory_event)."""
    if events := read_text(folder / "memory.events"):
        return keyed(events, ("oom_kill",)).get("oom_kill", 0)
    return sum(
        keyed(read_text(Path(here, "memory.oom_control")), ("oom_kill",)).get("oom_kill", 0)
        for here, _, files in os.walk(folder)
        if "memory.oom_control" in files
    )


def held(home: Home) -> int:
    """Bytes that the stressors hold: Pss, which counts what they share once."""
    total = 0
    for pid in home.pids():
        with suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += next((int(x.split()[1]) for x in text.splitlines() if x.startswith("Pss:")), 0)
    return total * 1024


def remove(child: Path) -> None:
    """Kill all that is in a cgroup and below it, and remove it. Raises BackendError."""
    if not wait_for(lambda: _removed(child), END_S):
        raise BackendError(
            f"{child} was not removed",
            f"after {END_S:g} s processes {list(pids_of(child))[:8]} are still there (state D?)",
        )


def _removed(child: Path) -> bool:
    """One attempt; killed again each time, since a process may have entered in between."""
    try:
        _kill(child)
        for folder, names, _ in os.walk(child, topdown=False):
            for name in names:
                os.rmdir(os.path.join(folder, name))
        os.rmdir(child)
    except FileNotFoundError:
        return True
    except OSError as exc:
        if exc.errno == errno.EBUSY:
            return False
        if exc.errno == errno.ENODEV:
            return True
        raise
    return True


def _kill(child: Path) -> None:
    if (child / "cgroup.kill").exists():
        (child / "cgroup.kill").write_text("1", encoding="ascii")
        return
    for folder, _, _ in os.walk(child):
        # v1: whoever forks faster than we look stands still in the freezer's hierarchy.
        state = Path(folder, "freezer.state")
        if state.exists():
            state.write_text("FROZEN", encoding="ascii")
        for pid in pids_of(Path(folder)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if state.exists():
            state.write_text("THAWED", encoding="ascii")
    if not child.exists():
        raise FileNotFoundError(errno.ENOENT, "the cgroup is gone", str(child))


def pids_of(child: Path) -> tuple[int, ...]:
    """Processes in a cgroup itself; none when it is gone."""
    return tuple(map(int, read_text(child / "cgroup.procs").split()))
