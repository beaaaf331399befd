"""Oracles: one verdict for each fault and one for the run, from records alone.

A fault passes when it is gone or routed around by an operator's act, its agent lives, and
what the oracle requires holds for the whole hold window. Everything here is pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from controller import oracle_logic as logic
from controller.oracle_conditions import evaluate
from controller.oracle_gone import repaired_ns
from controller.oracle_history import FaultStory, History
from controller.oracle_logic import Finding
from controller.oracle_scene import Pace, Scene
from controller.oracle_spec import AgentAlive, Gone, Level, OracleSpec
from controller.records import SampleRef, Submission, Verdict, VerdictRecord

DEFAULT_ORACLE = "default"


def nanoseconds(value: timedelta) -> int:
    """Whole ns; a timedelta has microseconds."""
    return value // timedelta(microseconds=1) * 1000


@dataclass(frozen=True)
class Moment:
    """When a fault is judged, and why then."""

    start_ns: int
    hold_ns: int
    why: str
    """submission, repair, cap, or end: of the run or of a fault that nobody repaired."""

    @property
    def end_ns(self) -> int:
        """End of the hold window."""
        return self.start_ns + self.hold_ns


@dataclass(frozen=True)
class FaultVerdict:
    """One oracle's verdict on one fault (or of all oracles together)."""

    subject: str
    oracle: str
    verdict: Verdict
    moment: Moment
    reasons: tuple[str, ...] = ()
    deciding: tuple[SampleRef, ...] = ()
    repaired_ns: int | None = None
    ended_as: str = ""
    """armed, remedied, expired, reverted, ...: how it was with the fault at the end."""
    parts: Mapping[str, Verdict] = field(default_factory=dict)
    """gone, agent, require."""

    def data(self) -> dict[str, Any]:
        """Plain data, the same for the same records."""
        return {
            "subject": self.subject,
            "oracle": self.oracle,
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "deciding": [d.model_dump(mode="json") for d in self.deciding],
            "judged": self.moment.why,
            "hold_from_ns": self.moment.start_ns,
            "hold_to_ns": self.moment.end_ns,
            "repaired_ns": self.repaired_ns,
            "ended_as": self.ended_as,
            "parts": dict(self.parts),
        }

    def record(self, wall: str) -> VerdictRecord:
        """For the run folder."""
        keep = ("judged", "hold_from_ns", "hold_to_ns", "repaired_ns", "ended_as", "parts")
        data = self.data()
        return VerdictRecord(
            t_ns=self.moment.end_ns,
            wall=wall,
            subject=self.subject,
            oracle=self.oracle,
            verdict=self.verdict,
            reasons=self.reasons,
            deciding=self.deciding,
            data={key: data[key] for key in keep},
        )


def fault_name(slot: str) -> str:
    """A slot's fault in the experiment: the slot without repetition and target."""
    return re.split("[#/]", slot, maxsplit=1)[0]


def mitigation_of(history: History, story: FaultStory, cap_ns: int) -> Submission | None:
    """The first word, within the cap, that this fault is repaired."""
    injected = story.injected_ns
    for submission in history.accepted("mitigation"):
        if injected is None or not injected < submission.t_ns <= injected + cap_ns:
            continue
        if submission.fault in ("", story.id):
            return submission
    return None


def observed_end_ns(history: History) -> int:
    """When the last sample before the orchestrator took everything back was over."""
    ends = [
        s.t_ns + s.duration_ns
        for series in history.series.values()
        for s in series.samples
        if s.phase != "after"
    ]
    return max(ends, default=0)


def moment_of(history: History, story: FaultStory, spec: OracleSpec) -> Moment:
    """When a fault is judged: on the operator's word, at its repair, else at the cap."""
    hold, cap = nanoseconds(spec.hold), nanoseconds(spec.cap)
    injected = story.injected_ns or 0
    exposure = history.series.get(spec.exposure or "")
    if spec.judge == "repair":
        repaired = repaired_ns(story, exposure, history.end_ns)
        if repaired is not None:
            return Moment(repaired, hold, "repair")
        if story.ended_ns is not None and story.ended_ns <= injected + cap:
            return Moment(story.ended_ns, hold, "end")
    else:
        submission = mitigation_of(history, story, cap)
        if submission is not None:
            return Moment(submission.t_ns, hold, "submission")
    last = observed_end_ns(history) - hold
    if injected + cap <= last:
        return Moment(injected + cap, hold, "cap")
    return Moment(max(injected, last), hold, "end")


def requirement(spec: OracleSpec, story: FaultStory) -> Any:
    """What must hold; by default that the fault's own symptom is gone."""
    if spec.require is not None:
        return spec.require
    symptom = "" if story.planned.truth is None else story.planned.truth.symptom_probe
    return Level(probe=symptom) if symptom and spec.judge == "submission" else None


def judge_at(
    history: History,
    story: FaultStory,
    oracle: tuple[str, OracleSpec],
    moment: Moment,
    paces: Mapping[str, Pace],
) -> FaultVerdict:
    """An oracle's verdict on a fault at a moment."""
    name, spec = oracle
    scene = Scene(history, moment.start_ns, moment.end_ns, story, spec.exposure, paces)
    parts = {"gone": evaluate(Gone(), scene), "agent": evaluate(AgentAlive(), scene)}
    needed = requirement(spec, story)
    if needed is not None:
        parts["require"] = evaluate(needed, scene)
    found = list(parts.values())
    joined = logic.join(logic.all_of([f.verdict for f in found]), found)
    exposure = history.series.get(spec.exposure or "")
    return FaultVerdict(
        subject=story.id,
        oracle=name,
        verdict=joined.verdict,
        moment=moment,
        reasons=joined.reasons,
        deciding=joined.deciding,
        repaired_ns=repaired_ns(story, exposure, history.end_ns),
        ended_as="armed" if story.ended is None else story.ended.reason,
        parts={key: f.verdict for key, f in parts.items()},
    )


def oracles_for(
    story: FaultStory, oracles: Mapping[str, OracleSpec]
) -> Sequence[tuple[str, OracleSpec]]:
    """The oracles that judge a fault; the default one where the experiment has none."""
    return oracles_of(story.planned.slot, oracles)


def oracles_of(slot: str, oracles: Mapping[str, OracleSpec]) -> Sequence[tuple[str, OracleSpec]]:
    """The same by the fault's slot."""
    wanted = {fault_name(slot), slot}
    found = [(n, s) for n, s in oracles.items() if not s.faults or wanted & set(s.faults)]
    return found or [(DEFAULT_ORACLE, OracleSpec())]


def judge_fault(
    history: History,
    story: FaultStory,
    oracles: Mapping[str, OracleSpec],
    paces: Mapping[str, Pace],
) -> FaultVerdict:
    """One verdict for a fault: all oracles that look at it must pass."""
    each = [
        judge_at(history, story, oracle, moment_of(history, story, oracle[1]), paces)
        for oracle in oracles_for(story, oracles)
    ]
    if len(each) == 1:
        return each[0]
    findings = [Finding(v.verdict, v.reasons, v.deciding) for v in each]
    joined = logic.join(logic.all_of([v.verdict for v in each]), findings)
    last = max(each, key=lambda v: v.moment.end_ns)
    repaired = [v.repaired_ns for v in each if v.repaired_ns is not None]
    return FaultVerdict(
        subject=story.id,
        oracle="+".join(v.oracle for v in each),
        verdict=joined.verdict,
        moment=last.moment,
        reasons=joined.reasons,
        deciding=joined.deciding,
        repaired_ns=max(repaired) if repaired else None,
        ended_as=last.ended_as,
        parts={f"{v.oracle}.{key}": part for v in each for key, part in v.parts.items()},
    )


@dataclass(frozen=True)
class RunVerdict:
    """All verdicts of a run."""

    faults: tuple[FaultVerdict, ...]
    groups: Mapping[str, Verdict]
    verdict: Verdict

    @property
    def reasons(self) -> tuple[str, ...]:
        """What kept the run from passing, all faults in order."""
        if not self.faults:
            return ("no fault was injected",)
        return tuple(r for f in self.faults if f.verdict != "pass" for r in f.reasons)

    def data(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "groups": dict(self.groups),
            "faults": [f.data() for f in self.faults],
        }


def judge_run(
    history: History, oracles: Mapping[str, OracleSpec], paces: Mapping[str, Pace]
) -> RunVerdict:
    """Every injected fault, every group, and the run: it passes if all of them do."""
    stories = history.injected()
    faults = tuple(judge_fault(history, s, oracles, paces) for s in stories)
    members: dict[str, list[Verdict]] = {}
    for story, found in zip(stories, faults, strict=True):
        if story.planned.group:
            members.setdefault(story.planned.group, []).append(found.verdict)
    groups = {name: logic.all_of(found) for name, found in sorted(members.items())}
    return RunVerdict(faults, groups, logic.all_of([f.verdict for f in faults]))
