"""What a fault on a cluster's objects would act on: reads the API, changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from controller.kube.answers import ApiPath, forbidden
from controller.kube.client import Cluster
from controller.kube.discover import Query, check_protected, denied, find_nodes, find_pods
from controller.kube.kinds import ClusterKind, PatchSpec, Work, pods_on
from controller.kube.ledger import Place
from controller.kube.reader import ObjectName, path_of
from controller.kube.select import Ask, select, select_nodes
from nodeagent.model.errors import Refused
from nodeagent.model.protected import NAMESPACES


@dataclass(frozen=True)
class Chosen:
    """The work, and what to say about the choice."""

    work: Work
    lines: tuple[str, ...] = ()


def choose(
    cluster: Cluster, kind: ClusterKind, spec: Any, query: Query, ask: Ask, known: tuple[str, ...]
) -> Chosen:
    """What the kind would do. known: guard rails that the user crosses. Raises Refused, ..."""
    if kind.on == "nodes":
        return _nodes(cluster, kind, spec, query, ask)
    if kind.on == "object":
        return _object(cluster, kind, spec, query.namespace, known)
    check_protected(query.namespace, NAMESPACES, known)
    found = select(ask, find_pods(cluster, query), find_nodes(cluster, query.node_labels))
    missing = denied(cluster, (query.namespace,))
    if missing:
        raise Refused(
            f"you have no right to break pods in namespace {missing[0]}", "none was hit",
            "a Role is missing with verb 'delete' on resource 'pods' of the core group",
        )  # fmt: skip
    static = [pod.full_name for pod in found.pods if pod.static]
    if static:
        raise Refused(
            f"{kind.name} does nothing to {static[0]}",
            "it is a static pod: what the API shows is its mirror, which the kubelet makes again",
            f"faults on its node hit it, such as: faultctl inject kill --pod {static[0]}",
        )
    chosen = [_read(cluster, Place(resource="pods", namespace=p.namespace, name=p.name))
              for p in found.pods]  # fmt: skip
    out = tuple(f"left out {one.pod}: {one.reason}" for one in found.left_out)
    head = f"{len(chosen)} of {found.matching} pods"
    seed = f" (seed {found.seed}, shares are rounded up)" if found.seed else ""
    return Chosen(kind.work(spec, chosen, ()), (head + seed, *out))


def _read(cluster: Cluster, place: Place) -> tuple[Place, dict[str, Any]]:
    found = cluster.get(place.path)
    if found is None:
        raise Refused(f"{place.shown} is gone", "it went while it was looked at", "try again")
    return place, found


def _nodes(cluster: Cluster, kind: ClusterKind, spec: Any, query: Query, ask: Ask) -> Chosen:
    nodes = find_nodes(cluster, query.node_labels)
    good = [node for node in nodes.values() if not ask.zones or node.zone in ask.zones]
    picked = select_nodes(good, ask.nodes, ask.how_many, ask.seed)
    chosen, others = [], []
    for node in picked:
        chosen.append(_read(cluster, Place(resource="nodes", name=node.name)))
        items, _ = cluster.listed(ApiPath("pods"), fields=f"spec.nodeName={node.name}")
        others += pods_on(items)
    line = f"{len(picked)} of {len(good)} nodes: {', '.join(node.name for node in picked)}"
    return Chosen(kind.work(spec, chosen, others), (line,))


def _object(
    cluster: Cluster, kind: ClusterKind, spec: PatchSpec, namespace: str, known: tuple[str, ...]
) -> Chosen:
    sort, _, name = spec.object.partition("/")
    path = path_of(cluster, ObjectName(spec.api_version, sort, namespace, name))
    if path.namespace:
        check_protected(path.namespace, NAMESPACES, known)
    place = Place.of(path)
    found = cluster.get(place.path)
    if found is None:
        at = f" in namespace {place.namespace}" if place.namespace else ""
        raise Refused(f"there is no {sort} {name}{at}", f"at {cluster.server}")
    return Chosen(kind.work(spec, [(place, found)], ()))


def check_rights(cluster: Cluster, work: Work) -> None:
    """Raises Refused for the first thing that this user may not do of it."""
    needed = {("patch", replace(one.place.path, name="")) for one in work.patched}
    for pod in work.removed:
        path = replace(pod.place.path, name="")
        verb = "create" if pod.evict else "delete"
        needed.add((verb, replace(path, subresource="eviction") if pod.evict else path))
    for verb, path in sorted(needed, key=str):
        if not cluster.allowed(verb, path):
            raise forbidden("none was touched", verb, path)
