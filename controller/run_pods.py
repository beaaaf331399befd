"""The pods that an experiment's targets come to: looked up once, when a run starts.

Reads the cluster and changes nothing in it, so that a run can be blind. What was found is in the
plan of the run: a take-over, and whoever reads the record, needs no second look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from controller.experiment import Experiment, FaultEntry
from controller.experiment_check import Loaded, listed, with_found
from controller.experiment_object_check import on_objects
from controller.experiment_objects import CLUSTER
from controller.experiment_pods import (
    Found,
    FoundPods,
    Hit,
    PodsEntry,
    cluster_node,
    in_file_words,
    several,
)
from controller.experiment_samples import with_far_ends
from controller.experiment_yaml import Document, Path, read_document
from controller.kube.asked import asked
from controller.kube.discover import Query, check_protected, denied, find_nodes, find_pods
from controller.kube.identity import identity
from controller.kube.objects import Node, Pod
from controller.kube.resolve import find_peers
from controller.kube.select import Ask, Selection, select
from controller.kube.targets import check_ask, pod_targets
from controller.kube.ways import Reached, Ways
from controller.run_objects import look_up
from controller.run_plan import RunPlan
from controller.run_trail import follows, found_pods, with_trail
from nodeagent.faults import kinds
from nodeagent.model.errors import FaultError, InvalidSpec, Refused, Unreachable
from nodeagent.model.protected import NAMESPACES


def needs_cluster(experiment: Experiment) -> bool:
    """Whether a target is pods, or on a node whose agent is one of a cluster."""
    return any(
        entry.of_cluster or cluster_node(experiment.nodes[entry.node].agent) is not None
        for entry in experiment.targets.values()
    )


def with_pods(
    loaded: Loaded, ways: Ways, allowed: Callable[[Any, RunPlan], None] = lambda cluster, plan: None
) -> Loaded:
    """The experiment with its pods, and with their nodes; itself if it names none.

    allowed: is given the cluster and the plan, and raises what is against it. Raises Refused or
    InvalidSpec with every problem and its line, Unreachable.
    """
    if not needs_cluster(loaded.experiment):
        return loaded
    with ways.cluster() as there:
        finder = Finder(loaded.experiment, read_document(loaded.raw), there)
        whole = with_found(loaded, finder.found())
        allowed(there.cluster, whole.plan)
    return whole


def on_cluster(plan: RunPlan, experiment: Experiment, ways: Ways) -> RunPlan:
    """A plan of other faults on an experiment's targets, bound to the cluster of its nodes."""
    if not needs_cluster(experiment):
        return plan
    with ways.cluster() as there:
        return plan.model_copy(update={"cluster": identity(there.cluster)})


@dataclass
class Finder:
    """Looks all entries up and notes everything that is wrong, by line."""

    experiment: Experiment
    document: Document
    there: Reached
    pods: list[FoundPods] = field(default_factory=list)
    hits: dict[tuple[str, str], Sequence[Hit]] = field(default_factory=dict)
    specs: dict[str, dict[str, Any]] = field(default_factory=dict)
    wrong: list[FaultError] = field(default_factory=list)

    def found(self) -> Found:
        """What there is. Raises Refused, InvalidSpec or Unreachable."""
        known = self._names()
        for name, entry in self.experiment.targets.items():
            if entry.pods is not None:
                self._entry(name, entry.pods, known)
        for fault in self.experiment.faults:
            self._far_ends(fault)
        objects = look_up(self.experiment, self.there.cluster, self.note)
        if self.wrong:
            kind = next((InvalidSpec for e in self.wrong if isinstance(e, InvalidSpec)), Refused)
            raise kind(
                f"{self.experiment.name} cannot be played on this cluster",
                listed(self.document.problems),
                in_file_words(self.wrong[0].hint),
            )
        found = (tuple(self.pods), self.hits, self.specs, objects)
        return Found(identity(self.there.cluster), *found)

    def note(self, path: Path, error: FaultError) -> None:
        """Something that is wrong, at a path of the file. Raises Unreachable if it is that."""
        if isinstance(error, Unreachable):
            raise error
        self.wrong.append(error)
        self.document.problem(path, in_file_words(str(error)))

    # --- nodes -------------------------------------------------------------------------------

    def _names(self) -> dict[str, str]:
        """Name in the cluster -> name in the file, of nodes that the file names by kube://."""
        names: dict[str, str] = {}
        used = {entry.node for entry in self.experiment.targets.values()}
        for name, entry in self.experiment.nodes.items():
            node = cluster_node(entry.agent)
            if node is None:
                continue
            path: Path = ("nodes", name, "agent")
            if node in names:
                text = f"{names[node]!r} is the same node of the cluster"
                self.note(path, InvalidSpec(text))
            elif name in used:
                self._agent(path, node)
            names.setdefault(node, name)
        return names

    def _agent(self, path: Path, node: str, pod: str = "") -> bool:
        """Whether a node's agent is there and ready."""
        of = f", for {pod}" if pod else ""
        try:
            agent = self.there.agents.pods().get(node)
        except Refused as exc:
            self.note(path, exc)
            return False
        if agent is None:
            error = Refused(
                f"no agent runs on node {node}{of}", "", "faultctl deploy status; does a taint "
                "keep it away?",
            )  # fmt: skip
        elif not agent.ready:
            error = Refused(f"the agent of node {node} is not ready{of}", f"pod {agent.name}")
        else:
            return True
        self.note(path, error)
        return False

    def _node(self, path: Path, node: str, known: dict[str, str]) -> str:
        """What the run calls a node."""
        name = known.get(node, node)
        entry = self.experiment.nodes.get(name)
        if name == node and entry is not None and cluster_node(entry.agent) is None:
            self.note(path, InvalidSpec(
                f"node {node} of the cluster has the name of another node of this file",
                f"whose agent is {entry.agent}", f"if they are one: agent: kube://{node}",
            ))  # fmt: skip
        if name == CLUSTER and any(map(on_objects, self.experiment.faults.values())):
            text = f"node {node} has the name that a run with faults on objects has for the cluster"
            self.note(
                path, InvalidSpec(text, "", f"name it: nodes: {{n: {{agent: kube://{node}}}}}")
            )
        return name

    # --- pods ----------------------------------------------------------------------------------

    def _entry(self, name: str, entry: PodsEntry, known: dict[str, str]) -> None:
        path: Path = ("targets", name, "pods")
        faults = {n: f for n, f in self.experiment.faults.items()
                  if name in f.targets and not on_objects(f)}  # fmt: skip
        if not faults:
            return
        seed = f"{self.experiment.seed} {name}"
        try:
            query, ask = asked(self.there.cluster.namespace, entry.options(seed))
            query.check()
            self._allowed(query, faults)
            nodes = find_nodes(self.there.cluster, query.node_labels)
            ask = _for_all(ask, entry, faults.values())
            there = find_pods(self.there.cluster, query)
            found = select(ask, there, nodes)
            self._rights(found)
        except FaultError as exc:
            self.note(path, exc)
            return
        names = {}
        for node in dict.fromkeys(pod.node for pod in found.pods):
            of = next(pod.full_name for pod in found.pods if pod.node == node)
            self._agent(path, node, of)
            names[node] = self._node(path, node, known)
        record = found_pods(name, ask, found, names)
        try:
            record = with_trail(self.there.cluster, record, entry, query, (found.pods, there))
        except FaultError as exc:
            self.note((*path, "follow"), exc)
        self.pods.append(record)
        for fault in faults:
            self._hits(fault, (name, entry), ask, found.pods, names, nodes)

    def _allowed(self, query: Query, faults: dict[str, FaultEntry]) -> None:
        held = (*NAMESPACES, self.there.agent_namespace)
        for fault in faults.values():
            check_protected(query.namespace, held, fault.acknowledge)

    def _rights(self, found: Selection) -> None:
        """Who may not delete a pod may not break it either."""
        missing = denied(self.there.cluster, tuple(sorted({p.namespace for p in found.pods})))
        if missing:
            raise Refused(
                f"you have no right to break pods in namespace {missing[0]}",
                "a Role is missing with verb 'delete' on resource 'pods' of the core group",
            )

    def _hits(
        self, fault: str, on: tuple[str, PodsEntry], ask: Ask, pods: Iterable[Pod],
        names: dict[str, str], nodes: dict[str, Node],
    ) -> None:  # fmt: skip
        name, entry = on
        kind = kinds()[self.experiment.faults[fault].kind]
        found: list[Hit] = []
        for pod in pods:
            try:
                targets = pod_targets(kind, pod, check_ask(kind, ask, entry.part), entry.part)
            except FaultError as exc:
                self.note(("faults", fault, "target"), exc)
                continue
            at = names[pod.node]
            declared = self.experiment.nodes.get(at)
            zone = (declared.zone if declared else "") or nodes[pod.node].zone
            for target in targets:
                each = f"/{target['container']}" if len(targets) > 1 else ""
                found.append(Hit(at, zone, pod.name + each, target, follows(entry, pod)))
        self.hits[fault, name] = found

    def _far_ends(self, name: str) -> None:
        """The spec of a fault whose far ends are pods, with the addresses of this moment."""
        fault = self.experiment.faults[name]
        own = next((one.namespace for one in self.pods if one.target in fault.targets), None)
        if fault.to_pods is None or own is None:
            return
        peers = fault.to_pods
        query = Query(peers.namespace or own, labels=peers.selector or "")
        try:
            found = find_peers(self.there.cluster, query, several(peers.zone))
            self.specs[name] = with_far_ends(kinds()[fault.kind], fault.spec, found.networks)
        except FaultError as exc:
            self.note(("faults", name, "to_pods"), exc)
            return
        told = f"far ends of {name}: {self.specs[name]['to']}"
        self.pods = [
            one.model_copy(update={"notes": (*one.notes, told, *found.notes)})
            if one.target == fault.targets[0]
            else one
            for one in self.pods
        ]


def _for_all(ask: Ask, entry: PodsEntry, faults: Iterable[FaultEntry]) -> Ask:
    """The pods of an entry are the same for all its faults: those that each of them can hit."""
    each = [check_ask(kinds()[fault.kind], ask, entry.part) for fault in faults]
    return replace(
        ask,
        network=any(one.network for one in each),
        whole_device=any(one.whole_device for one in each),
    )
