"""From an experiment, or a schedule and an experiment's targets, to a resolved plan; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from graphlib import CycleError, TopologicalSorter
from typing import Any

from controller.experiment import Experiment, FaultEntry, StageEntry
from controller.experiment_pods import Found, Hit
from controller.experiment_truth import drawn_truth
from controller.run_plan import GroupType, PlanChange, PlanItem, RunPlan, sorted_items
from controller.schedule_core import Place
from controller.schedule_model import Schedule, ScheduledFault
from nodeagent.faults import kinds
from nodeagent.model.errors import InvalidSpec

_MS = 1_000_000


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
                for hit in _hits(experiment, name, target_name, found)
            ]
            whole = f"{slot_name}/pods" if _on_pods(experiment, fault) and len(hits) > 1 else ""
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
    )


def _with_spec(item: PlanItem, spec: Mapping[str, Any] | None) -> PlanItem:
    return item if spec is None else item.model_copy(update={"spec": dict(spec)})


def _on_pods(experiment: Experiment, fault: FaultEntry) -> bool:
    return any(experiment.targets[name].pods is not None for name in fault.targets)


def _hits(
    experiment: Experiment, fault: str, target_name: str, found: Found | None
) -> list[tuple[str, Hit]]:
    """What a fault hits of a target: (name of the target, where and what)."""
    entry = experiment.targets[target_name]
    if entry.pods is None:
        zone = experiment.nodes[entry.node].zone
        return [(target_name, Hit(entry.node, zone, "", entry.target))]
    if found is None or found.hits is None:
        asked = entry.pods.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return [(target_name, Hit("", "", "", {"type": "pods", **asked}))]
    return [(target_name, hit) for hit in found.hits[fault, target_name]]


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
    length = None if fault.duration is None else ns(fault.duration)
    if fault.repeat is None:
        yield name, start, limit if length is None else start + length
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
        to_the_end=fault.duration is None and fault.stage is None and fault.repeat is None,
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


# --- schedules ---------------------------------------------------------------------------


def places_of(experiment: Experiment) -> tuple[Place, ...]:
    """The experiment's targets as places that a schedule can draw, one for each service.

    Raises InvalidSpec if two targets of a service are on two nodes: a place has one.
    """
    found: dict[str, Place] = {}
    for entry in experiment.targets.values():
        if entry.pods is not None:
            continue  # which kinds a pod takes, and where it is, is known when a run starts
        takes = _kinds_for(str(entry.target.get("type", "")))
        if entry.kinds is not None:
            takes &= frozenset(entry.kinds)
        zone = experiment.nodes[entry.node].zone if entry.node in experiment.nodes else ""
        known = found.get(entry.service)
        if known is not None and known.node != entry.node:
            raise InvalidSpec(
                f"the service {entry.service} has targets on {known.node} and on {entry.node}",
                "a schedule counts faults by service, node and zone",
                "give them services of their own",
            )
        takes |= known.kinds or frozenset() if known else frozenset()
        found[entry.service] = Place(entry.service, entry.node, zone, takes)
    return tuple(found[name] for name in sorted(found))


def _kinds_for(target_type: str) -> frozenset[str]:
    return frozenset(name for name, kind in kinds().items() if target_type in kind.targets)


def plan_schedule(schedule: Schedule, experiment: Experiment) -> RunPlan:
    """A schedule on an experiment's targets. Raises InvalidSpec listing what has no target."""
    items: list[PlanItem] = []
    missing: list[str] = []
    for fault in schedule.faults:
        target_name = _target_for(experiment, fault.service, fault.kind)
        if target_name is None:
            missing.append(f"{fault.slot} ({fault.kind} on {fault.service})")
        else:
            items.append(_scheduled(experiment, fault, target_name))
    if missing:
        raise InvalidSpec(
            f"{len(missing)} faults of the schedule have no target in {experiment.name}",
            ", ".join(missing[:10]) + (", ..." if len(missing) > 10 else ""),
            "draw the schedule from these targets: faultctl schedule generate --targets FILE",
        )
    return RunPlan(
        experiment=experiment.name,
        seed=schedule.seed,
        end_ns=max(schedule.end_ms, schedule.window_ms) * _MS,
        items=sorted_items(items),
        changes=tuple(
            PlanChange(slot=c.slot, action=c.action, rule=c.rule, detail=c.kind)
            for c in schedule.changes
        ),
    )


def _scheduled(experiment: Experiment, fault: ScheduledFault, target_name: str) -> PlanItem:
    entry = experiment.targets[target_name]
    return PlanItem(
        slot=fault.slot,
        name=fault.slot,
        node=entry.node,
        zone=experiment.nodes[entry.node].zone,
        service=entry.service,
        target_name=target_name,
        kind=fault.kind,
        target=entry.target,
        spec=fault.spec,
        start_ns=fault.start_ms * _MS,
        end_ns=fault.end_ms * _MS,
        group_type="concurrent",
        truth=drawn_truth(fault.kind, entry),
    )


def _target_for(experiment: Experiment, service: str, kind: str) -> str | None:
    known = kinds().get(kind)
    if known is None:
        return None
    for name, entry in experiment.targets.items():
        allowed = entry.kinds is None or kind in entry.kinds
        if entry.service == service and allowed and entry.target.get("type") in known.targets:
            return name
    return None
