"""What `--announce` writes to a cluster: Events on what is hit, a condition on its nodes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from controller import render
from controller.kube.hearer import Hearer
from controller.kube.objects import Pod
from controller.kube.resolve import Resolved
from controller.kube.targets import Item
from controller.kube.ways import Reached
from nodeagent.model.plan import Lease


@dataclass
class Announced(Hearer):
    """Of one group, if it is wanted. What cannot be written is a warning: a fault that is armed
    must not look as if it were not."""

    there: Reached
    kind: str
    group: str
    found: Resolved
    wanted: bool
    until: datetime = field(init=False)
    """The hard end of what was armed last; known since `armed`."""
    lease: Lease = field(init=False)
    nodes: set[str] = field(default_factory=set)
    """Where the condition may be True."""
    hit: dict[str, Item] = field(default_factory=dict)
    """By id, what is armed and on which pod."""

    def armed(self, lease: Lease) -> None:
        """Says when it ends at the latest."""
        self.lease = lease
        self._begun(self.found.items)

    def armed_on(self, item: Item) -> None:
        """Its lease has begun just now."""
        self._begun((item,))

    def kept_for(self, ids: Collection[str], pod: Pod) -> None:
        """No Event says that it ended on the pod before: it did not."""
        for item in [self.hit[i] for i in ids if i in self.hit]:
            target = {**item.request.target, "uid": pod.cgroup_uid}
            request = item.request.model_copy(update={"target": target})
            self.hit[item.request.id] = replace(item, pod=pod.full_name, request=request)
            self._event([self.hit[item.request.id]], "FaultArmed", self._most())

    def ended_on(self, node: str, ids: Collection[str]) -> None:
        over = [self.hit.pop(i) for i in ids if i in self.hit]
        self._event(over, "FaultEnded", f"{self.kind} ({self.group})")
        self._condition((node,), armed=False)

    def ended(self) -> None:
        """All of it was taken back by this process."""
        self._event(self.hit.values(), "FaultEnded", f"{self.kind} ({self.group})")

    def _begun(self, items: Collection[Item]) -> None:
        self.until = datetime.now(UTC) + self.lease.hard_end
        self.hit |= {item.request.id: item for item in items}
        nodes = {item.node for item in items}
        self.nodes |= nodes
        self._event(items, "FaultArmed", self._most())
        self._condition(nodes, armed=True)

    def _most(self) -> str:
        return f"{self.kind} ({self.group}), until {self.until:%Y-%m-%dT%H:%M:%SZ} at most"

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

    def _event(self, items: Collection[Item], reason: str, message: str) -> None:
        if self.wanted:
            from controller.kube.announce import announce

            _warn(announce(self.there.cluster, items, reason, message))

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
