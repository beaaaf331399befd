"""From an experiment to a resolved plan; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from graphlib import CycleError, TopologicalSorter
from typing import Any

from controller.experiment import Experiment, FaultEntry, StageEntry
from controller.experiment_object_check import on_objects
from controller.experiment_objects import CLUSTER, object_target, words_of
from controller.experiment_pods import Found, Hit
from controller.kube.kinds import cluster_kinds
from controller.run_plan import GroupType, PlanChange, PlanItem, RunPlan, sorted_items
from nodeagent.model.errors import InvalidSpec

_MS = 1_000_000
AT_ONCE_NS = 1_000_000_000


def ns(value: timedelta) -> int:
    """Nanoseconds, exact."""
    return (value // timedelta(microseconds=1)) * 1000


def stage_spans(stages: dict[str, StageEntry]) -> dict[str, tuple[int, int]]:
    """Start and end of each stage. Raises InvalidSpec naming the cycle."""
    graph = {name: set(stage.after) for name, stage in stages.items()}
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as exc:
        raise InvalidSpec(
            "the stages wait for each other in a circle", " -> ".join(exc.args[1])
        ) from exc
    spans: dict[str, tuple[int, int]] = {}
    for name in order:
        if name not in stages:
            continue
        stage = stages[name]
        start = max((spans[other][1] for other in stage.after if other in spans), default=0)
        start += ns(stage.delay)
        spans[name] = (start, start + ns(stage.duration))
    return spans


def plan_experiment(experiment: Experiment, found: Found | None = None) -> RunPlan:
    """The timeline of an experiment's faults, without noise. Raises InvalidSpec.

    found: the pods of its targets; without it, one item without a node stands for them.
    """
    spans = stage_spans(experiment.stages)
    items: list[PlanItem] = []
    changes: list[PlanChange] = []
    for name, fault in experiment.faults.items():
        for slot_name, start, end in _occurrences(experiment, name, fault, spans, changes):
            hits = [
                hit
                for target_name in fault.targets
                for hit in _hits(experiment, (name, slot_name), target_name, found)
            ]
            many = len(hits) > 1 and _on_pods(experiment, fault)
            whole = f"{slot_name}/pods" if many and not on_objects(fault) else ""
            for target_name, hit in hits:
                slot = _slot(slot_name, fault, target_name, hit)
                span = (start, end)
                items.append(_item(experiment, name, fault, slot, (target_name, hit), span, whole))
    if found is not None:
        items = [_with_spec(item, found.specs.get(item.name)) for item in items]
    return RunPlan(
        experiment=experiment.name,
        seed=experiment.seed,
        end_ns=ns(experiment.duration),
        items=sorted_items(_ends_together(experiment, items)),
        changes=tuple(changes),
        cluster=found.cluster if found else "",
        pods=found.pods if found else (),
        objects=tuple(found.objects) if found else (),
    )


def _with_spec(item: PlanItem, spec: Mapping[str, Any] | None) -> PlanItem:
    return item if spec is None else item.model_copy(update={"spec": dict(spec)})


def _on_pods(experiment: Experiment, fault: FaultEntry) -> bool:
    return any(experiment.targets[name].pods is not None for name in fault.targets)


def _hits(
    experiment: Experiment, of: tuple[str, str], target_name: str, found: Found | None
) -> list[tuple[str, Hit]]:
    """What a fault, by its name and slot, hits of a target: (the target's name, where and what)."""
    entry, (fault, slot) = experiment.targets[target_name], of
    if on_objects(experiment.faults[fault]):
        return [(target_name, _of_cluster(experiment, fault, slot, target_name, found))]
    if entry.pods is None:
        zone = experiment.nodes[entry.node].zone
        return [(target_name, Hit(entry.node, zone, "", entry.target))]
    if found is None or found.hits is None:
        return [(target_name, Hit("", "", "", words_of(entry.pods)))]
    return [(target_name, hit) for hit in found.hits[fault, target_name]]


def _of_cluster(
    experiment: Experiment, fault: str, slot: str, target_name: str, found: Found | None
) -> Hit:
    """One fault on objects, chosen when it starts; each repetition by a seed of its own."""
    target = experiment.targets[target_name]
    entry = target.pods or target.objects
    if entry is None:
        raise InvalidSpec(f"{target_name} is no object of a cluster")
    known = [one for one in found.objects if one.fault == fault] if found else []
    space = next((one.namespace for one in known if one.target == target_name), None)
    seed = f"{experiment.seed} {target_name} {slot}"
    return Hit(CLUSTER, "", "", object_target(entry, seed, space))


def _slot(slot_name: str, fault: FaultEntry, target_name: str, hit: Hit) -> str:
    many = len(fault.targets) > 1 or hit.name
    parts = [slot_name, target_name if many else "", hit.name]
    return "/".join(part for part in parts if part)


def _occurrences(
    experiment: Experiment,
    name: str,
    fault: FaultEntry,
    spans: dict[str, tuple[int, int]],
    changes: list[PlanChange],
) -> Iterator[tuple[str, int, int]]:
    begin, limit = spans.get(fault.stage or "", (0, ns(experiment.duration)))
    start = begin + ns(fault.at)
    length = _life(experiment, fault)
    if fault.repeat is None:
        yield name, start, limit if length is None else min(start + length, limit)
        return
    period = ns(fault.repeat.every)
    length = period if length is None else length
    free = 0
    for number in range(fault.repeat.times):
        slot = f"{name}#{number + 1}"
        nominal = start + number * period
        actual = max(nominal, free)
        if actual > nominal and fault.repeat.overlap == "skip":
            text = "the one before still lives"
            changes.append(PlanChange(slot=slot, action="dropped", rule="overlap", detail=text))
            continue
        if actual > nominal:
            text = f"by {(actual - nominal) // _MS} ms"
            changes.append(PlanChange(slot=slot, action="delayed", rule="overlap", detail=text))
        free = actual + length
        yield slot, actual, free


def _life(experiment: Experiment, fault: FaultEntry) -> int | None:
    """How long a fault lives by the file; one that is over at once, as long as it may be late."""
    if fault.duration is None and _at_once(fault):
        period = ns(experiment.late) + AT_ONCE_NS
        return min(period, ns(fault.repeat.every)) if fault.repeat else period
    return None if fault.duration is None else ns(fault.duration)


def _at_once(fault: FaultEntry) -> bool:
    return on_objects(fault) and cluster_kinds()[fault.kind].at_once


def _group_of(experiment: Experiment, fault: str) -> tuple[str, GroupType]:
    for name, group in experiment.groups.items():
        if fault in group.faults:
            return name, group.type
    return "", "single"


def _item(
    experiment: Experiment,
    name: str,
    fault: FaultEntry,
    slot: str,
    on: tuple[str, Hit],
    span: tuple[int, int],
    whole: str,
) -> PlanItem:
    target_name, hit = on
    group, group_type = _group_of(experiment, name)
    if whole and not group:
        group, group_type = whole, "pods"
    return PlanItem(
        slot=slot,
        name=name,
        node=hit.node,
        zone=hit.zone,
        service=experiment.targets[target_name].service,
        target_name="/".join(part for part in (target_name, hit.name) if part),
        kind=fault.kind,
        target=dict(hit.target),
        spec=fault.spec,
        mechanism=fault.mechanism,
        acknowledge=fault.acknowledge,
        group=group,
        group_type=group_type,
        whole=whole,
        start_ns=span[0],
        end_ns=span[1],
        to_the_end=fault.duration is None
        and fault.stage is None
        and fault.repeat is None
        and not _at_once(fault),
        truth=fault.truth,
        remedies=fault.remedies,
        follow=hit.follow,
    )


def _ends_together(experiment: Experiment, items: list[PlanItem]) -> Iterator[PlanItem]:
    """Correlated faults share a cause: they have one revert, at the last of their ends."""
    last: dict[str, int] = {}
    for item in items:
        if item.group_type == "correlated":
            last[item.group] = max(item.end_ns, last.get(item.group, 0))
    for item in items:
        end = last.get(item.group, item.end_ns)
        yield item if end == item.end_ns else item.model_copy(update={"end_ns": end})
