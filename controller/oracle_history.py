"""A run's records in the order that judges ask for: faults, samples, operator, nodes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from controller.oracle_times import act_ns, node_end_ns, told_act_ns
from controller.records import (
    AgentEvent,
    AnyRecord,
    ClockOffset,
    FaultArmed,
    FaultBiting,
    FaultDropped,
    FaultEnded,
    FaultMoved,
    FaultPlanned,
    NodeRecord,
    OperatorAction,
    RunEvent,
    SampleRecord,
    Submission,
    VerdictRecord,
)


@dataclass(frozen=True)
class FaultStory:
    """What happened to one fault or noise; all times in ns from the origin of the run."""

    planned: FaultPlanned
    armed: FaultArmed | None = None
    biting: FaultBiting | None = None
    ended: FaultEnded | None = None
    dropped: FaultDropped | None = None
    node_end_ns: int | None = None
    """When it ended by the node's own clock, which may be before the controller heard of it."""
    act_ns: int | None = None
    """When the act that remedied it was done, as far as it can be told."""
    moves: tuple[FaultMoved, ...] = ()
    """The pods that it went to with its workload, those where it was armed."""

    def nodes(self, start_ns: int, end_ns: int) -> tuple[str, ...]:
        """Where it was in a window, after the last move before it."""
        first = [m.node for m in self.moves if m.t_ns <= start_ns][-1:]
        first = first or [self.armed.node if self.armed else self.planned.node]
        found = [*first, *(m.node for m in self.moves if start_ns < m.t_ns < end_ns)]
        return tuple(dict.fromkeys(found))

    @property
    def id(self) -> str:
        """Its id on the node."""
        return self.planned.fault

    @property
    def injected_ns(self) -> int | None:
        """When the kernel said that it is there: times to diagnosis and mitigation count from
        here. None if it never was."""
        return None if self.armed is None else self.armed.t_ns

    @property
    def ended_ns(self) -> int | None:
        """When it ended, by its node's clock where that is known; None while it lives."""
        if self.ended is None:
            return None
        return self.ended.t_ns if self.node_end_ns is None else self.node_end_ns

    @property
    def remedied_ns(self) -> int | None:
        """When an operator remedied it; None if nobody did."""
        if self.ended is None or self.ended.reason != "remedied":
            return None
        return self.ended_ns if self.act_ns is None else self.act_ns

    @property
    def service(self) -> str:
        """The service that is to be blamed; empty for noise."""
        return "" if self.planned.truth is None else self.planned.truth.service

    def live(self, t_ns: int) -> bool:
        """Whether it was there at a time."""
        start, end = self.injected_ns, self.ended_ns
        return start is not None and start <= t_ns and (end is None or t_ns < end)


@dataclass(frozen=True)
class Series:
    """The samples of one probe, in the order of their starts."""

    samples: tuple[SampleRecord, ...] = ()

    @cached_property
    def times(self) -> list[int]:
        """Starts of the samples."""
        return [s.t_ns for s in self.samples]

    def within(self, start_ns: int, end_ns: int) -> tuple[SampleRecord, ...]:
        """Samples that start in [start, end)."""
        return self.samples[bisect_left(self.times, start_ns) : bisect_left(self.times, end_ns)]

    def last_before(self, t_ns: int) -> SampleRecord | None:
        """The newest sample that had ended by a time."""
        for sample in reversed(self.samples[: bisect_right(self.times, t_ns)]):
            if sample.t_ns + sample.duration_ns <= t_ns:
                return sample
        return None


@dataclass(frozen=True)
class History:
    """Everything that judges read. Build it with `History.of`."""

    faults: Mapping[str, FaultStory] = field(default_factory=dict)
    series: Mapping[str, Series] = field(default_factory=dict)
    actions: tuple[OperatorAction, ...] = ()
    submissions: tuple[Submission, ...] = ()
    run_events: tuple[RunEvent, ...] = ()
    verdicts: tuple[VerdictRecord, ...] = ()
    heard: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Node -> times at which its agent was heard."""
    end_ns: int = 0
    """The last moment that is recorded."""

    @classmethod
    def of(
        cls,
        records: Iterable[AnyRecord],
        origin_ns: int | None = None,
        remedies: Mapping[str, str] | None = None,
    ) -> History:
        """From records in any order. Records of faults that were never planned are left out.

        origin_ns: the controller's CLOCK_BOOTTIME at the origin of the run, for the times of
        nodes. remedies: name of a remedy -> its probe.
        """
        ordered = sorted(records, key=lambda r: r.t_ns)
        faults: dict[str, FaultStory] = {
            r.fault: FaultStory(r) for r in ordered if isinstance(r, FaultPlanned)
        }
        for record in ordered:
            _tell(faults, record)
        series: dict[str, list[SampleRecord]] = {}
        for sample in (r for r in ordered if isinstance(r, SampleRecord)):
            series.setdefault(sample.probe, []).append(sample)
        told = _Told.of(ordered)
        for name, story in faults.items():
            faults[name] = _timed(story, told, series, origin_ns, remedies or {})
        ends = [r.t_ns + getattr(r, "duration_ns", 0) for r in ordered if r.type == "sample"]
        return cls(
            faults=faults,
            series={name: Series(tuple(found)) for name, found in sorted(series.items())},
            actions=tuple(r for r in ordered if isinstance(r, OperatorAction)),
            submissions=tuple(r for r in ordered if isinstance(r, Submission)),
            run_events=tuple(r for r in ordered if isinstance(r, RunEvent)),
            verdicts=tuple(r for r in ordered if isinstance(r, VerdictRecord)),
            heard=_heard(ordered),
            end_ns=max([0, *(r.t_ns for r in ordered), *ends]),
        )

    def injected(self) -> list[FaultStory]:
        """Faults (no noise) that were really there, in the order of their injection."""
        found = [
            f for f in self.faults.values() if f.planned.role == "fault" and f.armed is not None
        ]
        return sorted(found, key=lambda f: (f.injected_ns, f.id))

    def first_injection_ns(self) -> int | None:
        """When the first fault was injected: the baseline ends here."""
        times = [t for f in self.injected() if (t := f.injected_ns) is not None]
        return min(times) if times else None

    def accepted(self, kind: str) -> list[Submission]:
        """Submissions of a kind that counted."""
        return [s for s in self.submissions if s.kind == kind and s.accepted]


def _tell(faults: dict[str, FaultStory], record: AnyRecord) -> None:
    """Add what a record says to its fault; of several the first counts, a fault ends once."""
    if isinstance(record, FaultMoved) and record.armed and record.fault in faults:
        on = faults[record.fault]
        faults[record.fault] = replace(on, moves=(*on.moves, record))
    if not isinstance(record, FaultArmed | FaultBiting | FaultEnded | FaultDropped):
        return
    story = faults.get(record.fault)
    if story is None or getattr(story, record.type) is not None:
        return
    told: dict[str, Any] = {record.type: record}
    faults[record.fault] = replace(story, **told)


@dataclass(frozen=True)
class _Told:
    """What agents said, by what it is about: a long run has a great deal of it."""

    clocks: Mapping[str, list[ClockOffset]]
    events: Mapping[str, list[AgentEvent]]

    @classmethod
    def of(cls, ordered: Iterable[AnyRecord]) -> _Told:
        clocks: dict[str, list[ClockOffset]] = {}
        events: dict[str, list[AgentEvent]] = {}
        for record in ordered:
            if isinstance(record, ClockOffset):
                clocks.setdefault(record.node, []).append(record)
            elif isinstance(record, AgentEvent):
                events.setdefault(record.fault, []).append(record)
        return cls(clocks, events)

    def about(self, ended: FaultEnded) -> list[ClockOffset | AgentEvent]:
        """All that can tell when a fault ended."""
        return [*self.clocks.get(ended.node, ()), *self.events.get(ended.fault, ())]


def _timed(
    story: FaultStory,
    told: _Told,
    series: Mapping[str, list[SampleRecord]],
    origin_ns: int | None,
    remedies: Mapping[str, str],
) -> FaultStory:
    """With the times of its end that are better than the moment of its record."""
    armed, ended = story.armed, story.ended
    if armed is None or ended is None:
        return story
    by = ended.by.removeprefix("remedy ")
    probe = series.get(remedies.get(by, ""), [])
    seen = act_ns(armed, ended, probe)
    about = told.about(ended)
    return replace(
        story,
        node_end_ns=node_end_ns(armed, ended, about, origin_ns),
        act_ns=told_act_ns(armed, ended, about, origin_ns) if seen is None else seen,
    )


def _heard(ordered: list[AnyRecord]) -> dict[str, tuple[int, ...]]:
    """When an agent's own word came: its clock, its events, a probe that it ran."""
    found: dict[str, list[int]] = {}
    for record in ordered:
        node = _speaker(record)
        if node is not None:
            found.setdefault(node, []).append(record.t_ns)
    return {node: tuple(times) for node, times in found.items()}


def _speaker(record: AnyRecord) -> str | None:
    """The node whose agent's own word a record is."""
    if isinstance(record, ClockOffset | AgentEvent | NodeRecord):
        return record.node
    if isinstance(record, SampleRecord):
        return record.node if record.node_ns is not None else None
    if isinstance(record, RunEvent) and record.name == "node-back":
        return record.node
    return None
