"""What a condition is judged on, and how far samples cover a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from controller import oracle_logic as logic
from controller.oracle_history import FaultStory, History, Series
from controller.oracle_logic import Finding
from controller.oracle_spec import OnProbe
from controller.records import SampleRecord, SampleRef, Verdict
from controller.score import fixed


@dataclass(frozen=True)
class Pace:
    """How a probe measures.

    gap_ns: longest time between two starts of its samples that is no hole.
    failures, successes: samples in a row that change its health.
    """

    gap_ns: int
    failures: int = 1
    successes: int = 1


@dataclass(frozen=True)
class Scene:
    """What a condition is judged on: one fault (or the run), and the hold window."""

    history: History
    start_ns: int
    end_ns: int
    fault: FaultStory | None = None
    exposure: str | None = None
    paces: Mapping[str, Pace] = field(default_factory=dict)

    def span(self, window: str) -> tuple[int, int]:
        """Start and end of a window in ns from the origin."""
        first = self.history.first_injection_ns()
        if window == "before":
            starts = [s.times[0] for s in self.history.series.values() if s.times]
            until = self.start_ns if first is None else first
            return min([*starts, until]), until
        if window == "during":
            since = None if self.fault is None else self.fault.injected_ns
            start = first if since is None else since
            return (self.start_ns if start is None else start), self.start_ns
        return self.start_ns, self.end_ns

    def samples(self, probe: str, window: str) -> tuple[SampleRecord, ...]:
        """The samples of a probe that start in a window."""
        return self.history.series.get(probe, Series()).within(*self.span(window))


def hole(condition: OnProbe, scene: Scene, samples: Sequence[SampleRecord]) -> str:
    """Why the samples do not cover the window; empty if they do."""
    if len(samples) < condition.samples:
        return f"{condition.probe}: {len(samples)} samples, {condition.samples} are needed"
    start, end = scene.span(condition.window)
    pace = scene.paces.get(condition.probe)
    gap = pace.gap_ns if pace is not None else (end - start) // condition.samples + 1
    marks = [start, *(s.t_ns for s in samples), end]
    if condition.window == "before":
        marks = marks[1:]
    widest = max(b - a for a, b in pairwise(marks))
    if widest > gap:
        return f"{condition.probe}: nothing was measured for {seconds(widest)}"
    return ""


def seconds(ns: logic.Number) -> str:
    """Nanoseconds as `1.234 s`."""
    return "∞" if isinstance(ns, float) else f"{fixed(ns / 10**9, 3)} s"


def span_ref(condition: OnProbe, scene: Scene, note: str) -> SampleRef:
    """A reference to all samples of a condition's window."""
    start, end = scene.span(condition.window)
    return SampleRef(probe=condition.probe, from_ns=start, to_ns=end, note=note)


def sample_ref(sample: SampleRecord) -> SampleRef:
    """A reference to one sample."""
    end = sample.t_ns + sample.duration_ns
    note = f"{sample.verdict}: {sample.reason}" if sample.reason else sample.verdict
    return SampleRef(probe=sample.probe, from_ns=sample.t_ns, to_ns=end, note=note)


def settle(verdict: Verdict, text: str, condition: OnProbe, scene: Scene) -> Finding:
    """A pass over a window that was not measured through is no pass."""
    samples = scene.samples(condition.probe, condition.window)
    missing = hole(condition, scene, samples)
    if missing and verdict == "pass":
        return Finding("unknown", (missing,), (span_ref(condition, scene, missing),))
    return Finding(verdict, (text,), (span_ref(condition, scene, text),))


def shown(name: str, value: logic.Number) -> str:
    """A number of a field for people; fields in ns as seconds."""
    if name.endswith("_ns"):
        return seconds(value)
    return "∞" if isinstance(value, float) else fixed(value, 3)
