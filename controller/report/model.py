"""What the page shows, as plain data with places in per cent of the run's length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from controller.oracle import FaultVerdict
from controller.oracle_history import FaultStory, Series
from controller.records import SampleRecord
from controller.score import fixed
from controller.score_run import Scored

TICKS = 8
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
MAX_BARS = 240
"""Health and load are drawn in at most so many columns; each shows the worst inside it."""


@dataclass(frozen=True)
class Axis:
    """The time axis: from the first record to the last."""

    start_ns: int
    end_ns: int

    def at(self, t_ns: int) -> str:
        """A place in per cent with three digits, inside the axis."""
        clamped = min(max(t_ns, self.start_ns), self.end_ns)
        return fixed(Fraction(100 * (clamped - self.start_ns), self.length), 3)

    def width(self, from_ns: int, to_ns: int) -> str:
        """A width in per cent."""
        a = min(max(from_ns, self.start_ns), self.end_ns)
        b = min(max(to_ns, self.start_ns), self.end_ns)
        return fixed(Fraction(100 * max(0, b - a), self.length), 3)

    @property
    def length(self) -> int:
        """Never nothing."""
        return max(1, self.end_ns - self.start_ns)

    def ticks(self) -> list[dict[str, str]]:
        """Round times, the origin of the run being zero."""
        seconds = self.length / 10**9
        step = next((s for s in _STEPS if seconds / s <= TICKS), _STEPS[-1]) * 10**9
        first = -(-self.start_ns // step) * step
        return [{"at": self.at(t), "text": clock(t)} for t in range(first, self.end_ns + 1, step)]


def clock(t_ns: int) -> str:
    """`12:05`, `1:02:03`, `-0:30` from the origin."""
    sign = "-" if t_ns < 0 else ""
    minutes, seconds = divmod(abs(t_ns) // 10**9, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{sign}{hours}:{minutes:02d}:{seconds:02d}"
    return f"{sign}{minutes}:{seconds:02d}"


def spans(samples: Sequence[SampleRecord], end_ns: int) -> list[tuple[int, int, str]]:
    """Stretches of one verdict: from each sample to the next that differs."""
    found: list[tuple[int, int, str]] = []
    for sample in samples:
        if found and found[-1][2] == sample.verdict:
            continue
        if found:
            found[-1] = (found[-1][0], sample.t_ns, found[-1][2])
        found.append((sample.t_ns, end_ns, sample.verdict))
    return found


def fault_lane(
    story: FaultStory, symptom: Series | None, verdict: FaultVerdict | None, axis: Axis
) -> dict[str, Any]:
    """A lane from occurrence to end: grey while armed, dark while its symptom probe fails."""
    planned, truth = story.planned, story.planned.truth
    start = story.injected_ns
    end = axis.end_ns if story.ended_ns is None else story.ended_ns
    dark: list[dict[str, str]] = []
    if start is not None and symptom is not None:
        for a, b, word in spans(symptom.within(start, end), end):
            if word == "fail":
                dark.append({"at": axis.at(a), "width": axis.width(a, b), "text": clock(a)})
    ended = story.ended.reason if story.ended else "armed"
    return {
        "id": story.id,
        "name": planned.slot,
        "role": planned.role,
        "kind": planned.kind,
        "service": "" if truth is None else truth.service,
        "category": "" if truth is None else truth.category,
        "node": " → ".join(story.nodes(0, axis.end_ns)),
        "truth": None if truth is None else truth.root_cause,
        "symptom": "" if truth is None else truth.symptom_probe,
        "start": None if start is None else clock(start),
        "end": None if start is None else clock(end),
        "ended": story.dropped.reason if story.dropped else ended if start is not None else "never",
        "by": story.ended.by if story.ended else "",
        "hits": story.biting.hits if story.biting else 0,
        "bar": None if start is None else {"at": axis.at(start), "width": axis.width(start, end)},
        "dark": dark,
        "hold": _hold(verdict, axis),
        "verdict": None if verdict is None else verdict.verdict,
    }


def _hold(verdict: FaultVerdict | None, axis: Axis) -> dict[str, str] | None:
    """The hold window, where somebody said or did something that started one."""
    if verdict is None or verdict.moment.why not in ("submission", "repair"):
        return None
    start, end = verdict.moment.start_ns, verdict.moment.end_ns
    return {"at": axis.at(start), "width": axis.width(start, end)}


def noise_lanes(lanes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One lane a kind of noise that was there: it is background, not something to repair."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for lane in (each for each in lanes if each["bar"] is not None):
        kinds.setdefault(lane["kind"], []).append(lane)
    found = []
    for kind, members in sorted(kinds.items()):
        nodes = sorted({m["node"] for m in members})
        shown = ", ".join(nodes) if len(nodes) <= 3 else f"{len(nodes)} nodes"
        text = " ".join([kind, *nodes, *(m["name"] for m in members)])
        found.append({"kind": kind, "nodes": shown, "members": members, "text": text})
    return found


def health_lane(name: str, series: Series, axis: Axis) -> dict[str, Any]:
    """A probe's health over time."""
    samples = series.samples
    bars = [
        {"at": axis.at(a), "width": axis.width(a, b), "word": word, "text": clock(a)}
        for a, b, word in spans(samples, samples[-1].t_ns + samples[-1].duration_ns)
    ]
    passed = sum(1 for s in samples if s.verdict == "pass")
    share = fixed(Fraction(100 * passed, len(samples)))
    reasons = [s.reason for s in samples if s.verdict == "fail" and s.reason]
    return {
        "name": name,
        "bars": bars,
        "samples": len(samples),
        "share": share,
        "reason": reasons[0] if reasons else "",
    }


def load_lane(name: str, series: Series, axis: Axis) -> dict[str, Any]:
    """A load's answers a window, good and bad, in columns."""
    samples = series.samples
    step = -(-len(samples) // MAX_BARS)
    groups = [samples[i : i + step] for i in range(0, len(samples), step)]
    most = max([1, *(_planned(s) for s in samples)])
    columns = []
    for group in groups:
        last = group[-1]
        worst = max(group, key=lambda s: int(s.data.get("failed") or 0))
        planned = max(_planned(s) for s in group)
        failed = int(worst.data.get("failed") or 0) + int(worst.data.get("dropped") or 0)
        columns.append(
            {
                "at": axis.at(group[0].t_ns),
                "width": axis.width(group[0].t_ns, last.t_ns + last.duration_ns),
                "height": fixed(Fraction(100 * planned, most), 1),
                "bad": fixed(Fraction(100 * min(failed, planned), most), 1),
                "held": all(s.data.get("held", True) for s in group),
            }
        )
    latencies = [int(s.data["p99_ns"]) for s in samples if s.data.get("p99_ns") is not None]
    worst_ms = fixed(Fraction(max(latencies), 10**6), 1) if latencies else "—"
    held = all(s.data.get("held", True) for s in samples)
    return {"name": name, "columns": columns, "most": most, "p99_ms": worst_ms, "held": held}


def _planned(sample: SampleRecord) -> int:
    return int(sample.data.get("planned") or 0)


def is_load(series: Series) -> bool:
    """Whether a series comes from the load driver."""
    return bool(series.samples) and "planned" in series.samples[0].data


def operator_marks(scored: Scored, axis: Axis) -> list[dict[str, Any]]:
    """What the operator did, said and handed in, in order."""
    history = scored.run.history
    found: list[tuple[int, dict[str, Any]]] = []
    for action in history.actions:
        text = action.act if action.executed else f"{action.act} (not executed)"
        found.append((action.t_ns, _mark("action", text, action.service, action.executed)))
    for one in history.submissions:
        said = one.data.get("text") or one.data.get("service") or ""
        text = f"{one.kind}: {said}" if said else one.kind
        if not one.accepted:
            text += f" (not accepted: {one.why_not})"
        service = one.data.get("service")
        found.append(
            (
                one.t_ns,
                _mark(one.kind, text, service if isinstance(service, str) else "", one.accepted),
            )
        )
    ordered = sorted(found, key=lambda pair: pair[0])
    return [mark | {"at": axis.at(t), "time": clock(t)} for t, mark in ordered]


def _mark(kind: str, text: str, service: str, counts: bool) -> dict[str, Any]:
    return {"kind": kind, "text": text, "service": service, "counts": counts}


def page_data(scored: Scored) -> dict[str, Any]:
    """Everything the page's template needs."""
    run, history = scored.run, scored.run.history
    times = [s.times[0] for s in history.series.values() if s.times]
    axis = Axis(min([0, *times]), max(1, history.end_ns))
    verdicts = {v.subject: v for v in run.verdict.faults}
    stories = sorted(
        history.faults.values(), key=lambda s: (s.injected_ns or s.planned.start_ns, s.id)
    )
    lanes = []
    for story in stories:
        truth = story.planned.truth
        symptom = history.series.get(truth.symptom_probe) if truth is not None else None
        lanes.append(fault_lane(story, symptom, verdicts.get(story.id), axis))
    loads = {n: s for n, s in history.series.items() if is_load(s)}
    probes = {n: s for n, s in history.series.items() if s.samples and n not in loads}
    return {
        "header": run.header.model_dump(mode="json"),
        "length": clock(axis.length),
        "ticks": axis.ticks(),
        "origin": axis.at(0),
        "faults": [lane for lane in lanes if lane["role"] == "fault"],
        "noise": noise_lanes([lane for lane in lanes if lane["role"] == "noise"]),
        "health": [health_lane(n, s, axis) for n, s in probes.items()],
        "load": [load_lane(n, s, axis) for n, s in loads.items()],
        "operator": operator_marks(scored, axis),
        "result": scored.data(),
        "verdicts": [_verdict(v, history.faults[v.subject]) for v in run.verdict.faults],
    }


def _verdict(verdict: FaultVerdict, story: FaultStory) -> dict[str, Any]:
    data = verdict.data()
    deciding = [
        d | {"from": clock(d["from_ns"]), "to": clock(d["to_ns"])} for d in data["deciding"]
    ]
    return data | {
        "name": story.planned.slot,
        "service": story.service,
        "kind": story.planned.kind,
        "node": story.planned.node,
        "deciding": deciding,
        "hold": f"{clock(verdict.moment.start_ns)} to {clock(verdict.moment.end_ns)}",
        "repaired": None if verdict.repaired_ns is None else clock(verdict.repaired_ns),
    }
