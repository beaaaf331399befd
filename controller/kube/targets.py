"""From selected pods to one request for each fault on each node; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from controller.kube.objects import Pod
from controller.kube.select import Ask, containers_of, whole_pod
from controller.kube.volumes import volume_target
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.kind import FaultKind
from nodeagent.model.plan import FaultRequest
from nodeagent.model.target import STANDS_FOR

GROUP_SLUG = 18
"""Characters of a kind's name in a group's id, so that `GROUP-NNNNN` is an id (at most 32)."""
MAX_GROUP = 99_999
EACH_CONTAINER = ("kill",)
"""Kinds that would end the pod's sandbox with the pod's cgroup: they are given its containers."""


@dataclass(frozen=True)
class Item:
    """One fault of a group: on which node, for which pod, as its agent is asked for it."""

    node: str
    pod: str
    request: FaultRequest


def is_network(kind: FaultKind) -> bool:
    """Whether a kind acts on a net namespace."""
    return "netns" in kind.targets


def is_disk(kind: FaultKind) -> bool:
    """Whether a kind acts on devices, volumes or files."""
    return not set(STANDS_FOR["pod-volume"]).isdisjoint(kind.targets)


def check_ask(kind: FaultKind, ask: Ask, part: Mapping[str, Any]) -> Ask:
    """The ask with what the kind makes of it. Raises InvalidSpec for what does not go together."""
    if is_disk(kind) and ask.volume is None:
        raise InvalidSpec(
            f"{kind.name} acts on a disk: which volume of the pod?",
            "",
            "add --volume NAME, as in the pod's spec.volumes",
        )
    if not is_disk(kind) and (ask.volume is not None or part):
        raise InvalidSpec(f"{kind.name} does not act on volumes", "", "leave --volume out")
    if not is_disk(kind) and set(STANDS_FOR["pod"]).isdisjoint(kind.targets):
        raise InvalidSpec(
            f"{kind.name} does not take pods",
            f"it takes: {', '.join(kind.targets)}",
            "name a node with --on-node, and the target on it",
        )
    if is_network(kind) and ask.containers:
        raise InvalidSpec(
            f"{kind.name} hits a pod as a whole",
            "all containers of a pod share one net namespace",
            "leave --container out",
        )
    whole = is_disk(kind) and not part.get("file")
    return replace(ask, network=is_network(kind), whole_device=whole)


def pod_targets(kind: FaultKind, pod: Pod, ask: Ask, part: Mapping[str, Any]) -> list[Any]:
    """The targets that hit a pod: the pod, its containers that are meant, or its volume."""
    if ask.volume is not None:
        return [volume_target(pod, ask.volume, ask.containers, part)]
    base = {"type": "pod", "pod": pod.full_name, "uid": pod.cgroup_uid}
    if is_network(kind):
        return [base]
    meant = containers_of(pod, ask.containers)
    if not ask.containers and whole_pod(pod, meant) and kind.name not in EACH_CONTAINER:
        return [base]
    dead = [one.name for one in meant if not one.running]
    if dead:
        raise Refused(
            f"container {dead[0]} of pod {pod.full_name} does not run",
            "a container has a cgroup only while it runs",
            "hit the whole pod, or try again when it runs",
        )
    return [{**base, "container": c.name, "container_id": c.container_id} for c in meant]


def items_of(
    group: str,
    kind: FaultKind,
    pods: Iterable[Pod],
    ask: Ask,
    part: Mapping[str, Any],
    base: Mapping[str, Any],
) -> tuple[Item, ...]:
    """All faults of a group, their ids `GROUP-1`, `GROUP-2`, ... Raises Refused or InvalidSpec.

    base: the other fields of each FaultRequest.
    """
    wanted = [(pod, target) for pod in pods for target in pod_targets(kind, pod, ask, part)]
    if len(wanted) > MAX_GROUP:
        raise Refused(f"a group has at most {MAX_GROUP} faults", f"{len(wanted)} are asked for")
    return tuple(
        Item(
            pod.node,
            pod.full_name,
            FaultRequest.model_validate(
                {**base, "id": f"{group}-{number}", "kind": kind.name, "target": target}
            ),
        )
        for number, (pod, target) in enumerate(wanted, 1)
    )


def group_id(kind: str, token: str) -> str:
    """A new group's id, from six random hex digits."""
    slug = re.sub("[^a-z0-9]+", "-", kind)[:GROUP_SLUG].strip("-")
    return f"{slug}-{token}"


def of_group(fault_id: str, group: str) -> bool:
    """Whether a fault belongs to a group, or is it."""
    head, _, number = fault_id.rpartition("-")
    return fault_id == group or (head == group and number.isdigit() and len(number) <= 5)
