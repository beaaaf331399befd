"""Everything that is judged and scored of a run, from its records alone.

Pure: files in, plain data out; no clock, network, agent or cluster. The same bundle gives the
same bytes, every time and everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from controller.diagnosis import (
    RULES,
    Case,
    DiagnosisResult,
    Judge,
    Rule,
    digest,
    judge_diagnosis,
    rescore,
)
from controller.diagnosis_rules import RuleJudge, same
from controller.oracle import FaultVerdict
from controller.oracle_history import FaultStory
from controller.records import Submission, Verdict, VerdictRecord
from controller.score import FaultMarks, RunResult, Score, fixed
from controller.score_files import RunFiles

SCORE_FORMAT = 1
DIAGNOSIS_ORACLE = "diagnosis"


# --- stages ----------------------------------------------------------------------------------


def marks_of(run: RunFiles, verdict: FaultVerdict) -> FaultMarks:
    """When a fault passed each stage.

    correlated: a report, while it was live, ties an alert of its symptom probe to a cause.
    localized: a report or diagnosis, while it was live, blames its service and no other.
    repaired: its oracle passes; the time is that of the repair, always while it was live.
    """
    story = run.history.faults[verdict.subject]
    truth = story.planned.truth
    symptom = "" if truth is None else truth.symptom_probe
    live = [s for s in run.history.submissions if s.accepted and story.live(s.t_ns)]
    reports = [s for s in live if s.kind == "report"]
    naming = [s for s in live if s.kind in ("report", "diagnosis")]
    acted = [
        a.t_ns
        for a in run.history.actions
        if a.executed and same(a.service, story.service) and story.live(a.t_ns)
    ]
    repaired: int | None = None
    if verdict.verdict == "pass":
        late = verdict.moment.start_ns
        repaired = late if verdict.repaired_ns is None else verdict.repaired_ns
    return FaultMarks(
        fault=story.id,
        service=story.service,
        injected_ns=story.injected_ns or 0,
        correlated_ns=_first(s for s in reports if symptom in _words(s.data.get("alerts"))),
        localized_ns=_first(s for s in naming if _blames(s, story)),
        repaired_ns=repaired,
        acted_ns=min(acted, default=None),
    )


def _first(found: Iterable[Submission]) -> int | None:
    return min((s.t_ns for s in found), default=None)


def _words(value: Any) -> list[str]:
    listed = value if isinstance(value, list | tuple) else [value]
    return [str(v) for v in listed if v]


def _blames(submission: Submission, story: FaultStory) -> bool:
    named = _words(submission.data.get("service"))
    return len(named) == 1 and same(named[0], story.service)


# --- diagnosis -------------------------------------------------------------------------------


def case_of(run: RunFiles, story: FaultStory, submission: Submission) -> Case | None:
    """What a judge of a diagnosis sees; None where there is no ground truth."""
    truth = story.planned.truth
    if truth is None:
        return None
    stories = run.history.faults.values()
    truths = [s.planned.truth for s in stories if s.planned.truth is not None]
    return Case(
        truth=truth,
        kind=story.planned.kind,
        node=story.nodes(submission.t_ns, submission.t_ns)[-1],
        submission=submission.data,
        services=tuple(sorted({*run.services, *(t.service for t in truths)})),
        nodes=tuple(sorted({node for s in stories for node in s.nodes(0, run.history.end_ns)})),
        categories=tuple(sorted({t.category for t in truths})),
    )


@dataclass(frozen=True)
class Diagnosed:
    """A fault's diagnosis: the submission that counts, and what it was found to be."""

    fault: str
    submission: Submission | None = None
    result: DiagnosisResult | None = None
    stored: bool = False

    def data(self) -> dict[str, Any]:
        """Plain data."""
        at = None if self.submission is None else self.submission.t_ns
        found: dict[str, Any] = {"fault": self.fault, "submitted_ns": at, "stored": self.stored}
        if self.result is None:
            return found | {"verdict": "unknown" if self.submission else "fail"}
        reasons = list(self.result.reasons())
        return found | {
            "verdict": self.result.verdict,
            "reasons": reasons,
            "result": self.result.data(),
        }


def diagnosis_of(run: RunFiles, story: FaultStory, judge: Judge | None, rule: Rule) -> Diagnosed:
    """The first diagnosis of a fault within its cap, by the answers that the bundle keeps, else
    by a judge. Raises InvalidSpec for answers that do not fit."""
    since = story.injected_ns or 0
    cap = run.cap_ns(story)
    for submission in run.history.accepted("diagnosis"):
        fits = submission.fault in ("", story.id) and since <= submission.t_ns <= since + cap
        if not fits:
            continue
        stored = _stored(run, story, submission)
        if stored is not None and judge is None:
            return Diagnosed(story.id, submission, rescore(stored.data, submission.data), True)
        case = case_of(run, story, submission)
        if case is None:
            return Diagnosed(story.id, submission)
        result = judge_diagnosis(case, judge or RuleJudge(), rule)
        return Diagnosed(story.id, submission, result)
    return Diagnosed(story.id)


def _stored(run: RunFiles, story: FaultStory, submission: Submission) -> VerdictRecord | None:
    """The newest answers that are kept for exactly this submission."""
    wanted = digest(submission.data)
    found = [
        v
        for v in run.history.verdicts
        if v.oracle == DIAGNOSIS_ORACLE
        and v.subject == story.id
        and v.data.get("submission_sha256") == wanted
    ]
    return found[-1] if found else None


# --- all of it -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scored:
    """A run with all of its verdicts and numbers."""

    run: RunFiles
    score: Score
    diagnoses: tuple[Diagnosed, ...]

    @property
    def result(self) -> RunResult:
        """What it counts as among repeated runs."""
        words = {"pass": True, "fail": False}
        verdicts = [d.data()["verdict"] for d in self.diagnoses]
        diagnosed = None if "unknown" in verdicts or not verdicts else set(verdicts) == {"pass"}
        return RunResult(self.run.header.noise, words.get(self.run.verdict.verdict), diagnosed)

    def _times(self, story: FaultStory, diagnosed: Diagnosed) -> dict[str, Any]:
        """Times from the actual injection; a time that never came counts as the cap."""
        injected, cap = story.injected_ns or 0, self.run.cap_ns(story)
        verdict = next(v for v in self.run.verdict.faults if v.subject == story.id)
        mitigated = verdict.moment.start_ns if verdict.verdict == "pass" else None
        right = diagnosed.result is not None and diagnosed.result.verdict == "pass"
        named = diagnosed.submission.t_ns if right and diagnosed.submission else None
        found: dict[str, Any] = {"fault": story.id, "cap_s": fixed_seconds(cap)}
        for name, at in (("mitigation", mitigated), ("diagnosis", named)):
            took = cap if at is None else at - injected
            found[f"time_to_{name}_s"] = fixed_seconds(took)
            found[f"{name}_came"] = at is not None
        return found

    def data(self) -> dict[str, Any]:
        """Plain data: the same for the same records."""
        stories = self.run.history.injected()
        pairs = zip(stories, self.diagnoses, strict=True)
        return {
            "format": SCORE_FORMAT,
            "run": self.run.header.run,
            "experiment": self.run.header.experiment,
            "seed": self.run.header.seed,
            "noise": self.run.header.noise,
            "repeat": self.run.header.repeat,
            "score": self.score.data(),
            "verdict": self.run.verdict.data(),
            "diagnosis": [d.data() for d in self.diagnoses],
            "times": [self._times(story, diagnosed) for story, diagnosed in pairs],
        }

    def text(self) -> str:
        """The score file's bytes: JSON with sorted keys."""
        return json.dumps(self.data(), sort_keys=True, indent=1, ensure_ascii=False) + "\n"


def fixed_seconds(ns: int) -> str:
    """Seconds with three places."""
    return fixed(Fraction(ns, 10**9), 3)


def score_run(run: RunFiles, judge: Judge | None = None, rule: Rule = RULES["thirds"]) -> Scored:
    """Judge and score a run; without a judge, answers that the bundle keeps are used."""
    verdicts = {v.subject: v for v in run.verdict.faults}
    stories = run.history.injected()
    marks = tuple(marks_of(run, verdicts[s.id]) for s in stories)
    actions = tuple(a.t_ns for a in run.history.actions if a.executed)
    diagnoses = tuple(diagnosis_of(run, s, judge, rule) for s in stories)
    return Scored(run, Score(marks, actions, run.history.end_ns), diagnoses)


def verdict_records(scored: Scored, t_ns: int, wall: str) -> list[VerdictRecord]:
    """What a run writes into its folder before it is sealed: verdicts and answers."""
    run = scored.run
    found = [v.record(wall) for v in run.verdict.faults]
    groups = {**run.verdict.groups, "run": run.verdict.verdict}
    for subject, verdict in groups.items():
        reasons = run.verdict.reasons if subject == "run" else ()
        found.append(_record(subject, "all", verdict, reasons, t_ns, wall))
    for one in scored.diagnoses:
        if one.result is not None and not one.stored:
            found.append(
                VerdictRecord(
                    t_ns=t_ns,
                    wall=wall,
                    subject=one.fault,
                    oracle=DIAGNOSIS_ORACLE,
                    verdict=one.result.verdict,
                    reasons=one.result.reasons(),
                    rule=one.result.rule.name,
                    threshold=str(one.result.rule.threshold),
                    data=one.result.data(),
                )
            )
    return found


def _record(
    subject: str, oracle: str, verdict: Verdict, reasons: tuple[str, ...], t_ns: int, wall: str
) -> VerdictRecord:
    return VerdictRecord(
        t_ns=t_ns, wall=wall, subject=subject, oracle=oracle, verdict=verdict, reasons=reasons
    )
