"""strace(1) that injects: a tracer of ours, which dies with the agent.

It is slow for the process (each traced call stops it twice) and visible to it (TracerPid), so
it is only used when asked for. When a tracer dies the kernel lets its tracees go on.
"""

from __future__ import annotations

import queue
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Runtime
from nodeagent.backends.pause import wait_for
from nodeagent.backends.pid_watch import PidWatch
from nodeagent.bind.node import Node
from nodeagent.bind.process import descendants, lives
from nodeagent.clock import boottime_ns
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.strace import StraceInject

START_S = 30.0
END_S = 20.0
INJECTED = b"(INJECTED"
KEPT = 5


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backend of this module."""
    return {StraceInject: StraceBackend(runtime)}


@dataclass
class _Tracer:
    """A running strace, and what it has said."""

    process: subprocess.Popen[bytes]
    seen: int = 0
    hits: int = 0
    first_ns: int = 0
    last_ns: int = 0
    said: list[str] = field(default_factory=list)

    def read(self) -> None:
        """Until it ends: counts its lines. On a thread of its own."""
        assert self.process.stderr is not None  # noqa: S101 - it was asked for
        for line in self.process.stderr:
            if INJECTED in line:
                self.hits += 1
                self.last_ns = boottime_ns()
                self.first_ns = self.first_ns or self.last_ns
            elif line.startswith(b"strace:"):
                self.said = [*self.said, line.decode(errors="replace").strip()][-KEPT:]
                continue
            self.seen += 1


class _Spawner:
    """Starts programs from one thread that lives as long as the agent.

    PR_SET_PDEATHSIG fires when the thread that started the child ends (prctl(2)).
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[
            tuple[list[str], queue.SimpleQueue[subprocess.Popen[bytes] | OSError]]
        ] = queue.SimpleQueue()
        self._started = False

    def start(self, argv: list[str]) -> subprocess.Popen[bytes]:
        """Raises OSError."""
        if not self._started:
            threading.Thread(target=self._run, name="strace-spawner", daemon=True).start()
            self._started = True
        answer: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()
        self._asked.put((argv, answer))
        found = answer.get()
        if isinstance(found, OSError):
            raise found
        return found

    def _run(self) -> None:
        while True:
            argv, answer = self._asked.get()
            try:
                answer.put(
                    subprocess.Popen(
                        ["setpriv", "--pdeathsig", "KILL", *argv],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.PIPE,
                        start_new_session=True,
                    )
                )
            except OSError as exc:
                answer.put(exc)


class StraceBackend:
    """One tracer for each step."""

    def __init__(self, runtime: Runtime) -> None:
        self._node = Node()
        self._tracers: dict[str, _Tracer] = {}
        self._spawner = _Spawner()
        self._watch = PidWatch(runtime.on_event, self._node)

    def observe(self, fault_id: str, step: StraceInject, peers: Sequence[Peer]) -> Prior:
        what = f"process {step.scope.pid} cannot be traced"
        if shutil.which("strace") is None or shutil.which("setpriv") is None:
            raise Refused(what, "strace or setpriv is not installed", "apt-get install strace")
        if not lives(self._node, step.scope):
            raise Refused(what, "it has ended, or its pid is another's by now", "plan again")
        for pid in descendants(self._node, step.scope.pid):
            tracer = self._tracer_of(pid)
            if tracer:
                raise Refused(what, f"process {pid} is traced already, by process {tracer}")
        return {}

    def _tracer_of(self, pid: int) -> int:
        try:
            text = (self._node.proc / str(pid) / "status").read_text("utf-8", "replace")
        except (FileNotFoundError, ProcessLookupError):
            return 0
        lines = (line for line in text.splitlines() if line.startswith("TracerPid:"))
        return int(next(lines, "TracerPid: 0").split()[1])

    def status(self, step: StraceInject, prior: Prior, peers: Sequence[Peer]) -> Status:
        """OURS while our tracer lives; it goes with this process."""
        tracer = self._tracers.get(step.key())
        if tracer is None or tracer.process.poll() is not None:
            return Status.PRIOR
        return Status.OURS

    def apply(
        self, fault_id: str, step: StraceInject, prior: Prior, peers: Sequence[Peer]
    ) -> Outcome:
        if self.status(step, prior, peers) is Status.OURS:
            return {}
        what = f"process {step.scope.pid} is not traced"
        pids = descendants(self._node, step.scope.pid)
        try:
            tracer = _Tracer(self._spawner.start([*step.argv(), *(f"-p{pid}" for pid in pids)]))
        except OSError as exc:
            raise BackendError(what, f"{exc.strerror}") from exc
        self._tracers[step.key()] = tracer
        threading.Thread(target=tracer.read, name="strace", daemon=True).start()
        ours = tracer.process
        done = wait_for(
            lambda: self._tracer_of(step.scope.pid) == ours.pid or ours.poll() is not None, START_S
        )
        if not done or ours.poll() is not None:
            self.undo(fault_id, step, prior, peers)
            raise BackendError(what, "; ".join(tracer.said) or "strace does not attach")
        self._watch.add(fault_id, step.scope, lambda: ours.poll() is None)
        return {"strace": ours.pid}

    def undo(self, fault_id: str, step: StraceInject, prior: Prior, peers: Sequence[Peer]) -> None:
        """SIGTERM lets it detach; if it does not, the kernel does when it is killed."""
        self._watch.remove(fault_id)
        tracer = self._tracers.pop(step.key(), None)
        if tracer is None:
            return
        tracer.process.send_signal(signal.SIGTERM)
        try:
            tracer.process.wait(END_S)
        except subprocess.TimeoutExpired:
            tracer.process.kill()
            tracer.process.wait()
        if not wait_for(lambda: self._tracer_of(step.scope.pid) != tracer.process.pid, END_S):
            raise BackendError(f"process {step.scope.pid} is still traced", "strace has ended")

    def measure(self, fault_id: str, step: StraceInject, prior: Prior) -> dict[str, Any]:
        """By strace's own lines; they may lag behind the calls."""
        tracer = self._tracers.get(step.key())
        if tracer is None:
            return {}
        return {
            "stats": {
                "seen": tracer.seen,
                "hits": tracer.hits,
                "spared": 0,
                "lost": 0,
                "first_ns": tracer.first_ns,
                "last_ns": tracer.last_ns,
            },
            "missed": 0,
            "calls": {},
            "processes": [],
            "more_processes": 0,
            "uncovered": [f"the process can see that process {tracer.process.pid} traces it"],
        }
