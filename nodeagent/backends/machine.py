"""Taking the node down: a thread that waits, and then asks systemd or the kernel."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Runtime
from nodeagent.bind.systemd import systemctl
from nodeagent.model.errors import BackendError, FaultError, Refused
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.machine import NodeDown

SYSRQ = Path("/proc/sysrq-trigger")
MARKS = Path("/run/faultctl")
"""Where it is noted that a node is going down: an orderly reboot ends the agent before the node,
and whoever reverts then must not call the fault ended. It goes with the boot."""
PANIC = Path("/proc/sys/kernel/panic")
LOG = logging.getLogger(__name__)


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backend of this module."""
    return {NodeDown: DownBackend()}


def going_down(fault_id: str) -> bool:
    """Whether this fault is taking the node down already: nobody can revert it in this boot."""
    return _mark(fault_id).exists()


def _mark(fault_id: str) -> Path:
    return MARKS / f"node-down-{fault_id}"


class _Fuse:
    """Takes the node down after a while, unless it is put out before."""

    def __init__(self, step: NodeDown, mark: Path) -> None:
        self._step, self._mark = step, mark
        self._out = threading.Event()
        self.failed = ""
        self._thread = threading.Thread(target=self._run, name="node-down", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        if self._out.wait(self._step.delay_ms / 1000):
            return
        try:
            self._mark.parent.mkdir(mode=0o700, exist_ok=True)
            self._mark.touch(mode=0o600)
            take_down(self._step)
        except (FaultError, OSError) as exc:
            self.failed = str(exc)
            self._mark.unlink(missing_ok=True)
            LOG.error("a fault did not act", extra={"details": f"the node stays up: {exc}"})

    def put_out(self) -> None:
        """It does not act any more, if it has not yet."""
        self._out.set()
        self._thread.join(timeout=5)


def take_down(step: NodeDown) -> None:
    """Does not come back when it works. Raises FaultError or OSError."""
    if step.sync:
        os.sync()
    if step.reboot_after_s is not None:
        PANIC.write_text(str(step.reboot_after_s), encoding="ascii")
    if step.how == "orderly":
        systemctl("reboot", "--no-block")
        return
    SYSRQ.write_text("b" if step.how == "sudden" else "c", encoding="ascii")


class DownBackend:
    """One fuse at a time."""

    def __init__(self) -> None:
        self._fuse: _Fuse | None = None

    def observe(self, fault_id: str, step: NodeDown, peers: Sequence[Peer]) -> Prior:
        if step.how != "orderly" and not os.access(SYSRQ, os.W_OK):
            raise Refused("the node cannot be taken down", f"{SYSRQ} cannot be written")
        return {"fault": fault_id}

    def status(self, step: NodeDown, prior: Prior, peers: Sequence[Peer]) -> Status:
        if self._fuse is not None or going_down(prior["fault"]):
            return Status.OURS
        return Status.PRIOR

    def apply(self, fault_id: str, step: NodeDown, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        if self._fuse is None:
            self._fuse = _Fuse(step, _mark(prior["fault"]))
        return {}

    def undo(self, fault_id: str, step: NodeDown, prior: Prior, peers: Sequence[Peer]) -> None:
        if self._fuse is not None:
            self._fuse.put_out()
        if going_down(prior["fault"]):
            raise BackendError(
                "the node is going down already",
                "that cannot be called off",
                "the fault ends with the boot",
            )
        self._fuse = None

    def measure(self, fault_id: str, step: NodeDown, prior: Prior) -> dict[str, Any]:
        fuse = self._fuse
        return {
            "waiting": not going_down(prior["fault"]),
            "failed": fuse.failed if fuse is not None else "",
        }
