"""The nodes of a run: those of its plan, and those that a fault follows its workload to."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from controller.experiment import Experiment
from controller.experiment_check import addresses
from controller.experiment_pods import cluster_node
from controller.kube.ports import ClusterPort
from controller.kube.ways import Reached, Ways
from controller.run_plan import RunPlan
from controller.run_pods import check_same
from controller.run_ports import AgentPort


class Ports(dict[str, AgentPort]):
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

    def __missing__(self, name: str) -> AgentPort:
        return self.reach(name)

    def reach(self, name: str) -> AgentPort:
        """That of a node of the cluster, made if there is none; opened when it is first used."""
        if self._there is None:
            raise KeyError(name)
        node = self._within.get(name) or name
        with self._making:
            if name not in self:
                self.add(name, ClusterPort(node, self._there.agents))
            return self[name]

    def add(self, name: str, port: AgentPort) -> None:
        """It is closed with all others."""
        self[name] = port
        self._stack.callback(port.close)


@contextmanager
def open_ports(experiment: Experiment, plan: RunPlan, ways: Ways) -> Iterator[Ports]:
    """Ports to the nodes that the experiment's targets are on. Raises Refused when that is
    another cluster than the plan's."""
    entries = addresses(experiment, plan)
    within = {name: cluster_node(entry.agent) for name, entry in experiment.nodes.items()}
    within |= {name: cluster_node(entry.agent) for name, entry in entries.items()}
    with ExitStack() as stack:
        there = None
        if any(within[name] for name in entries):
            there = stack.enter_context(ways.cluster())
            if plan.cluster:
                check_same(there.cluster, plan.cluster)
        ports = Ports(stack, within, there)
        for name, entry in entries.items():
            if within[name] is None:
                ports.add(name, AgentPort(entry.address(ways.default)))
            else:
                ports.reach(name)
        yield ports
