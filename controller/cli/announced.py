"""What `--announce` writes to a cluster: Events on what is hit, a condition on its nodes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from controller import render
from controller.kube.resolve import Resolved
from controller.kube.ways import Reached
from nodeagent.model.plan import Lease


@dataclass
class Announced:
    """Of one group, if it is wanted. What cannot be written is a warning: a fault that is armed
    must not look as if it were not."""

    there: Reached
    kind: str
    group: str
    found: Resolved
    wanted: bool
    until: datetime = field(init=False)
    """Its hard end; known since `armed`."""
    nodes: set[str] = field(default_factory=set)
    """Where the condition may be True."""

    def armed(self, lease: Lease) -> None:
        """Says when it ends at the latest."""
        self.until = datetime.now(UTC) + lease.hard_end
        self.nodes = {item.node for item in self.found.items}
        self._event(
            "FaultArmed",
            f"{self.kind} ({self.group}), until {self.until:%Y-%m-%dT%H:%M:%SZ} at most",
        )
        self._condition(self.nodes, armed=True)

    def moved(self, node: str, armed: bool) -> None:
        """A fault of the group has come to a node, or ended there."""
        self.nodes.add(node)
        self._condition((node,), armed)

    def ended(self) -> None:
        """All of it was taken back by this process."""
        self._event("FaultEnded", f"{self.kind} ({self.group})")

    def settle(self) -> None:
        """The conditions as the agents say, whether or not all was taken back."""
        self._condition(self.nodes, armed=False)

    def leave(self, kubeconfig: Path | None, context: str | None) -> None:
        """Somebody else, or the lease, is going to end it: have a herald say so."""
        if not self.wanted:
            return
        from controller.kube import herald

        access = self.there.agents.access
        herald.start(
            herald.Told(
                kind=self.kind,
                group=self.group,
                until=self.until,
                hit=[(item.node, item.pod, item.request) for item in self.found.items],
                kubeconfig=kubeconfig,
                context=context,
                agent_namespace=access.namespace,
                direct=access.direct,
                tls=access.tls,
                server_name=access.server_name,
            )
        )

    def _event(self, reason: str, message: str) -> None:
        if self.wanted:
            from controller.kube.announce import announce

            _warn(announce(self.there.cluster, self.found.items, reason, message))

    def _condition(self, nodes: Collection[str], armed: bool) -> None:
        if self.wanted:
            from controller.kube.node_condition import Said, refresh

            add = Said(self.kind, self.group, self.until) if armed else None
            _warn(refresh(self.there.cluster, self.there.clients, nodes, add))


def settled(there: Any, nodes: Collection[str]) -> None:
    """After faults were taken back: conditions that say they are armed are put right."""
    if nodes:
        from controller.kube.node_condition import settle

        _warn(settle(there.cluster, there.clients, nodes))


def _warn(lines: list[str]) -> None:
    for line in lines:
        render.err().print(f"warning: {line}", markup=False)
