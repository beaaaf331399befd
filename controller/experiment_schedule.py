"""From a schedule and an experiment's targets to a resolved plan; pure."""

from __future__ import annotations

from controller.experiment import Experiment
from controller.experiment_truth import drawn_truth
from controller.run_plan import PlanChange, PlanItem, RunPlan, sorted_items
from controller.schedule_core import Place
from controller.schedule_model import Schedule, ScheduledFault
from nodeagent.faults import kinds
from nodeagent.model.errors import InvalidSpec

_MS = 1_000_000


def places_of(experiment: Experiment) -> tuple[Place, ...]:
    """The experiment's targets as places that a schedule can draw, one for each service.

    Raises InvalidSpec if two targets of a service are on two nodes: a place has one.
    """
    found: dict[str, Place] = {}
    for entry in experiment.targets.values():
        if entry.of_cluster:
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
