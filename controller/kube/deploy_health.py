"""Every node's agent, asked how it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controller.kube.agents import Access, Agents
from controller.kube.client import Cluster
from controller.kube.deploy import daemonset, pods
from controller.kube.deploy_status import PodState
from controller.kube.group import Clients, Failure
from controller.kube.portforward import forward
from nodeagent.model.errors import Refused


@dataclass(frozen=True)
class NodeStatus:
    """What is known of one node's agent."""

    pod: PodState
    version: str = ""
    guardian: str = ""
    faults: int = 0
    error: str = ""

    @property
    def sound(self) -> bool:
        """Whether it runs, answers, and has its guardian."""
        return self.pod.ready and not self.error and self.guardian.startswith("running")


def status(cluster: Cluster) -> list[NodeStatus]:
    """Every node's agent, asked. Raises Refused when faultctl is not installed."""
    if daemonset(cluster) is None:
        raise Refused("faultctl is not installed in this cluster", "", "faultctl deploy install")
    found = pods(cluster)
    ready = {one.node: one for one in found if one.ready}
    told: Mapping[str, NodeStatus] = {}
    failed: list[Failure] = []
    if ready:
        with Agents(cluster, Access(forward=forward)) as agents, Clients(agents) as clients:

            def ask(node: str, agent: Any) -> NodeStatus:
                reply, _ = agent.describe()
                faults = len(agent.faults(active_only=True))
                return NodeStatus(ready[node], reply.agent_version, reply.guardian, faults)

            told, failed = clients.everywhere(ready, ask)
    errors = {one.node: str(one.error) for one in failed}
    return [
        told[one.node] if one.ready and one.node in told
        else NodeStatus(one, error=errors.get(one.node, one.why))
        for one in found
    ]  # fmt: skip
