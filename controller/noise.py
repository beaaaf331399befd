"""Background noise: seeded, transient disturbances that are never a root cause; pure.

The faults' timeline goes in and is only looked at: noise adds, and never moves a fault.
Noise keeps off every service that a fault touches during its time, off whole nodes with
faults where it acts on the node, and off the windows in which an oracle measures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from controller.experiment import Experiment, NoiseEntry
from controller.experiment_objects import CLUSTER, object_target
from controller.experiment_plan import ns
from controller.experiment_targets import PositiveDuration, TargetEntry
from controller.kube.kinds import cluster_kinds
from controller.run_plan import PlanChange, PlanItem, RunPlan, sorted_items
from controller.schedule_draw import Stream
from nodeagent.faults import kinds
from nodeagent.model.errors import InvalidSpec

_S = 1_000_000_000
LIFE_NS = 120 * _S
CYCLE_NS = 300 * _S
AT_ONCE = 2
MARGIN_NS = 5 * _S
"""Kept free before and after a fault on the same service, for late starts and slow reverts."""

Span = tuple[int, int]


class NoiseKind(BaseModel):
    """One entry of the catalogue."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    about: str
    kind: str
    scope: Literal["target", "node"]
    types: tuple[str, ...]
    duration: PositiveDuration | None = None
    spec: dict[str, Any] = {}

    def fits(self, entry: TargetEntry) -> bool:
        """Whether it can act on a target, as far as its type and the kind tell."""
        if self.on_objects:
            return entry.pods is not None
        known = kinds().get(self.kind)
        type_name = str(entry.target.get("type", ""))
        allowed = entry.kinds is None or self.kind in entry.kinds
        return known is not None and allowed and type_name in known.targets and self.takes(entry)

    @property
    def on_objects(self) -> bool:
        """Whether it is on the cluster's own objects, and takes targets that are pods."""
        return self.kind in cluster_kinds()

    def takes(self, entry: TargetEntry) -> bool:
        """Whether the target's type is one of its own."""
        return str(entry.target.get("type", "")) in self.types


@cache
def catalogue() -> dict[str, NoiseKind]:
    """All noise by name."""
    text = (files("controller") / "profiles" / "noise.yaml").read_text(encoding="utf-8")
    return {name: NoiseKind.model_validate(data) for name, data in yaml.safe_load(text).items()}


@dataclass(frozen=True)
class NoiseProfile:
    """A rhythm of noise. All times in nanoseconds."""

    name: Literal["paper", "code"]
    anchor: Literal["start", "end"] = "end"
    """`code` only: its cool-down of 300 s counts from the start or the end of a cycle."""
    at_once: int = AT_ONCE
    life: int = LIFE_NS
    cycle: int = CYCLE_NS

    @property
    def period(self) -> int:
        """From one cycle's start to the next one's."""
        if self.name == "paper" or self.anchor == "start":
            return self.cycle
        return self.life + self.cycle


@dataclass(frozen=True)
class Surroundings:
    """What noise has to mind."""

    faults: Sequence[PlanItem]
    end_ns: int
    oracle_windows: Sequence[Span] = ()

    def free(self, kind: NoiseKind, entry: TargetEntry, span: Span) -> bool:
        """Whether no fault is on the service, or on the node, anywhere near the span."""
        start, end = span[0] - MARGIN_NS, span[1] + MARGIN_NS
        for fault in self.faults:
            if fault.start_ns < end and fault.end_ns > start:
                same = fault.service == entry.service
                if same or (kind.scope == "node" and fault.node == entry.node):
                    return False
        return True

    def measured(self, span: Span) -> bool:
        """Whether an oracle measures somewhere in the span."""
        return any(a < span[1] and b > span[0] for a, b in self.oracle_windows)


@dataclass(frozen=True)
class Noise:
    """Drawn noise, and what could not be placed."""

    items: tuple[PlanItem, ...]
    missing: tuple[PlanChange, ...]


@dataclass(frozen=True)
class NoiseSource:
    """What noise is drawn from."""

    profile: NoiseProfile
    seed: int
    around: Surroundings
    targets: Mapping[str, TargetEntry]
    allowed: Mapping[str, NoiseKind]

    def draw(self) -> Noise:
        """The noise of a run. Every cycle has a stream of its own: a changed cycle moves no
        other."""
        items: list[PlanItem] = []
        missing: list[PlanChange] = []
        cycle, start = 1, 0
        while start < self.around.end_ns:
            placed, lacking = self._cycle(cycle, start)
            items += placed
            missing += lacking
            cycle, start = cycle + 1, start + self.profile.period
        return Noise(sorted_items(items), tuple(missing))

    def _cycle(self, cycle: int, start: int) -> tuple[list[PlanItem], list[PlanChange]]:
        slot = f"n{cycle:04d}"
        stream = Stream(self.seed, f"noise/{cycle}")
        end = min(start + self.profile.life, self.around.end_ns)
        if self.around.measured((start, end)):
            return [], [_lacking(slot, "oracle-window", "an oracle measures")]
        wanted = self.profile.at_once
        if self.profile.name == "code":
            wanted = 1 + stream.below(wanted)
        placed: list[PlanItem] = []
        for name in stream.sample(sorted(self.allowed), len(self.allowed)):
            kind = self.allowed[name]
            span = (start, min(end, start + ns(kind.duration)) if kind.duration else end)
            used = {item.service for item in placed}
            fitting = self._fitting(kind, span, used)
            if fitting and len(placed) < wanted:
                target = stream.choice(fitting)
                number = f"{slot}-{len(placed) + 1}"
                entry = self.targets[target]
                item = _noise_item(number, name, kind, target, entry, span)
                placed.append(self._chosen_later(item, entry))
        return placed, [
            _lacking(f"{slot}-{number}", "no-free-target", "nothing fits a target without a fault")
            for number in range(len(placed) + 1, wanted + 1)
        ]

    def _chosen_later(self, item: PlanItem, entry: TargetEntry) -> PlanItem:
        """Pods of noise are chosen when it starts, by a seed of its own."""
        if entry.pods is None:
            return item
        target = object_target(entry.pods, f"{self.seed} {item.target_name} {item.slot}")
        return item.model_copy(update={"node": CLUSTER, "target": target})

    def _fitting(self, kind: NoiseKind, span: Span, used: set[str]) -> list[str]:
        return [
            name
            for name, entry in sorted(self.targets.items())
            if entry.service not in used
            and kind.fits(entry)
            and self.around.free(kind, entry, span)
        ]


def _lacking(slot: str, rule: str, detail: str) -> PlanChange:
    return PlanChange(slot=slot, action="dropped", rule=rule, detail=detail)


def _noise_item(
    slot: str, name: str, kind: NoiseKind, target: str, entry: TargetEntry, span: Span
) -> PlanItem:
    return PlanItem(
        slot=slot,
        role="noise",
        name=name,
        node=entry.node,
        service=entry.service,
        target_name=target,
        kind=kind.kind,
        target=entry.target,
        spec=kind.spec,
        start_ns=span[0],
        end_ns=span[1],
    )


def chosen(names: Iterable[str] | None) -> dict[str, NoiseKind]:
    """The catalogue, or the named part of it. Raises InvalidSpec for an unknown name."""
    known = catalogue()
    if names is None:
        return dict(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidSpec(
            f"there is no noise {unknown[0]!r}", f"the catalogue has: {', '.join(known)}"
        )
    return {name: known[name] for name in names}


def _of_use(
    found: dict[str, NoiseKind], targets: Mapping[str, TargetEntry]
) -> dict[str, NoiseKind]:
    """Without what takes pods where none are meant: the draws of such files stay what they were."""
    pods = any(entry.pods is not None for entry in targets.values())
    return {name: kind for name, kind in found.items() if pods or not kind.on_objects}


def measured_windows(plan: RunPlan, experiment: Experiment) -> tuple[Span, ...]:
    """Where an oracle measures, as far as the plan tells: the hold windows of metastable
    groups. Windows that begin with an operator's word are not known ahead."""
    found: list[Span] = []
    for name, group in experiment.groups.items():
        if group.overload is not None:
            end = max((item.end_ns for item in plan.items if item.group == name), default=0)
            last = end + ns(group.overload.grace) + ns(group.overload.hold)
            found.append((end, last + MARGIN_NS))
    return tuple(found)


def with_noise(
    plan: RunPlan, experiment: Experiment, oracle_windows: Sequence[Span] = ()
) -> RunPlan:
    """The plan and its noise; the faults' timeline is byte for byte as before.

    Without a `noise` block the profile `paper` is taken. Absent `targets` are all that are not
    pods: those have to be named. Raises InvalidSpec.
    """
    entry = experiment.noise or NoiseEntry()
    targets = {
        name: target
        for name, target in experiment.targets.items()
        if (entry.targets is None and target.pods is None) or name in (entry.targets or ())
    }
    windows: tuple[Span, ...] = ()
    if not entry.in_oracle_windows:
        windows = (*oracle_windows, *measured_windows(plan, experiment))
    noise = NoiseSource(
        NoiseProfile(entry.profile, entry.anchor),
        plan.seed,
        Surroundings(plan.of("fault"), plan.end_ns, windows),
        targets,
        _of_use(chosen(entry.catalogue), targets),
    ).draw()
    return plan.model_copy(
        update={
            "items": sorted_items([*plan.items, *noise.items]),
            "changes": (*plan.changes, *noise.missing),
        }
    )
