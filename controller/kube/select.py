"""From selectors and pods to what is hit; pure.

Pods that cannot be hit are left out by rule and named with the reason; one that was named
itself is an error instead. Nothing found is an error, and so is everything unless asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from controller.kube.choose import HowMany, capped, chosen
from controller.kube.objects import Container, Node, Pod
from nodeagent.model.errors import InvalidSpec, Refused

SIDECARS = ("istio-proxy", "linkerd-proxy", "envoy-sidecar", "consul-dataplane", "kuma-sidecar",
            "daprd", "cloud-sql-proxy", "vault-agent", "aws-appmesh-envoy")  # fmt: skip
"""Names of helpers that are injected beside a workload; hit only when they are named."""
AGENT_LABEL = ("app.kubernetes.io/name", "faultd")
MAX_NAMED = 8


@dataclass(frozen=True)
class Ask:
    """What a user asks for. Without `names`, all that the selectors leave over are meant."""

    namespace: str
    names: tuple[str, ...] = ()
    selective: bool = False
    """Whether anything but the namespace narrows the choice."""
    nodes: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    node_labels: bool = False
    how_many: HowMany | None = None
    seed: str = ""
    zone_cap: HowMany | None = None
    """At most so many of the pods of each zone."""
    containers: tuple[str, ...] = ()
    volume: str | None = None
    network: bool = False
    """Whether the kind acts on the pod's network."""
    whole_device: bool = False
    """Whether the kind can take a whole disk of the node away."""


@dataclass(frozen=True)
class LeftOut:
    """A pod that matches and is not hit."""

    pod: str
    reason: str


@dataclass(frozen=True)
class Selection:
    """What is hit, of what, and what is not."""

    pods: tuple[Pod, ...]
    matching: int
    """Pods that could be hit; the base of a share."""
    left_out: tuple[LeftOut, ...] = ()
    seed: str = ""
    how_many: str = "all"
    notes: tuple[str, ...] = field(default=())


def select(ask: Ask, pods: Sequence[Pod], nodes: Mapping[str, Node]) -> Selection:
    """The pods that are hit. Raises Refused or InvalidSpec.

    pods: those that the API server's selectors gave. nodes: by name, all of the cluster
    that the ask allows.
    """
    reasons = {pod.full_name: why_not(pod, ask, nodes) for pod in pods}
    good = [pod for pod in pods if reasons[pod.full_name] is None]
    out = tuple(LeftOut(name, why) for name, why in sorted(reasons.items()) if why)
    if ask.names:
        _check_named(ask, pods, out)
        return Selection(tuple(sorted(good, key=lambda p: p.full_name)), len(good), out)
    if not good:
        raise Refused(
            f"no pod of namespace {ask.namespace} can be hit",
            _first(out) if out else "nothing matches",
            "look with the same selectors: kubectl get pods -n " + ask.namespace,
        )
    if ask.how_many is None and (len(good) > 1 or not ask.selective):
        raise Refused(
            f"{len(good)} pods match, and how many are meant is not said",
            _listed([pod.name for pod in good]),
            "add --pick 1, --pick 50% or --all",
        )
    how_many = ask.how_many or HowMany(number=1)
    able: Sequence[Pod] = good
    notes: tuple[str, ...] = ()
    if ask.zone_cap is not None:
        able = capped(good, ask.zone_cap, ask.seed, lambda p: nodes[p.node].zone,
                      lambda p: p.full_name)  # fmt: skip
        notes = (f"at most {ask.zone_cap} of each zone: {len(able)} of {len(good)} remain",)
    picked = chosen(able, how_many, ask.seed, lambda pod: pod.full_name)
    return Selection(picked, len(good), out, ask.seed, str(how_many), notes)


def _check_named(ask: Ask, pods: Sequence[Pod], out: tuple[LeftOut, ...]) -> None:
    found = {pod.name for pod in pods}
    missing = [name for name in ask.names if name not in found]
    if missing:
        raise Refused(
            f"there is no pod {ask.namespace}/{missing[0]}",
            _listed(missing) if len(missing) > 1 else "",
            f"kubectl get pods -n {ask.namespace}",
        )
    if out:
        raise Refused(f"pod {out[0].pod} cannot be hit", out[0].reason)


def why_not(pod: Pod, ask: Ask, nodes: Mapping[str, Node]) -> str | None:
    """Why a pod is left out; None if it can be hit."""
    state = _state(pod)
    if state is not None:
        return state
    if pod.labels.get(AGENT_LABEL[0]) == AGENT_LABEL[1]:
        return "it is faultctl's own agent"
    if pod.static and not ask.names:
        return "it is a static pod, run by its node itself; only by name: --pod"
    if ask.network and pod.host_network:
        return "it uses the node's own network: the whole node would be hit"
    return _elsewhere(pod, ask, nodes) or _container_missing(pod, ask)


def _state(pod: Pod) -> str | None:
    if pod.deleting:
        return "it is being deleted"
    if pod.phase in ("Succeeded", "Failed"):
        return f"it has completed ({pod.phase})"
    if pod.phase == "Pending":
        return "it is Pending" + ("" if pod.node else ", and not scheduled to a node")
    if pod.phase != "Running":
        return f"its phase is {pod.phase}: its node does not answer"
    return None if pod.node else "it is on no node"


def _elsewhere(pod: Pod, ask: Ask, nodes: Mapping[str, Node]) -> str | None:
    node = nodes.get(pod.node)
    if ask.nodes and pod.node not in ask.nodes:
        return f"it is on node {pod.node}"
    if node is None:
        return (
            f"node {pod.node} is not among those selected"
            if ask.node_labels
            else (f"there is no node {pod.node}")
        )
    if ask.zones and node.zone not in ask.zones:
        return f"its node is in zone {node.zone or '(none)'}"
    if not node.ready:
        return f"node {node.name} is not Ready"
    if ask.whole_device and node.control_plane and pod.node not in ask.nodes:
        return f"node {node.name} runs the control plane; only by name: --on-node"
    return None


def _container_missing(pod: Pod, ask: Ask) -> str | None:
    try:
        containers_of(pod, ask.containers)
    except FaultReason as exc:
        return str(exc)
    return None


class FaultReason(Exception):
    """Why a pod's containers are not as asked; becomes a reason to leave the pod out."""


def containers_of(pod: Pod, asked: tuple[str, ...]) -> tuple[Container, ...]:
    """The containers that are meant: those named, or all but init containers and sidecars.

    Raises FaultReason.
    """
    known = {one.name: one for one in pod.containers}
    for name in asked:
        if name not in known:
            named = ", ".join(known)
            raise FaultReason(f"it has no container {name} (it has: {named})")
        if known[name].init and not known[name].sidecar:
            raise FaultReason(f"container {name} is an init container: it has ended")
    if asked:
        found = [known[name] for name in asked]
    else:
        found = [c for c in pod.containers if not (c.init or c.ephemeral or is_sidecar(pod, c))]
    if not found:
        raise FaultReason("it has nothing but sidecars; name one: --container")
    return tuple(found)


def is_sidecar(pod: Pod, container: Container) -> bool:
    """A helper beside a workload, by its name or as an init container that stays.

    A pod with nothing else has no sidecars: the container is then its workload.
    """
    if container.sidecar:
        return True
    others = [c for c in pod.containers if not c.init and not c.ephemeral]
    named = [c for c in others if c.name in SIDECARS]
    return container.name in SIDECARS and len(named) < len(others)


def whole_pod(pod: Pod, meant: tuple[Container, ...]) -> bool:
    """Whether the containers meant are all that stay: then the pod's own cgroup is hit, which
    holds through restarts of its containers."""
    stay = {c.name for c in pod.containers if not c.ephemeral and (c.sidecar or not c.init)}
    return {c.name for c in meant} == stay


def next_pod(pod: Pod, ask: Ask) -> tuple[Pod, Ask]:
    """A pod that takes the place of one that was hit, and the ask for it alone, on whatever node
    it is. Raises Refused as long as it cannot be hit."""
    ask = replace(ask, names=(pod.name,), nodes=(), zones=())
    # A pod whose sandbox is there is hit before its first container starts.
    early = replace(pod, phase="Running") if pod.phase == "Pending" and pod.node else pod
    reason = why_not(early, ask, {pod.node: Node(pod.node)})
    if reason is not None:
        raise Refused(f"pod {pod.full_name} cannot be hit", reason)
    return early, ask


def select_nodes(
    nodes: Sequence[Node], names: tuple[str, ...], how_many: HowMany | None, seed: str
) -> tuple[Node, ...]:
    """Nodes for faults on nodes: an empty choice is refused, control planes only by name."""
    known = {node.name: node for node in nodes}
    missing = [name for name in names if name not in known]
    if missing:
        raise Refused(f"there is no node {missing[0]}", f"there are: {_listed(sorted(known))}")
    if names:
        return tuple(known[name] for name in dict.fromkeys(names))
    good = [node for node in nodes if node.ready and not node.control_plane]
    if not good:
        raise Refused("no node can be hit", "none is Ready, or all run the control plane")
    if how_many is None:
        raise InvalidSpec(
            "which nodes?", f"{len(good)} could be meant", "name them, or add --pick 1 or --all"
        )
    return chosen(good, how_many, seed, lambda node: node.name)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def _first(out: Sequence[LeftOut]) -> str:
    return _listed([f"{one.pod}: {one.reason}" for one in out[:3]])
