"""Limits that are lowered to what is in use: descriptors of a process, processes of a cgroup."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Runtime
from nodeagent.backends.cgroup import pids_refused, put, read
from nodeagent.bind.node import Node
from nodeagent.bind.process import descendants, stat_fields
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.process import PidScope
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.limits import DescriptorLimit, PidsLeave

Limits = tuple[int, int]
CAP_SYS_RESOURCE = 24  # include/uapi/linux/capability.h


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backends of this module."""
    return {DescriptorLimit: DescriptorBackend(), PidsLeave: PidsBackend()}


class DescriptorBackend:
    """RLIMIT_NOFILE of one process, and of those that inherited it from there meanwhile."""

    def __init__(self) -> None:
        self._node = Node()

    def observe(self, fault_id: str, step: DescriptorLimit, peers: Sequence[Peer]) -> Prior:
        what = f"the descriptors of process {step.scope.pid} cannot be used up"
        limits = self._limits(step.scope)
        if limits is None:
            raise Refused(what, "it is gone")
        want = lowest_with(self._open(step.scope), step.leave)
        if want >= limits[0]:
            raise Refused(
                what, f"its limit is {limits[0]}, and no more than {step.leave} are free below it"
            )
        if step.hard and (reason := _cannot_raise(limits[1])):
            raise Refused(what, f"its hard limit could not be put back: {reason}", "without --hard")
        return {"limits": list(limits), "want": want}

    def _limits(self, scope: PidScope) -> Limits | None:
        """(soft, hard) of exactly this process; None when it is gone. Raises OSError."""
        with suppress(FileNotFoundError, ProcessLookupError):
            limits = resource.prlimit(scope.pid, resource.RLIMIT_NOFILE)
            fields = stat_fields(self._node, scope.pid)
            if int(fields[19]) == scope.start_ticks and fields[0] not in "ZX":
                return limits
        return None

    def _open(self, scope: PidScope) -> list[int]:
        with suppress(FileNotFoundError):
            return sorted(map(int, os.listdir(self._node.proc / str(scope.pid) / "fd")))
        return []

    @staticmethod
    def _ours(step: DescriptorLimit, prior: Prior) -> Limits:
        return prior["want"], prior["want"] if step.hard else prior["limits"][1]

    def status(self, step: DescriptorLimit, prior: Prior, peers: Sequence[Peer]) -> Status:
        now = self._limits(step.scope)
        if now is None:
            return Status.GONE
        if now == tuple(prior["limits"]):
            return Status.PRIOR
        return Status.OURS if now == self._ours(step, prior) else Status.FOREIGN

    def apply(
        self, fault_id: str, step: DescriptorLimit, prior: Prior, peers: Sequence[Peer]
    ) -> Outcome:
        if self._limits(step.scope) is None:
            raise BackendError(f"process {step.scope.pid} was not limited", "it is gone")
        resource.prlimit(step.scope.pid, resource.RLIMIT_NOFILE, self._ours(step, prior))
        return {}

    def undo(
        self, fault_id: str, step: DescriptorLimit, prior: Prior, peers: Sequence[Peer]
    ) -> None:
        before: Limits = (prior["limits"][0], prior["limits"][1])
        family = descendants(self._node, step.scope.pid)
        # Its children first: the process itself is what says that all is put back.
        for pid in (*(p for p in family if p != step.scope.pid), step.scope.pid):
            with suppress(ProcessLookupError):
                now = resource.prlimit(pid, resource.RLIMIT_NOFILE)
                if now == self._ours(step, prior):
                    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)

    def measure(self, fault_id: str, step: DescriptorLimit, prior: Prior) -> dict[str, Any]:
        now = self._limits(step.scope)
        if now is None:
            return {"limit": None, "prior": prior["limits"][0], "open": 0, "left": 0}
        used = self._open(step.scope)
        below = sum(1 for number in used if number < now[0])
        return {
            "limit": now[0],
            "prior": prior["limits"][0],
            "open": len(used),
            "left": max(0, now[0] - below),
        }


def _cannot_raise(hard: int) -> str:
    """Why we could not raise a hard limit to this; empty if we can (do_prlimit, kernel/sys.c)."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("CapEff:") and not int(line.split()[1], 16) >> CAP_SYS_RESOURCE & 1:
            return "faultd has no CAP_SYS_RESOURCE"
    most = int(Path("/proc/sys/fs/nr_open").read_text("ascii"))
    return f"it is {hard}, and fs.nr_open is {most}" if hard > most else ""


def lowest_with(used: Iterable[int], leave: int) -> int:
    """The lowest limit below which `leave` numbers are free; with 0: no further one is.

    used: descriptors in rising order.
    """
    free = at = 0
    for number in used:
        if free + (number - at) > leave:
            break
        free += number - at
        at = number + 1
    return at + leave - free


class PidsBackend:
    """pids.max of a cgroup."""

    def observe(self, fault_id: str, step: PidsLeave, peers: Sequence[Peer]) -> Prior:
        what = f"the processes of {step.scope.path} cannot be used up"
        limit, current = read(step.scope, "pids.max"), read(step.scope, "pids.current")
        if limit is None or current is None:
            raise Refused(what, "it is gone, or the controller pids is not enabled in its parent")
        want = int(current) + step.leave
        if limit.isdigit() and int(limit) <= want:
            raise Refused(what, f"pids.max is {limit} already, and it has {current}")
        return {"value": limit, "want": str(want), "refused": pids_refused(step.scope)}

    def status(self, step: PidsLeave, prior: Prior, peers: Sequence[Peer]) -> Status:
        now = read(step.scope, "pids.max")
        known = {None: Status.GONE, prior["value"]: Status.PRIOR, prior["want"]: Status.OURS}
        return known.get(now, Status.FOREIGN)

    def apply(self, fault_id: str, step: PidsLeave, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        put(step.scope, "pids.max", prior["want"])
        return {}

    def undo(self, fault_id: str, step: PidsLeave, prior: Prior, peers: Sequence[Peer]) -> None:
        with suppress(FileNotFoundError):
            put(step.scope, "pids.max", prior["value"])

    def measure(self, fault_id: str, step: PidsLeave, prior: Prior) -> dict[str, Any]:
        return {
            "limit": prior["want"],
            "prior": prior["value"],
            "now": int(read(step.scope, "pids.current") or 0),
            "refused": pids_refused(step.scope) - prior["refused"],
        }
