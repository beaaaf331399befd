"""Processes that stand still: the cgroup freezer, SIGSTOP; always or in turns."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Runtime
from nodeagent.backends.cgroup import GONE, opened, read, write_at
from nodeagent.backends.pulse import Pulse
from nodeagent.bind.node import Node
from nodeagent.bind.process import start_ticks, stat_fields
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.process import CgroupScope, PidScope
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.cgroup import CgroupFreeze
from nodeagent.model.steps.process import ProcessStop

STOP_S = 10.0
"""How long a process may take to come to a halt: one in a disk wait stops when that ends."""
POLL_S = 0.005


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backends of this module."""
    return {CgroupFreeze: FreezeBackend(), ProcessStop: StopBackend()}


def wait_for(what: Callable[[], bool], seconds: float) -> bool:
    """Whether it comes true in time."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True


class _Pausing:
    """What both ways share: the turns. Subclasses know how to stop, go on and look."""

    def __init__(self) -> None:
        self._pulses: dict[str, Pulse] = {}

    def _start(self, key: str, step: Any, on: Callable[[], bool], off: Callable[[], bool]) -> None:
        known = self._pulses.get(key)  # of an earlier fault, when it has ended by itself
        if step.off_ms and not (known and known.running):
            self._pulses[key] = Pulse(on, off, (step.on_ms, step.off_ms))

    def _stop(self, key: str) -> None:
        pulse = self._pulses.pop(key, None)
        if pulse is not None:
            pulse.stop()

    def _status(self, key: str, paused: bool | None) -> Status:
        if paused is None:
            return Status.GONE
        pulse = self._pulses.get(key)
        return Status.OURS if paused or (pulse and pulse.running) else Status.PRIOR

    def _measured(self, key: str, paused: bool | None) -> dict[str, Any]:
        pulse = self._pulses.get(key)
        return {"paused": bool(paused), "turns": pulse.turns if pulse else 1}


class FreezeBackend(_Pausing):
    """cgroup.freeze (Documentation/admin-guide/cgroup-v2.rst)."""

    def observe(self, fault_id: str, step: CgroupFreeze, peers: Sequence[Peer]) -> Prior:
        if (now := read(step.scope, "cgroup.freeze")) != "0":
            raise Refused(
                f"{step.scope.path} cannot be frozen",
                "it is frozen already" if now else "it is gone",
            )
        return {"freeze": "0"}

    @staticmethod
    def _frozen(step: CgroupFreeze) -> bool | None:
        now = read(step.scope, "cgroup.freeze")
        return None if now is None else now == "1"

    def status(self, step: CgroupFreeze, prior: Prior, peers: Sequence[Peer]) -> Status:
        return self._status(step.key(), self._frozen(step))

    def apply(
        self, fault_id: str, step: CgroupFreeze, prior: Prior, peers: Sequence[Peer]
    ) -> Outcome:
        if not set_frozen(step.scope, True):
            raise BackendError(f"{step.scope.path} was not frozen", "it is gone")
        if not wait_for(lambda: is_still(step.scope), STOP_S):
            raise BackendError(
                f"{step.scope.path} was not frozen",
                f"after {STOP_S:g} s some process of it still runs in the kernel (state D)",
            )
        self._start(
            step.key(),
            step,
            lambda: set_frozen(step.scope, True),
            lambda: set_frozen(step.scope, False),
        )
        return {}

    def undo(self, fault_id: str, step: CgroupFreeze, prior: Prior, peers: Sequence[Peer]) -> None:
        self._stop(step.key())
        set_frozen(step.scope, False)

    def measure(self, fault_id: str, step: CgroupFreeze, prior: Prior) -> dict[str, Any]:
        return self._measured(step.key(), self._frozen(step))


def set_frozen(scope: CgroupScope, frozen: bool) -> bool:
    """Write cgroup.freeze; False when the cgroup is gone. Raises OSError."""
    with opened(scope) as folder:
        if folder is None:
            return False
        try:
            write_at(folder, "cgroup.freeze", "1" if frozen else "0")
        except OSError as exc:
            if exc.errno in GONE:
                return False
            raise
    return True


def is_still(scope: CgroupScope) -> bool:
    """Whether all processes stand still by cgroup.events, or the cgroup is gone."""
    events = read(scope, "cgroup.events")
    return events is None or "frozen 1" in events.splitlines()


class StopBackend(_Pausing):
    """SIGSTOP by a pidfd, so that it never meets a later process with the same pid."""

    def __init__(self) -> None:
        super().__init__()
        self._node = Node()

    def observe(self, fault_id: str, step: ProcessStop, peers: Sequence[Peer]) -> Prior:
        if (now := self._stopped(step.scope)) is not False:
            raise Refused(
                f"process {step.scope.pid} cannot be stopped",
                "it is gone" if now is None else "it is stopped already",
            )
        return {}

    def _stopped(self, scope: PidScope) -> bool | None:
        """Whether all its threads are stopped (state T); None when it is gone."""
        try:
            fields = stat_fields(self._node, scope.pid)
            if int(fields[19]) != scope.start_ticks or fields[0] in "ZX":
                return None
            threads = os.listdir(self._node.proc / str(scope.pid) / "task")
            return all(self._state(scope.pid, thread) in ("T", "") for thread in threads)
        except (FileNotFoundError, ProcessLookupError):
            return None

    def _state(self, pid: int, thread: str) -> str:
        try:
            text = (self._node.proc / str(pid) / "task" / thread / "stat").read_text(
                "utf-8", "replace"
            )
        except (FileNotFoundError, ProcessLookupError):
            return ""  # a thread that has ended
        return text.rpartition(")")[2].split()[0]

    def status(self, step: ProcessStop, prior: Prior, peers: Sequence[Peer]) -> Status:
        return self._status(step.key(), self._stopped(step.scope))

    def apply(
        self, fault_id: str, step: ProcessStop, prior: Prior, peers: Sequence[Peer]
    ) -> Outcome:
        if not self._signal(step.scope, signal.SIGSTOP):
            raise BackendError(f"process {step.scope.pid} was not stopped", "it is gone")
        if not wait_for(lambda: self._stopped(step.scope) is not False, STOP_S):
            raise BackendError(
                f"process {step.scope.pid} was not stopped",
                f"after {STOP_S:g} s a thread of it still runs, in the kernel or traced",
            )
        self._start(
            step.key(),
            step,
            lambda: self._signal(step.scope, signal.SIGSTOP),
            lambda: self._signal(step.scope, signal.SIGCONT),
        )
        return {}

    def _signal(self, scope: PidScope, number: signal.Signals) -> bool:
        with suppress(FileNotFoundError, ProcessLookupError):
            fd = os.pidfd_open(scope.pid)
            try:
                if start_ticks(self._node, scope.pid) == scope.start_ticks:
                    signal.pidfd_send_signal(fd, number)
                    return True
            finally:
                os.close(fd)
        return False

    def undo(self, fault_id: str, step: ProcessStop, prior: Prior, peers: Sequence[Peer]) -> None:
        self._stop(step.key())
        self._signal(step.scope, signal.SIGCONT)
        wait_for(lambda: self._stopped(step.scope) is not True, STOP_S)

    def measure(self, fault_id: str, step: ProcessStop, prior: Prior) -> dict[str, Any]:
        return self._measured(step.key(), self._stopped(step.scope))
