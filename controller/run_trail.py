"""What a run writes down of its pods at its start, so that whoever takes it over knows the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from controller.experiment_pods import FoundPod, FoundPods, PodsEntry
from controller.kube.discover import Query, find_pods
from controller.kube.lookups import Lookups
from controller.kube.objects import Pod
from controller.kube.select import Ask, Selection


def found_pods(name: str, ask: Ask, found: Selection, names: dict[str, str]) -> FoundPods:
    """What came of an entry; `names` has what the run calls the nodes of the cluster."""
    return FoundPods(
        target=name,
        namespace=ask.namespace,
        matching=found.matching,
        how_many=found.how_many,
        seed=found.seed,
        pods=tuple(
            FoundPod(
                pod=pod.full_name,
                uid=pod.uid,
                node=names[pod.node],
                containers={c.name: c.container_id for c in pod.containers if c.running},
            )
            for pod in found.pods
        ),
        left_out={one.pod: one.reason for one in found.left_out},
        notes=found.notes,
    )


def follows(entry: PodsEntry, pod: Pod) -> Literal["", "move", "stay"]:
    """Whether something can take a pod's place, and is to be hit then."""
    return entry.follow or "" if pod.owner is not None and not pod.static else ""


def with_trail(
    cluster: Any,
    found: FoundPods,
    entry: PodsEntry,
    query: Query,
    pods: tuple[Sequence[Pod], Sequence[Pod]],
) -> FoundPods:
    """With owners and volumes, and all pods that are there already and are not hit.

    pods: those that were chosen, and those that the query gave. Raises Refused, Unreachable.
    """
    if entry.follow is None:
        return found
    chosen, there = pods
    if query.names:
        # A pod that was named may come back under another name.
        there = find_pods(cluster, replace(query, names=()))
    lookups = Lookups(cluster, entry.volume)
    mine = {pod.uid: pod for pod in chosen}
    followed = tuple(_with_workload(one, mine[one.uid], entry, lookups) for one in found.pods)
    bare = [one.pod for one in followed if not one.owner]
    notes = (f"nothing takes the place of {', '.join(bare)}: no workload has it",) if bare else ()
    others = tuple(sorted({pod.uid for pod in there} - mine.keys()))
    return found.model_copy(
        update={
            "pods": followed,
            "follow": entry.follow,
            "others": others,
            "notes": (*found.notes, *notes),
        }
    )


def _with_workload(one: FoundPod, pod: Pod, entry: PodsEntry, lookups: Lookups) -> FoundPod:
    if not follows(entry, pod):
        return one
    update = {"owner": lookups.owner_of(pod), "place": lookups.place_of(pod)}
    return one.model_copy(update=update)
