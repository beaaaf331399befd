"""stress-ng in a cgroup of our own below the target's: started by a shell that enters it first.

Everything that a revert needs is in the step: the cgroup's path, and where scratch files are.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Residue, Runtime
from nodeagent.backends.cgroup import keyed, opened, read
from nodeagent.backends.pause import wait_for
from nodeagent.bind.cgroup import CGROUPS, folder_of
from nodeagent.clock import boottime_ns
from nodeagent.encode import stress_ng
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.process import StressRun

MARK = "faultctl-stress-"
START_S = 60.0
"""How long the workers may take to be there: memory has to be touched."""
ALIVE_S = 0.3
"""How long they must have been at work before that counts."""
END_S = 20.0
LEAST = 1 << 20
"""Bytes that a memory worker holds at least."""
MOST_OWN = 64 << 20
"""More is not stress-ng's own share: the target itself has grown."""
SAID = 2000
ENTER = 'echo 0 > "$1/cgroup.procs" && echo "$2" > /proc/self/oom_score_adj && shift 2 && exec "$@"'
"""0 is the writing process itself (cgroup_procs_write_start, kernel/cgroup/cgroup.c)."""


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backend of this module."""
    return {StressRun: StressBackend(runtime.state_dir)}


def residue(node_id: str, claimed: Sequence[StepBase]) -> list[Residue]:
    """Cgroups of stressors that no fault claims."""
    known = {folder_of(s.scope) / s.child for s in claimed if isinstance(s, StressRun)}
    found = []
    for folder, names, _ in os.walk(CGROUPS):
        for name in names:
            path = Path(folder, name)
            if name.startswith(MARK) and path not in known:
                detail = f"{len(_pids(path))} processes"
                found.append(Residue(f"cgroup {path}", detail, lambda p=path: remove(p)))  # type: ignore[misc]
    return found


@dataclass
class _Run:
    """A stress-ng that this process has started."""

    process: subprocess.Popen[bytes]
    output: int
    started_ns: int
    usage_usec: int

    def said(self) -> str:
        text = os.pread(self.output, SAID, 0).decode(errors="replace")
        return " ".join(text.split())


class StressBackend:
    """One run for each step."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._runs: dict[str, _Run] = {}

    def _scratch(self, step: StressRun) -> Path:
        return Path(step.folder or self._state_dir / "scratch") / step.child

    def observe(self, fault_id: str, step: StressRun, peers: Sequence[Peer]) -> Prior:
        what = f"no load can run in {step.scope.path}"
        with opened(step.scope) as folder:
            if folder is None:
                raise Refused(what, "the cgroup is gone")
            if "cgroup.kill" not in os.listdir(folder):
                raise Refused(what, "it has no cgroup.kill (Linux 5.14): it could not be ended")
        if step.folder and not Path(step.folder).is_dir():
            raise Refused(what, f"{step.folder} is no directory", "name one that exists: --folder")
        if self._scratch(step).exists() or (folder_of(step.scope) / step.child).exists():
            raise Refused(what, f"{step.child} is there already", "look: faultctl doctor")
        self._refuse_too_much(what, step)
        return {"memory": _number(read(step.scope, "memory.current")), "oom": _ooms(step)}

    @staticmethod
    def _refuse_too_much(what: str, step: StressRun) -> None:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:") and step.memory > int(line.split()[1]) * 1024:
                raise Refused(
                    what,
                    f"it is to take {step.memory} bytes, and the node has {line.split()[1]} kB",
                )

    def status(self, step: StressRun, prior: Prior, peers: Sequence[Peer]) -> Status:
        child = folder_of(step.scope) / step.child
        return Status.OURS if child.exists() or self._scratch(step).exists() else Status.PRIOR

    # --- start ------------------------------------------------------------------

    def apply(self, fault_id: str, step: StressRun, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        if step.key() in self._runs:
            return {}
        with opened(step.scope) as folder:
            if folder is None:
                raise BackendError("the load was not started", f"{step.scope.path} is gone")
            self._make(step)
        run = self._start_smaller(step, prior) if step.memory else self._start(step, step.args, 0)
        run.started_ns, run.usage_usec = boottime_ns(), _usage(step)
        return {"pid": run.process.pid}

    def _start_smaller(self, step: StressRun, prior: Prior) -> _Run:
        """Try it with little memory first: stress-ng's own share is then taken off the real run."""
        self._start(step, stress_ng.with_memory(step.args, LEAST), LEAST)
        now = _number(read(step.scope, "memory.current"))
        own = max(0, min(now - int(prior["memory"]) - LEAST, MOST_OWN))
        self._end(step)
        if step.memory - own < LEAST:
            raise BackendError(
                "the load was not started",
                f"stress-ng itself takes {own} bytes, and {step.memory} are asked for",
            )
        self._make(step)
        smaller = step.memory - own
        return self._start(step, stress_ng.with_memory(step.args, smaller), smaller)

    def _start(self, step: StressRun, args: tuple[str, ...], memory: int) -> _Run:
        run = self._spawn(step, args)
        self._runs[step.key()] = run
        self._await(step, run, memory)
        return run

    def _make(self, step: StressRun) -> None:
        child, scratch = folder_of(step.scope) / step.child, self._scratch(step)
        try:
            scratch.mkdir(mode=0o700, parents=not step.folder, exist_ok=True)
            child.mkdir(exist_ok=True)
        except OSError as exc:
            why = f"{exc.strerror}: {exc.filename}"
            if exc.errno == errno.EAGAIN:
                why = "cgroup.max.descendants or cgroup.max.depth above it allow no further cgroup"
            raise BackendError(f"no load can run in {step.scope.path}", why) from exc

    def _spawn(self, step: StressRun, args: tuple[str, ...]) -> _Run:
        child = folder_of(step.scope) / step.child
        argv = ["stress-ng", *args, "--temp-path", str(self._scratch(step))]
        output = os.memfd_create("stress-ng")
        adj = str(step.oom_score_adj)
        process = subprocess.Popen(
            ["/bin/sh", "-c", ENTER, "sh", str(child), adj, *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=self._scratch(step),
            start_new_session=True,
        )
        return _Run(process, output, boottime_ns(), 0)

    def _await(self, step: StressRun, run: _Run, memory: int) -> None:
        """Wait until all workers are there and at work. Raises BackendError."""

        def ready() -> bool:
            self._check(run)
            alive = len(_pids(folder_of(step.scope) / step.child)) > step.workers
            return alive and _usage(step) > 0 and self._held(step) >= memory * 95 // 100

        if not wait_for(ready, START_S):
            raise BackendError(
                "the load was not started",
                f"after {START_S:g} s {len(_pids(folder_of(step.scope) / step.child)) - 1} of "
                f"{step.workers} workers were there, with {self._held(step)} bytes: {run.said()}",
            )
        time.sleep(ALIVE_S)
        self._check(run)

    @staticmethod
    def _check(run: _Run) -> None:
        code = run.process.poll()
        if code is not None:
            raise BackendError(
                "the load was not started", f"stress-ng ended at once with {code}: {run.said()}"
            )

    @staticmethod
    def _held(step: StressRun) -> int:
        """Bytes that its processes hold: Pss, which counts what they share once."""
        total = 0
        for pid in _pids(folder_of(step.scope) / step.child):
            with suppress(OSError):
                text = Path(f"/proc/{pid}/smaps_rollup").read_text()
                total += next(
                    (int(x.split()[1]) for x in text.splitlines() if x.startswith("Pss:")), 0
                )
        return total * 1024

    # --- end --------------------------------------------------------------------

    def undo(self, fault_id: str, step: StressRun, prior: Prior, peers: Sequence[Peer]) -> None:
        self._end(step)
        scratch = self._scratch(step)
        with suppress(FileNotFoundError):
            shutil.rmtree(scratch)
        if not step.folder:
            with suppress(OSError):  # others are still in it
                scratch.parent.rmdir()

    def _end(self, step: StressRun) -> None:
        remove(folder_of(step.scope) / step.child)
        run = self._runs.pop(step.key(), None)
        if run is not None:
            run.process.wait()
            os.close(run.output)

    def measure(self, fault_id: str, step: StressRun, prior: Prior) -> dict[str, Any]:
        run = self._runs.get(step.key())
        child = folder_of(step.scope) / step.child
        if run is None or not child.exists():
            return {}
        used = _usage(step) - run.usage_usec
        code = run.process.poll()
        return {
            "workers": max(0, len(_pids(child)) - 1),
            "usage_usec": used,
            "cpus": round(used * 1000 / max(1, boottime_ns() - run.started_ns), 4),
            "held": self._held(step),
            "memory_grown": _number(read(step.scope, "memory.current")) - prior["memory"],
            "oom_kill": _ooms(step) - prior["oom"],
            "ended": code,
            "said": "" if code is None else run.said(),
        }


def remove(child: Path) -> None:
    """Kill all that is in a cgroup and below it, and remove it. Raises BackendError."""
    if not wait_for(lambda: _removed(child), END_S):
        raise BackendError(
            f"{child} was not removed",
            f"after {END_S:g} s processes {list(_pids(child))[:8]} are still there (state D?)",
        )


def _removed(child: Path) -> bool:
    """One attempt; killed again each time, since a process may have entered in between."""
    try:
        (child / "cgroup.kill").write_text("1", encoding="ascii")
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


def _pids(child: Path) -> tuple[int, ...]:
    try:
        return tuple(map(int, (child / "cgroup.procs").read_text().split()))
    except OSError:
        return ()


def _usage(step: StressRun) -> int:
    try:
        text = (folder_of(step.scope) / step.child / "cpu.stat").read_text()
    except OSError:
        return 0
    return keyed(text, ("usage_usec",)).get("usage_usec", 0)


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _ooms(step: StressRun) -> int:
    return keyed(read(step.scope, "memory.events") or "", ("oom_kill",)).get("oom_kill", 0)
