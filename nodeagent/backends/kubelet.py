"""The kubelet's eviction threshold: its configuration file, and a restart that reads it."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Residue, Runtime
from nodeagent.backends.kept_file import KeptFile
from nodeagent.backends.pause import wait_for
from nodeagent.bind.kubelet import ROOT_DIR, running
from nodeagent.bind.node import Node
from nodeagent.bind.systemd import is_stopping, systemctl
from nodeagent.crashpoint import crashpoint
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.kubelet import MEASURED, threshold_above, with_threshold
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.kubelet import KubeletThreshold

END_S = 30.0
"""How long it may take to end: it waits for its own requests."""
START_S = 60.0
"""How long its supervisor may take to start it again (kubeadm's unit: RestartSec=10)."""

GAP_S = 2.0


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backend of this module."""
    return {KubeletThreshold: ThresholdBackend()}


def residue(node_id: str, claimed: Sequence[StepBase]) -> list[Residue]:
    """Second names of kubelet configurations that no fault claims."""
    known = {_kept(s).kept for s in claimed if isinstance(s, KubeletThreshold)}
    places = {Path(ROOT_DIR), *(kept.parent for kept in known)}
    found = [p for place in places for p in place.glob(".faultctl-*.kept") if p not in known]
    return [
        Residue(f"file {path}", "a kubelet's configuration as it was", path.unlink)
        for path in found
    ]


def _kept(step: KubeletThreshold) -> KeptFile:
    return KeptFile(step.config, step.fault)


class ThresholdBackend:
    """One file and one restart; done only when both are."""

    def __init__(self) -> None:
        self._node = Node()

    def observe(self, fault_id: str, step: KubeletThreshold, peers: Sequence[Peer]) -> Prior:
        prior = _kept(step).observe()
        text = (_kept(step).read() or b"").decode("utf-8", "replace")
        try:
            threshold = step.threshold or threshold_above(*self._free(step))
            ours = with_threshold(text, step.signal, threshold)
        except ValueError as exc:
            raise Refused(f"{step.config} cannot be changed", str(exc)) from exc
        return {**prior, "ours": ours, "threshold": threshold}

    @staticmethod
    def _free(step: KubeletThreshold) -> tuple[int, int]:
        """(free, in all) of what the signal measures."""
        if step.signal == "memory.available":
            lines = Path("/proc/meminfo").read_text("ascii").splitlines()
            known = {line.split(":")[0]: int(line.split()[1]) for line in lines}
            return known["MemAvailable"], known["MemTotal"]
        try:
            space = os.statvfs(step.root_dir)
        except FileNotFoundError as exc:
            raise Refused("the kubelet's threshold cannot be raised", f"{exc}") from exc
        if step.signal == "nodefs.inodesFree":
            return space.f_ffree, space.f_files
        return space.f_bavail, space.f_blocks

    def status(self, step: KubeletThreshold, prior: Prior, peers: Sequence[Peer]) -> Status:
        file = _kept(step)
        now = file.read()
        if now is None:
            return Status.FOREIGN if file.path.parent.is_dir() else Status.GONE
        if now == prior["ours"].encode():
            return Status.OURS
        if not file.is_as_before(prior):
            return Status.FOREIGN
        return Status.OURS if file.kept.exists() else Status.PRIOR

    def apply(
        self, fault_id: str, step: KubeletThreshold, prior: Prior, peers: Sequence[Peer]
    ) -> Outcome:
        _kept(step).replace(prior["ours"].encode(), prior)
        crashpoint("kubelet:file")
        before = running(self._node, step.named)
        if before is None:
            raise BackendError("the kubelet was not restarted", "it does not run any more")
        self._restart(step, before)
        self._await(step, before)
        return {}

    def _await(self, step: KubeletThreshold, before: tuple[int, int]) -> None:
        if not wait_for(lambda: self._is_new(step, before), START_S):
            raise BackendError(
                "the kubelet did not come back",
                f"{START_S:g} s after its end no other process of its name is there",
                "look at its log; what supervises it?",
            )

    def _is_new(self, step: KubeletThreshold, before: tuple[int, int]) -> bool:
        return running(self._node, step.named) not in (None, before)

    def _restart(self, step: KubeletThreshold, before: tuple[int, int]) -> None:
        """End exactly this process; who starts it again is its supervisor's business."""
        if step.unit:
            # Only if it runs: one that somebody has stopped meanwhile stays so.
            systemctl("try-restart", "--", step.unit, timeout=START_S)
            return
        with suppress(ProcessLookupError):
            fd = os.pidfd_open(before[0])
            try:
                if running(self._node, step.named) == before:
                    signal.pidfd_send_signal(fd, signal.SIGTERM)
            finally:
                os.close(fd)
        if not wait_for(lambda: running(self._node, step.named) != before, END_S):
            raise BackendError(
                "the kubelet was not restarted", f"{END_S:g} s after SIGTERM it is still there"
            )

    def undo(
        self, fault_id: str, step: KubeletThreshold, prior: Prior, peers: Sequence[Peer]
    ) -> None:
        file = _kept(step)
        file.put_back(prior)
        goes_down = is_stopping()  # it would not be started again
        before = None if goes_down else running(self._node, step.named)
        if before is not None:  # else it reads the file when it starts
            self._restart(step, before)
        crashpoint("kubelet:restarted")
        file.release()
        if before is not None:  # an error here is told; the next attempt finds all as before
            self._await(step, before)
        elif not goes_down:  # somebody has stopped it, or it is between two lives
            wait_for(lambda: running(self._node, step.named) is not None, GAP_S)

    def measure(self, fault_id: str, step: KubeletThreshold, prior: Prior) -> dict[str, Any]:
        now = running(self._node, step.named)
        free, total = (0, 0)
        if step.signal in MEASURED:
            with suppress(Refused):  # its directory is gone: nothing to tell
                free, total = self._free(step)
        return {
            "threshold": prior["threshold"],
            "there": _kept(step).read() == prior["ours"].encode(),
            "pid": None if now is None else now[0],
            "free_percent": round(free * 100 / total, 2) if total else None,
        }
