"""From what a user asks of a cluster to the faults of a group: reads the API, changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controller.kube.answers import ApiPath
from controller.kube.client import Cluster
from controller.kube.discover import Query, check_protected, denied, find_nodes, find_pods
from controller.kube.peers import Peers, peers_of
from controller.kube.select import Ask, LeftOut, Selection, select, select_nodes
from controller.kube.targets import Item, check_ask, items_of
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.kind import FaultKind
from nodeagent.model.plan import FaultRequest
from nodeagent.model.protected import AGENT_NAMESPACE, NAMESPACES


@dataclass(frozen=True)
class Wanted:
    """A fault on pods: which, of what kind, and how it is asked of each agent."""

    group: str
    kind: FaultKind
    query: Query
    ask: Ask
    part: Mapping[str, Any]
    """file, offset and length on the volume, as far as they are given."""
    base: Mapping[str, Any]
    """Other fields of each FaultRequest: spec, mechanism, acknowledge, owner."""
    peers: Query | None = None
    peer_zones: tuple[str, ...] = ()
    """Only peers on nodes of these zones."""
    agent_namespace: str = AGENT_NAMESPACE


@dataclass(frozen=True)
class Resolved:
    """What would be hit."""

    items: tuple[Item, ...]
    matching: int
    left_out: tuple[LeftOut, ...] = ()
    seed: str = ""
    how_many: str = ""
    notes: tuple[str, ...] = ()


def resolve_pods(cluster: Cluster, wanted: Wanted) -> Resolved:
    """The faults on the pods that are meant. Raises Refused or InvalidSpec."""
    wanted.query.check()
    held = (*NAMESPACES, wanted.agent_namespace)
    check_protected(wanted.query.namespace, held, wanted.base.get("acknowledge", ()))
    ask = check_ask(wanted.kind, wanted.ask, wanted.part)
    nodes = find_nodes(cluster, wanted.query.node_labels)
    found = select(ask, find_pods(cluster, wanted.query), nodes)
    base, notes = _with_peers(cluster, wanted)
    items = items_of(wanted.group, wanted.kind, found.pods, ask, wanted.part, base)
    _check_rights(cluster, found)
    return Resolved(
        items, found.matching, found.left_out, found.seed, found.how_many, (*found.notes, *notes)
    )


def _check_rights(cluster: Cluster, found: Selection) -> None:
    """Who may not delete a pod may not break it either."""
    missing = denied(cluster, tuple(sorted({pod.namespace for pod in found.pods})))
    if missing:
        shown = ", ".join(pod.full_name for pod in found.pods if pod.namespace in missing)
        raise Refused(
            f"you have no right to break pods in namespace {missing[0]}",
            f"none was hit: {shown}",
            "a Role is missing with verb 'delete' on resource 'pods' of the core group",
        )


def _with_peers(cluster: Cluster, wanted: Wanted) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The requests' base with the peers' addresses in the spec's `to`."""
    if wanted.peers is None:
        return wanted.base, ()
    if "to" not in wanted.kind.spec.model_fields:
        raise InvalidSpec(f"{wanted.kind.name} has no far end", "", "leave --to-pods out")
    peers = find_peers(cluster, wanted.peers, wanted.peer_zones)
    spec = dict(wanted.base.get("spec", {}))
    given = [spec["to"]] if spec.get("to") else []
    spec["to"] = ",".join([*given, *peers.networks])
    notes = (f"far ends: {spec['to']}", *peers.notes)
    return {**wanted.base, "spec": spec}, notes


def find_peers(cluster: Cluster, query: Query, zones: tuple[str, ...] = ()) -> Peers:
    """The addresses of pods, those of some zones only, and of the services before them."""
    pods = find_pods(cluster, query)
    services, _ = cluster.listed(ApiPath("services", query.namespace))
    everyone = find_pods(cluster, Query(query.namespace)) if query.labels else pods
    if zones:
        nodes = find_nodes(cluster)
        pods = [pod for pod in pods if pod.node in nodes and nodes[pod.node].zone in zones]
        # A service leads to pods of all zones: its address stands for none of them.
        services = []
    return peers_of(pods, services, everyone, ", ".join((query.labels, *zones)))


def resolve_nodes(
    cluster: Cluster, wanted: Wanted, target: Mapping[str, Any], names: tuple[str, ...]
) -> Resolved:
    """The same target on each of the nodes that are meant. Raises Refused or InvalidSpec."""
    nodes = find_nodes(cluster, wanted.query.node_labels)
    zones = wanted.ask.zones
    good = [node for node in nodes.values() if not zones or node.zone in zones]
    picked = select_nodes(good, names, wanted.ask.how_many, wanted.ask.seed)
    items = tuple(
        Item(
            node.name,
            "",
            FaultRequest.model_validate(
                {
                    **wanted.base,
                    "id": f"{wanted.group}-{number}",
                    "kind": wanted.kind.name,
                    "target": dict(target),
                }
            ),
        )
        for number, node in enumerate(picked, 1)
    )
    chosen = "" if names else str(wanted.ask.how_many)
    return Resolved(items, len(good), (), "" if names else wanted.ask.seed, chosen)
