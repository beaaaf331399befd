"""stress-ng in a cgroup of our own below the target's: started by a shell that enters it first.

Everything that a revert needs is in the step: the cgroup's path, and where scratch files are.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Residue, Runtime
from nodeagent.backends.pause import wait_for
from nodeagent.backends.stress_home import MARK, Home, held, pids_of, remove
from nodeagent.bind.cgroup import CGROUPS
from nodeagent.clock import boottime_ns
from nodeagent.encode import psi, stress_ng
from nodeagent.model.errors import BackendError, FaultError, Refused
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.process import StressRun

START_S = 60.0
"""How long the workers may take to be there: memory has to be touched."""
ALIVE_S = 0.3
"""How long they must have been at work before that counts."""
LEAST = 1 << 20
"""Bytes that a memory worker holds at least."""
MOST_OWN = 64 << 20
"""More is not stress-ng's own share: the target itself has grown."""
KEEP_S = 1.0
MOST_RESTARTS = 100
SAID = 2000
ENTER = (
    'n=$1; shift; while [ "$n" -gt 0 ]; do echo 0 > "$1/cgroup.procs" || exit 1; shift; '
    'n=$((n - 1)); done; echo "$1" > /proc/self/oom_score_adj && shift && exec "$@"'
)
"""0 is the writing process itself (cgroup_procs_write_start, kernel/cgroup/cgroup.c)."""


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backend of this module."""
    return {StressRun: StressBackend(runtime.state_dir)}


def residue(node_id: str, claimed: Sequence[StepBase]) -> list[Residue]:
    """Cgroups of stressors that no fault claims."""
    known = {child for s in claimed if isinstance(s, StressRun) for child in Home(s).children}
    found = []
    for folder, names, _ in os.walk(CGROUPS):
        for name in names:
            path = Path(folder, name)
            if name.startswith(MARK) and path not in known:
                detail = f"{len(pids_of(path))} processes"
                found.append(Residue(f"cgroup {path}", detail, lambda p=path: remove(p)))  # type: ignore[misc]
    return found


@dataclass
class _Run:
    """A stress-ng that this process has started."""

    process: subprocess.Popen[bytes]
    output: int
    started_ns: int
    usage_usec: int
    carried: dict[str, int] = field(default_factory=dict)
    """Counters of runs before it whose cgroup is gone."""

    def said(self) -> str:
        text = os.pread(self.output, SAID, 0).decode(errors="replace")
        return " ".join(text.split())


class _Keeper:
    """Starts a run again of which a worker has died, by a thread that ends with the agent."""

    def __init__(self, is_whole: Callable[[], bool], again: Callable[[], None]) -> None:
        self._is_whole, self._again = is_whole, again
        self._end = threading.Event()
        self.restarts = 0
        self.gave_up = ""
        self._thread = threading.Thread(target=self._run, name="stress-keeper", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(KEEP_S) and self.restarts < MOST_RESTARTS:
            if self._is_whole():
                continue
            try:
                self._again()
                self.restarts += 1
            except (FaultError, OSError) as exc:
                self.gave_up = str(exc)
                return

    def stop(self, hurry: Callable[[], None]) -> None:
        """Nothing is started after this returns. hurry: ends what it may be waiting for."""
        self._end.set()
        hurry()
        self._thread.join()


class StressBackend:
    """One run for each step."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._runs: dict[str, _Run] = {}
        self._keepers: dict[str, _Keeper] = {}

    def _scratch(self, step: StressRun) -> Path:
        return Path(step.folder or self._state_dir / "scratch") / step.child

    def observe(self, fault_id: str, step: StressRun, peers: Sequence[Peer]) -> Prior:
        what, home = f"no load can run in {step.place}", Home(step)
        if not home.parent_is_there():
            raise Refused(what, "the cgroup is gone")
        if not home.can_be_ended():
            raise Refused(what, "it has no cgroup.kill (Linux 5.14): it could not be ended")
        if step.folder and not Path(step.folder).is_dir():
            raise Refused(what, f"{step.folder} is no directory", "name one that exists: --folder")
        if self._scratch(step).exists() or home.exists():
            raise Refused(what, f"{step.child} is there already", "look: faultctl doctor")
        self._refuse_too_much(what, step)
        return {"memory": home.memory(), "counters": home.counters(), "stalls": home.stalls()}

    @staticmethod
    def _refuse_too_much(what: str, step: StressRun) -> None:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:") and step.memory > int(line.split()[1]) * 1024:
                raise Refused(
                    what,
                    f"it is to take {step.memory} bytes, and the node has {line.split()[1]} kB",
                )

    def status(self, step: StressRun, prior: Prior, peers: Sequence[Peer]) -> Status:
        there = Home(step).exists() or self._scratch(step).exists()
        # One that is to be started again comes back, though somebody has cleared it away.
        return Status.OURS if there or step.key() in self._keepers else Status.PRIOR

    # --- start ------------------------------------------------------------------

    def apply(self, fault_id: str, step: StressRun, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        if step.key() in self._runs:
            return {}
        if not Home(step).parent_is_there():
            raise BackendError("the load was not started", f"{step.place} is gone")
        self._make(step)
        memory = self._less(step, prior) if step.memory else 0
        run = self._start(step, memory)
        run.started_ns, run.usage_usec = boottime_ns(), Home(step).usage_usec()
        if step.restart:
            self._keepers[step.key()] = _Keeper(
                lambda: self._is_whole(step), lambda: self._again(step, memory)
            )
        return {"pid": run.process.pid}

    def _less(self, step: StressRun, prior: Prior) -> int:
        """Try it with little memory first: stress-ng's own share is then taken off the real run."""
        self._start(step, LEAST)
        own = max(0, min(Home(step).memory() - int(prior["memory"]) - LEAST, MOST_OWN))
        self._end(step)
        if step.memory - own < LEAST:
            raise BackendError(
                "the load was not started",
                f"stress-ng itself takes {own} bytes, and {step.memory} are asked for",
            )
        self._make(step)
        return step.memory - own

    def _start(self, step: StressRun, memory: int) -> _Run:
        args = stress_ng.with_memory(step.args, memory) if memory else step.args
        run = self._spawn(step, args)
        self._runs[step.key()] = run
        self._await(step, run, memory)
        return run

    def _make(self, step: StressRun) -> None:
        scratch = self._scratch(step)
        try:
            scratch.mkdir(mode=0o700, parents=not step.folder, exist_ok=True)
            Home(step).make()
        except OSError as exc:
            why = f"{exc.strerror}: {exc.filename}"
            if exc.errno == errno.EAGAIN:
                why = "cgroup.max.descendants or cgroup.max.depth above it allow no further cgroup"
            raise BackendError(f"no load can run in {step.place}", why) from exc

    def _spawn(self, step: StressRun, args: tuple[str, ...]) -> _Run:
        children = [str(child) for child in Home(step).children]
        argv = ["stress-ng", *args, "--temp-path", str(self._scratch(step))]
        output = os.memfd_create("stress-ng")
        enter = [str(len(children)), *children, str(step.oom_score_adj)]
        process = subprocess.Popen(
            ["/bin/sh", "-c", ENTER, "sh", *enter, *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=self._scratch(step),
            start_new_session=True,
        )
        return _Run(process, output, boottime_ns(), 0)

    def _await(self, step: StressRun, run: _Run, memory: int) -> None:
        """Wait until all workers are there and at work. Raises BackendError."""
        home = Home(step)

        def ready() -> bool:
            self._check(run)
            at_work = len(home.pids()) > step.workers and home.usage_usec() > 0
            return at_work and held(home) >= memory * 95 // 100

        if not wait_for(ready, START_S):
            raise BackendError(
                "the load was not started",
                f"after {START_S:g} s {len(home.pids()) - 1} of {step.workers} workers were "
                f"there, with {held(home)} bytes: {run.said()}",
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

    # --- restarts -----------------------------------------------------------------

    def _is_whole(self, step: StressRun) -> bool:
        run = self._runs.get(step.key())
        there = len(Home(step).pids()) > step.workers
        return run is not None and run.process.poll() is None and there

    def _again(self, step: StressRun, memory: int) -> None:
        """The same run, in the same cgroup: what it used before is not counted twice."""
        old = self._runs[step.key()]
        home = Home(step)
        used, counted = home.usage_usec() - old.usage_usec, home.counters()
        self._end(step)
        self._make(step)
        now = home.counters()
        carried = {n: old.carried.get(n, 0) + max(0, counted[n] - now[n]) for n in now}
        run = self._start(step, memory)
        run.started_ns, run.usage_usec = old.started_ns, home.usage_usec() - used
        run.carried = carried

    # --- end --------------------------------------------------------------------

    def undo(self, fault_id: str, step: StressRun, prior: Prior, peers: Sequence[Peer]) -> None:
        keeper = self._keepers.pop(step.key(), None)
        if keeper is not None:
            keeper.stop(Home(step).remove)
        self._end(step)
        scratch = self._scratch(step)
        with suppress(FileNotFoundError):
            shutil.rmtree(scratch)
        if not step.folder:
            with suppress(OSError):  # others are still in it
                scratch.parent.rmdir()

    def _end(self, step: StressRun) -> None:
        Home(step).remove()
        run = self._runs.pop(step.key(), None)
        if run is not None:
            run.process.wait()
            os.close(run.output)

    def measure(self, fault_id: str, step: StressRun, prior: Prior) -> dict[str, Any]:
        run, home = self._runs.get(step.key()), Home(step)
        if run is None or not home.exists():
            return {}
        used, now = home.usage_usec() - run.usage_usec, home.counters()
        code, keeper = run.process.poll(), self._keepers.get(step.key())
        before = prior.get("counters", {"oom_kill": prior.get("oom", 0)})
        seconds = (boottime_ns() - run.started_ns) / 1e9
        return {
            "workers": max(0, len(home.pids()) - 1),
            "usage_usec": used,
            "cpus": round(used / 1e6 / max(seconds, 1e-6), 4),
            "held": held(home),
            "memory_grown": home.memory() - prior["memory"],
            **{n: run.carried.get(n, 0) + now[n] - before.get(n, 0) for n in now},
            "stalls": psi.since(home.stalls(), prior.get("stalls", {})),
            "seconds": round(seconds, 3),
            "restarts": keeper.restarts if keeper else 0,
            "ended": code,
            "said": (keeper.gave_up if keeper else "") or ("" if code is None else run.said()),
        }
