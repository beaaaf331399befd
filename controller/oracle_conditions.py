"""Conditions of an oracle over a run's history: pass, fail or unknown, with what decided."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

from controller import oracle_logic as logic
from controller import oracle_measures as measures
from controller.oracle_gone import gone
from controller.oracle_logic import Finding
from controller.oracle_scene import Scene, sample_ref, settle, span_ref
from controller.oracle_spec import (
    AgentAlive,
    All,
    AnyOf,
    AtLeast,
    Baseline,
    Gone,
    Level,
    Percentile,
    Rate,
    Restarts,
    Workload,
)
from controller.records import SampleRecord, Verdict
from controller.score import fixed


def evaluate(condition: Any, scene: Scene) -> Finding:
    """A condition and all that is in it."""
    match condition:
        case All() | AnyOf() | AtLeast():
            return _several(condition, scene)
        case Level():
            return measures.level(condition, scene)
        case Rate():
            return measures.rate(condition, scene)
        case Percentile():
            return measures.percentile(condition, scene)
        case Baseline():
            return measures.baseline(condition, scene)
        case Workload():
            return _workload(condition, scene)
        case Restarts():
            return _restarts(condition, scene)
        case AgentAlive():
            return _agent_alive(scene)
        case Gone():
            return _gone(scene)
    return Finding("unknown", (f"no way to judge {type(condition).__name__}",))


def _several(condition: All | AnyOf | AtLeast, scene: Scene) -> Finding:
    parts = [evaluate(part, scene) for part in condition.of]
    verdicts = [part.verdict for part in parts]
    if isinstance(condition, All):
        return logic.join(logic.all_of(verdicts), parts)
    count = 1 if isinstance(condition, AnyOf) else condition.count
    return logic.join(logic.at_least(count, verdicts), parts)


def _workload(condition: Workload, scene: Scene) -> Finding:
    before = [s for s in scene.samples(condition.probe, "before") if s.verdict == "pass"]
    counts = [n for s in before if (n := logic.number(s.data.get(condition.field))) is not None]
    if len(counts) < condition.samples:
        text = f"{condition.probe}: the baseline window has {len(counts)} counts"
        return Finding("unknown", (f"{text}, {condition.samples} are needed",))
    least = min(counts)
    for sample in scene.samples(condition.probe, condition.window):
        trouble = _shrunk(condition, sample, least, before[-1])
        if trouble is not None:
            verdict, text = trouble
            return Finding(verdict, (f"{condition.probe}: {text}",), (sample_ref(sample),))
    text = f"{condition.probe}: never fewer than {fixed(least, 0)}"
    return settle("pass", text, condition, scene)


def _shrunk(
    condition: Workload, sample: SampleRecord, least: Fraction, base: SampleRecord
) -> tuple[Verdict, str] | None:
    count = logic.number(sample.data.get(condition.field))
    if count is None:
        if sample.verdict == "fail":
            return "fail", f"the workload is gone ({sample.reason or 'not found'})"
        return "unknown", f"it was not counted ({sample.reason or 'no number'})"
    if count < least:
        return "fail", f"{fixed(count, 0)} of {fixed(least, 0)} are left"
    for name in condition.same:
        if sample.data.get(name) != base.data.get(name):
            return "fail", f"{name} was {base.data.get(name)!r} and is {sample.data.get(name)!r}"
    return None


def _restarts(condition: Restarts, scene: Scene) -> Finding:
    """A restart is a value of `identity` that differs from the one before."""
    samples = scene.samples(condition.probe, condition.window)
    known = [s for s in samples if s.data.get(condition.field) is not None]
    pairs = list(pairwise(known))
    changed = [b for a, b in pairs if a.data[condition.field] != b.data[condition.field]]
    text = f"{condition.probe}: {len(changed)} restarts, {condition.at_most} are allowed"
    if len(changed) > condition.at_most:
        return Finding("fail", (text,), tuple(sample_ref(s) for s in changed[:3]))
    if len(known) < len(samples):
        text = f"{condition.probe}: {len(samples) - len(known)} samples have no {condition.field}"
        return Finding("unknown", (text,), (span_ref(condition, scene, text),))
    return settle("pass", text, condition, scene)


def _agent_alive(scene: Scene) -> Finding:
    stories = scene.history.injected() if scene.fault is None else [scene.fault]
    nodes = {n for s in stories for n in s.nodes(scene.start_ns, scene.end_ns)}
    parts = [_one_agent(scene, node) for node in sorted(nodes)]
    lost = [s for s in stories if s.ended is not None and s.ended.reason == "agent-lost"]
    parts += [
        Finding("fail", (f"the agent of {s.ended.node} was killed or died",))
        for s in lost
        if s.ended and s.ended_ns is not None and s.ended_ns < scene.end_ns
    ]
    return logic.join(logic.all_of([p.verdict for p in parts]), parts)


def _one_agent(scene: Scene, node: str) -> Finding:
    """Lost before or in the window and not back before it: nobody knows what happened there."""
    state = [
        e
        for e in scene.history.run_events
        if e.node == node and e.name in ("node-lost", "node-back") and e.t_ns < scene.end_ns
    ]
    before = [e for e in state if e.t_ns < scene.start_ns]
    if any(e.name == "node-lost" for e in [*before[-1:], *state[len(before) :]]):
        return Finding("unknown", (f"the agent of {node} did not answer in the hold window",))
    heard = [t for t in scene.history.heard.get(node, ()) if scene.start_ns <= t < scene.end_ns]
    if not heard:
        return Finding("unknown", (f"the agent of {node} was not heard in the hold window",))
    return Finding("pass", (f"the agent of {node} was heard {len(heard)} times",))


def _gone(scene: Scene) -> Finding:
    stories = scene.history.injected() if scene.fault is None else [scene.fault]
    series = scene.history.series.get(scene.exposure or "")
    parts = []
    for story in stories:
        parts.append(gone(story, series, scene.start_ns, scene.end_ns))
        ended = story.ended_ns
        if (
            scene.exposure
            and parts[-1].verdict == "pass"
            and (ended is None or ended >= scene.end_ns)
        ):
            parts.append(measures.level(Level(probe=scene.exposure), scene))
    return logic.join(logic.all_of([p.verdict for p in parts]), parts)
