"""Taking the node down: a thread that waits, and then asks systemd or the kernel."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Runtime
from nodeagent.bind.systemd import systemctl
from nodeagent.model.errors import FaultError, Refused
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.machine import NodeDown

SYSRQ = Path("/proc/sysrq-trigger")
PANIC = Path("/proc/sys/kernel/panic")


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backend of this module."""
    return {NodeDown: DownBackend()}


class _Fuse:
    """Takes the node down after a while, unless it is put out before."""

    def __init__(self, step: NodeDown) -> None:
        self._step = step
        self._out = threading.Event()
        self.failed = ""
        self.gone = False
        self._thread = threading.Thread(target=self._run, name="node-down", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        if self._out.wait(self._step.delay_ms / 1000):
            return
        self.gone = True
        try:
            take_down(self._step)
        except (FaultError, OSError) as exc:
            self.failed = str(exc)
            print(f"faultd: the node was not taken down: {exc}", file=sys.stderr, flush=True)

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
        return {"boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip()}

    def status(self, step: NodeDown, prior: Prior, peers: Sequence[Peer]) -> Status:
        return Status.PRIOR if self._fuse is None else Status.OURS

    def apply(self, fault_id: str, step: NodeDown, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        if self._fuse is None:
            self._fuse = _Fuse(step)
        return {}

    def undo(self, fault_id: str, step: NodeDown, prior: Prior, peers: Sequence[Peer]) -> None:
        fuse, self._fuse = self._fuse, None
        if fuse is not None:
            fuse.put_out()

    def measure(self, fault_id: str, step: NodeDown, prior: Prior) -> dict[str, Any]:
        fuse = self._fuse
        return {
            "waiting": fuse is not None and not fuse.gone,
            "failed": fuse.failed if fuse is not None else "",
        }
