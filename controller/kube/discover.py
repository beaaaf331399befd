"""Reading the cluster for a selection: pods, their nodes, and owners; nothing is changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from controller.kube.answers import ApiPath
from controller.kube.client import Cluster
from controller.kube.labels import parse_field_selector, parse_selector, selector_text
from controller.kube.objects import Node, Pod, node_from, pod_from
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.protected import GUARD

APPS, BATCH = "apps", "batch"
OWNERS: Mapping[str, tuple[str, str]] = {
    "deployment": ("deployments", APPS),
    "statefulset": ("statefulsets", APPS),
    "daemonset": ("daemonsets", APPS),
    "replicaset": ("replicasets", APPS),
    "job": ("jobs", BATCH),
}
"""Kinds that own pods through a selector of their own: (resource, API group)."""
SHORT = {"deploy": "deployment", "sts": "statefulset", "ds": "daemonset", "rs": "replicaset"}


@dataclass(frozen=True)
class Query:
    """Which pods, as the API server is asked."""

    namespace: str
    names: tuple[str, ...] = ()
    labels: str = ""
    fields: str = ""
    owner: str = ""
    node_labels: str = ""

    def check(self) -> None:
        """Raises InvalidSpec before anything is asked."""
        parse_selector(self.labels)
        parse_selector(self.node_labels)
        if self.fields:
            parse_field_selector(self.fields)
        if self.owner:
            owner_of(self.owner)
        if self.names and (self.labels or self.fields or self.owner):
            raise InvalidSpec("--pod names pods by themselves", "selectors cannot go with it")


def owner_of(text: str) -> tuple[str, str]:
    """`deployment/cart` as (kind, name). Raises InvalidSpec."""
    kind, slash, name = text.partition("/")
    kind = SHORT.get(kind.lower(), kind.lower().removesuffix("s"))
    if not slash or not name or kind not in OWNERS:
        raise InvalidSpec(
            f"{text!r} is no owner of pods", f"KIND/NAME; kinds are {', '.join(OWNERS)}"
        )
    return kind, name


def find_pods(cluster: Cluster, query: Query) -> list[Pod]:
    """The pods that the selectors give. Raises Refused when the namespace or owner is missing."""
    query.check()
    _check_namespace(cluster, query.namespace)
    path = ApiPath("pods", query.namespace)
    if query.names:
        found = [cluster.get(ApiPath("pods", query.namespace, name)) for name in query.names]
        return [pod_from(one) for one in found if one is not None]
    if query.owner:
        return _owned(cluster, query)
    items, _ = cluster.listed(path, query.labels, query.fields)
    return [pod_from(one) for one in items]


def _check_namespace(cluster: Cluster, name: str) -> None:
    try:
        found = cluster.get(ApiPath("namespaces", name=name))
    except Refused:
        return  # not everybody may read namespaces; the pods' own answer decides
    if found is None:
        raise Refused(f"there is no namespace {name}", f"at {cluster.server}", "kubectl get ns")
    if "deletionTimestamp" in found["metadata"]:
        raise Refused(
            f"namespace {name} is being deleted", "its pods end by themselves", "name another"
        )


def _owned(cluster: Cluster, query: Query) -> list[Pod]:
    """Pods whose controller is the owner, or a ReplicaSet of it; labels alone can be shared."""
    kind, name = owner_of(query.owner)
    resource, group = OWNERS[kind]
    found = cluster.get(ApiPath(resource, query.namespace, name, group))
    if found is None:
        raise Refused(f"there is no {kind} {query.namespace}/{name}", "", f"kubectl get {resource}")
    selector = found["spec"].get("selector") or {}
    labels = selector_text(selector.get("matchLabels") or {},
                           selector.get("matchExpressions") or ())  # fmt: skip
    uids = {found["metadata"]["uid"]}
    if kind == "deployment":
        sets, _ = cluster.listed(ApiPath("replicasets", query.namespace, group=APPS), labels)
        uids |= {
            one["metadata"]["uid"]
            for one in sets
            if uids & {o["uid"] for o in one["metadata"].get("ownerReferences", ())}
        }
    wanted = ",".join(part for part in (labels, query.labels) if part)
    items, _ = cluster.listed(ApiPath("pods", query.namespace), wanted, query.fields)
    pods = [pod_from(one) for one in items]
    return [pod for pod in pods if pod.owner is not None and pod.owner.uid in uids]


def find_nodes(cluster: Cluster, labels: str = "") -> dict[str, Node]:
    """All nodes that a selector gives, by name, however many pages they are."""
    parse_selector(labels)
    items, _ = cluster.listed(ApiPath("nodes"), labels)
    return {one["metadata"]["name"]: node_from(one) for one in items}


def check_protected(namespace: str, held: tuple[str, ...], known: Collection[str]) -> None:
    """Raises Refused for one of the namespaces `held`, unless its guard rail is in `known`."""
    if namespace in held and GUARD not in known:
        raise Refused(
            f"namespace {namespace} is protected",
            "it keeps the cluster, or faultctl itself, going",
            f"if you mean it, add: --i-know {GUARD}",
        )


def denied(cluster: Cluster, namespaces: tuple[str, ...]) -> tuple[str, ...]:
    """Namespaces whose pods this user may not delete: who may not end a pod may not break it."""
    return tuple(n for n in namespaces if not cluster.allowed("delete", ApiPath("pods", n)))
