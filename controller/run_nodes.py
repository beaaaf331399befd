"""The nodes of a run: those of its plan, and those that a fault follows its workload to."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from controller.experiment import Experiment
from controller.experiment_objects import CLUSTER
from controller.experiment_pods import agent_url, cluster_node
from controller.experiment_targets import NodeEntry
from controller.kube.identity import check_same
from controller.kube.ports import ClusterPort
from controller.kube.ways import Reached, Ways
from controller.run_object_node import acts_on_objects, objects_port
from controller.run_plan import RunPlan
from controller.run_ports import AgentPort, RunPort


def addresses(experiment: Experiment, plan: RunPlan) -> dict[str, NodeEntry]:
    """The nodes that the experiment's targets are on, those of its pods as well."""
    used = {target.node for target in experiment.targets.values()}
    found = {name: node for name, node in experiment.nodes.items() if name in used}
    for item in plan.items:
        known = experiment.nodes.get(item.node)
        if item.node and not item.on_objects:
            found[item.node] = known or NodeEntry(agent=agent_url(item.node), zone=item.zone)
    return found


class Ports(dict[str, RunPort]):
    """By name of the node. One of the cluster that nobody has named gets its port when it is
    first asked for."""

    def __init__(
        self, stack: ExitStack, within: Mapping[str, str | None], there: Reached | None = None
    ) -> None:
        super().__init__()
        self._stack, self._within, self._there = stack, within, there
        self._making = threading.Lock()

    @property
    def cluster(self) -> Any:
        """The cluster that is reached; None if no node is of one."""
        return self._there.cluster if self._there else None

    def __missing__(self, name: str) -> RunPort:
        return self.reach(name)

    def reach(self, name: str) -> RunPort:
        """That of a node of the cluster, made if there is none; opened when it is first used."""
        if self._there is None:
            raise KeyError(name)
        node = self._within.get(name) or name
        with self._making:
            if name not in self:
                self.add(name, ClusterPort(node, self._there.agents))
            return self[name]

    def add(self, name: str, port: RunPort) -> None:
        """It is closed with all others."""
        self[name] = port
        self._stack.callback(port.close)


@contextmanager
def open_ports(experiment: Experiment, plan: RunPlan, ways: Ways) -> Iterator[Ports]:
    """Ports to the nodes that the experiment's targets are on, and to the cluster's objects. Raises
    Refused when that is another cluster than the plan's, or the journal of another user."""
    entries = addresses(experiment, plan)
    within = {name: cluster_node(entry.agent) for name, entry in experiment.nodes.items()}
    within |= {name: cluster_node(entry.agent) for name, entry in entries.items()}
    with ExitStack() as stack:
        there = None
        on_objects = acts_on_objects(plan)
        if on_objects or any(within[name] for name in entries):
            there = stack.enter_context(ways.cluster())
            if plan.cluster:
                check_same(there.cluster, plan.cluster)
        ports = Ports(stack, within, there)
        if on_objects:
            ports.add(CLUSTER, objects_port(ports.cluster, plan, ways))
        for name, entry in entries.items():
            if within[name] is None:
                ports.add(name, AgentPort(entry.address(ways.default)))
            else:
                ports.reach(name)
        yield ports
