"""Faults on the cluster's own objects: which they are, and what each would change; pure.

They are journaled by the controller (ledger.py), with no agent involved.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from controller.kube.ledger import FIELD_MANAGER, Patched, Place, Removed
from controller.kube.objects import Pod, pod_from
from controller.kube.patches import Change, changes_of, check_patch, shown
from nodeagent.model.errors import InvalidSpec
from nodeagent.model.kind import FaultSpec
from nodeagent.model.units import Duration

Object = Mapping[str, Any]
Chosen = Sequence[tuple[Place, Object]]
PAUSE_IMAGE = "registry.k8s.io/pause:3.10"


@dataclass(frozen=True)
class Work:
    """What a fault does to the cluster."""

    patched: tuple[Patched, ...] = ()
    removed: tuple[Removed, ...] = ()


def _right(spec: Any) -> None:
    """Most specs are right if they have the shape."""


def lines_of(work: Work) -> list[str]:
    """What would be done, a line each."""
    changed = [f"{one.place.shown} {shown(c)}" for one in work.patched for c in one.changes]
    removed = [
        f"{one.place.shown} is {'evicted' if one.evict else 'deleted'}" for one in work.removed
    ]
    return changed + removed


@dataclass(frozen=True)
class ClusterKind:
    """A fault kind on objects. on: what is chosen for it."""

    name: str
    summary: str
    doc: str
    spec: type[FaultSpec]
    on: Literal["pods", "nodes", "object"]
    work: Callable[[Any, Chosen, Sequence[Pod]], Work]
    """(spec, the chosen objects, all pods of the chosen nodes) to work; pure."""
    collateral: tuple[str, ...]
    remedies: tuple[str, ...]
    example: str
    at_once: bool = False
    """It is over as soon as it was done."""
    check: Callable[[Any], object] = _right
    """Raises InvalidSpec for a spec that no object takes."""


class KillSpec(FaultSpec):
    """How a pod is ended."""

    grace: Duration | None = Field(
        default=None, description="time to end in, 0s for none; by default the pod's own"
    )


def _kill(spec: KillSpec, chosen: Chosen, others: Sequence[Pod]) -> Work:
    grace = None if spec.grace is None else int(spec.grace.total_seconds())
    return Work(
        removed=tuple(
            Removed(place=place, uid=one["metadata"]["uid"], grace_s=grace) for place, one in chosen
        )
    )


class FailureSpec(FaultSpec):
    """What a failed pod runs instead."""

    image: str = Field(
        default=PAUSE_IMAGE, min_length=1, description="that its containers get; it does nothing"
    )


def _failure(spec: FailureSpec, chosen: Chosen, others: Sequence[Pod]) -> Work:
    found = []
    for place, one in chosen:
        changes = tuple(
            Change(path=("spec", "containers", n, "image"), had=True,
                   prior=container["image"], value=spec.image)
            for n, container in enumerate(one["spec"]["containers"])
            if container["image"] != spec.image
        )  # fmt: skip
        if not changes:
            raise InvalidSpec(f"pod {place.name} runs {spec.image} already")
        found.append(Patched(place=place, uid=one["metadata"]["uid"],
                             changes=changes))  # fmt: skip
    return Work(tuple(found))


class NoSpec(FaultSpec):
    """Nothing to choose."""


def _cordon(spec: FaultSpec, chosen: Chosen, others: Sequence[Pod]) -> Work:
    found = []
    for place, one in chosen:
        prior = one["spec"].get("unschedulable")
        if prior:
            raise InvalidSpec(f"node {place.name} is cordoned already")
        change = Change(path=("spec", "unschedulable"), had=prior is not None, prior=prior,
                        value=True)  # fmt: skip
        found.append(Patched(place=place, uid=one["metadata"]["uid"],
                             changes=(change,)))  # fmt: skip
    return Work(tuple(found))


def _drain(spec: FaultSpec, chosen: Chosen, others: Sequence[Pod]) -> Work:
    goes = [
        Removed(place=Place(resource="pods", namespace=pod.namespace, name=pod.name),
                uid=pod.uid, evict=True)
        for pod in others
        if not (pod.static or pod.deleting) and pod.phase in ("Pending", "Running")
        and (pod.owner is None or pod.owner.kind != "DaemonSet")
    ]  # fmt: skip
    return Work(_cordon(spec, chosen, others).patched, tuple(goes))


def _as_text(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict) else value


PatchText = Annotated[
    str, BeforeValidator(_as_text), WithJsonSchema({"type": ["string", "object"]})
]
"""In a file it can be written as a mapping."""


class PatchSpec(FaultSpec):
    """Which object, and what of it is changed."""

    object: str = Field(
        pattern=r"^[A-Z][A-Za-z0-9]*/[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        description="KIND/NAME, such as Deployment/cart; its namespace by -n",
    )
    api_version: str = Field(default="v1", description="of the kind, such as apps/v1")
    patch: PatchText = Field(description='JSON merge patch, such as {"spec":{"replicas":0}}')
    patch_type: Literal["merge", "strategic"] = Field(
        default="merge",
        description="of lists: merge replaces them; strategic merges the items of containers, env, "
        "ports, volumes and the like by their keys, as kubectl patch does",
    )
    field_manager: str = Field(
        default=FIELD_MANAGER, pattern=r"^[!-~]([ -~]{0,126}[!-~])?$",
        description="the name that managedFields has for who made the change",
    )  # fmt: skip


def parsed_patch(text: str) -> dict[str, Any]:
    """A merge patch. Raises InvalidSpec, also for what could not be put back."""
    try:
        found = json.loads(text)
    except ValueError as exc:
        raise InvalidSpec("--patch is not JSON", str(exc)) from exc
    if not isinstance(found, dict) or not found:
        raise InvalidSpec("--patch is not a merge patch", "an object with what is to be changed")
    check_patch(found)
    return found


def _patch(spec: PatchSpec, chosen: Chosen, others: Sequence[Pod]) -> Work:
    patch, strategic = parsed_patch(spec.patch), spec.patch_type == "strategic"
    found = [
        Patched(place=place, uid=one["metadata"]["uid"], manager=spec.field_manager,
                changes=changes_of(one, patch, strategic=strategic))
        for place, one in chosen
    ]  # fmt: skip
    return Work(tuple(found))


def pods_on(items: Sequence[Object]) -> list[Pod]:
    """Pods from the API's JSON."""
    return [pod_from(one) for one in items]


_KINDS = (
    ClusterKind(
        "pod-kill", "pods are deleted", "The pods that are chosen are deleted, once; what makes "
        "them makes others. Nothing is armed afterwards.", KillSpec, "pods", _kill,
        ("a deleted pod does not come back; its owner makes another",),
        ("none is needed: it is over at once",),
        "faultctl inject pod-kill -n shop -l app=cart --pick 1 --grace 0s", at_once=True,
    ),
    ClusterKind(
        "pod-failure", "pods run an image that does nothing", "The containers of the pods get "
        "another image, so that they run and serve nothing; the images come back with the "
        "revert. The pods stay where they are.", FailureSpec, "pods", _failure,
        ("containers restart twice: what they had in memory is gone",),
        ("delete the pod: its owner makes one with the right image",),
        "faultctl inject pod-failure -n shop -l app=cart --pick 1 --lease 45s",
    ),
    ClusterKind(
        "node-cordon", "nodes take no new pods", "spec.unschedulable of the nodes is set.",
        NoSpec, "nodes", _cordon, ("pods that wait for such a node stay Pending",),
        ("kubectl uncordon NODE",), "faultctl inject node-cordon --on-node n1",
    ),
    ClusterKind(
        "node-drain", "nodes are cordoned and their pods evicted", "Like kubectl drain: pods of "
        "DaemonSets and static pods stay, PodDisruptionBudgets are kept. The revert uncordons.",
        NoSpec, "nodes", _drain, ("evicted pods do not come back to the node by themselves",
        "data in emptyDir volumes of evicted pods is gone"), ("kubectl uncordon NODE",),
        "faultctl inject node-drain --on-node n1",
    ),
    ClusterKind(
        "k8s-patch", "fields of an object are changed", "A JSON merge patch, or one that merges "
        "items of lists as well (strategic). The revert puts the "
        "prior values back where ours still are; what others changed meanwhile stays theirs. "
        "When a controller takes the change away, that is an event of the fault.",
        PatchSpec, "object", _patch, ("what controllers did because of it",),
        ("put the field back: kubectl edit, or the operator's own source",),
        "faultctl inject k8s-patch -n shop --api-version apps/v1 --object Deployment/cart "
        "--patch '{\"spec\":{\"replicas\":0}}'", check=lambda spec: parsed_patch(spec.patch),
    ),
)  # fmt: skip


def cluster_kinds() -> dict[str, ClusterKind]:
    """By name."""
    return {kind.name: kind for kind in _KINDS}
