"""Signals to bound processes, by pidfds; repeated by a thread that ends with the agent."""

from __future__ import annotations

import os
import random
import signal
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Runtime
from nodeagent.backends.cgroup import opened
from nodeagent.backends.pulse import Rounds
from nodeagent.bind.cgroup import folder_of
from nodeagent.bind.node import Node
from nodeagent.bind.process import born, cgroup_pids, comm_of, lives
from nodeagent.model.errors import Refused
from nodeagent.model.process import CgroupScope, PidScope
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.process import ProcessKill

KEPT = 16
"""Lines about the latest signals that evidence shows."""


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backend of this module."""
    return {ProcessKill: KillBackend()}


class _Killer(Rounds):
    """Rounds of signals."""

    def __init__(self, step: ProcessKill, node: Node) -> None:
        super().__init__(step.every_ms)
        self._step, self._node = step, node
        self.sent = self.rounds = 0
        self.last: deque[str] = deque(maxlen=KEPT)

    def round(self) -> None:
        """One signal to each process that is there, or to one of them."""
        pids = members(self._step.scope, self._node)
        self.rounds += 1
        if self._step.whom == "one" and pids:
            # The pids of a replay differ; their order in time of birth does not.
            draw = random.Random(f"{self._step.seed}:{self.rounds}")  # noqa: S311 - not a secret
            pids = (draw.choice(pids),)
        for pid in pids:
            self._send(pid)

    def _send(self, pid: int) -> None:
        with suppress(FileNotFoundError, ProcessLookupError):
            fd = os.pidfd_open(pid)
            try:
                # Looked at again with the descriptor in hand: the number may be another's by now.
                if pid in members(self._step.scope, self._node):
                    comm = comm_of(self._node, pid)
                    signal.pidfd_send_signal(fd, self._step.number)
                    self.sent += 1
                    self.last.append(f"{self._step.name} to {comm} ({pid})")
            finally:
                os.close(fd)


def members(scope: PidScope | CgroupScope, node: Node) -> tuple[int, ...]:
    """The target's processes now, without the agent and PID 1; by time of birth."""
    if isinstance(scope, CgroupScope):
        with opened(scope) as folder:
            if folder is None:
                return ()
        found = [p for p in cgroup_pids(folder_of(scope)) if p not in (0, 1, os.getpid())]
        return tuple(pid for _, pid in sorted((born(node, pid), pid) for pid in found))
    return (scope.pid,) if lives(node, scope) else ()


class KillBackend:
    """One killer for each step."""

    def __init__(self) -> None:
        self._node = Node()
        self._killers: dict[str, _Killer] = {}

    def observe(self, fault_id: str, step: ProcessKill, peers: Sequence[Peer]) -> Prior:
        if not step.every_ms and not members(step.scope, self._node):
            raise Refused(
                "there is nothing to kill",
                "no process of the target is there",
                "see: pgrep -a NAME",
            )
        return {}

    def status(self, step: ProcessKill, prior: Prior, peers: Sequence[Peer]) -> Status:
        return Status.OURS if step.key() in self._killers else Status.PRIOR

    def apply(
        self, fault_id: str, step: ProcessKill, prior: Prior, peers: Sequence[Peer]
    ) -> Outcome:
        if step.key() not in self._killers:
            killer = _Killer(step, self._node)
            self._killers[step.key()] = killer
            killer.start()
        return {}

    def undo(self, fault_id: str, step: ProcessKill, prior: Prior, peers: Sequence[Peer]) -> None:
        killer = self._killers.pop(step.key(), None)
        if killer is not None:
            killer.stop()

    def measure(self, fault_id: str, step: ProcessKill, prior: Prior) -> dict[str, Any]:
        killer = self._killers.get(step.key())
        if killer is None:
            return {}
        return {
            "sent": killer.sent,
            "rounds": killer.rounds,
            "last": list(killer.last),
            "processes": len(members(step.scope, self._node)),
        }
