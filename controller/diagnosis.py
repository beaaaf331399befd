"""Diagnosis: nine yes/no questions in three dimensions, and two named rules over them.

Who answers is pluggable (`Judge`); what follows from the answers is exact and pure.
Answers are kept in the bundle, so that scoring again never asks again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, Protocol

from controller.records import GroundTruth, Verdict
from controller.score import fixed
from nodeagent.model.errors import InvalidSpec

Dimension = Literal["localisation", "characterisation", "scope"]
DIMENSIONS: tuple[Dimension, ...] = ("localisation", "characterisation", "scope")


@dataclass(frozen=True)
class Question:
    """One yes/no question; yes is good for the operator."""

    id: str
    dimension: Dimension
    text: str


QUESTIONS: tuple[Question, ...] = (
    Question("service", "localisation", "Does it blame the service that is responsible?"),
    Question("artifact", "localisation", "Does it name the responsible object?"),
    Question("nothing-else", "localisation", "Does it blame nothing that is innocent?"),
    Question("category", "characterisation", "Is the kind of trouble right?"),
    Question("mechanism", "characterisation", "Is it right about what breaks and how?"),
    Question("symptom", "characterisation", "Does it tie the cause to the symptom that was seen?"),
    Question("node", "scope", "Does it name the node where the cause sits?"),
    Question("reached", "scope", "Does it name all services and nodes that feel it?"),
    Question("spared", "scope", "Does it leave out those that do not?"),
)
_BY_ID = {q.id: q for q in QUESTIONS}


@dataclass(frozen=True)
class Answer:
    """A judge's answer to one question, with what it rests on.

    confidence: 0 to 1, exact; kept for readers, it does not weigh in the score.
    """

    question: str
    yes: bool
    evidence: str
    confidence: Fraction = Fraction(1)

    def data(self) -> dict[str, Any]:
        """Plain data for the bundle."""
        return {
            "question": self.question,
            "answer": "yes" if self.yes else "no",
            "evidence": self.evidence,
            "confidence": str(self.confidence),
        }


@dataclass(frozen=True)
class Case:
    """What a judge may look at."""

    truth: GroundTruth
    kind: str
    """Fault kind, such as latent-sector."""
    node: str
    submission: Mapping[str, Any]
    services: tuple[str, ...] = ()
    """All services that the experiment knows, for telling who else was blamed."""
    nodes: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()


class Judge(Protocol):
    """Answers all nine questions about a submission. May raise FaultError classes."""

    @property
    def name(self) -> str: ...

    def answer(self, case: Case) -> Sequence[Answer]: ...


@dataclass(frozen=True)
class Rule:
    """Weights of the dimensions in the order of DIMENSIONS, and the least score that passes."""

    name: str
    weights: tuple[Fraction, Fraction, Fraction]
    threshold: Fraction


_THIRD = Fraction(1, 3)
RULES: dict[str, Rule] = {
    "thirds": Rule("thirds", (_THIRD, _THIRD, _THIRD), Fraction(7, 9)),
    "code": Rule(
        "code", (Fraction(33, 100), Fraction(33, 100), Fraction(34, 100)), Fraction(7, 10)
    ),
}


def rule_named(name: str) -> Rule:
    """A rule by its name. Raises InvalidSpec."""
    if name not in RULES:
        raise InvalidSpec(f"no rule is called {name!r}", f"there are {', '.join(RULES)}")
    return RULES[name]


def combine(scores: Sequence[Fraction], rule: Rule) -> Fraction:
    """The weighted sum of three dimension scores, exact."""
    return sum((w * s for w, s in zip(rule.weights, scores, strict=True)), Fraction(0))


@dataclass(frozen=True)
class DiagnosisResult:
    """What the answers come to under a rule."""

    rule: Rule
    answers: tuple[Answer, ...]
    judge: str
    submission_sha256: str
    scores: tuple[Fraction, ...] = field(default=())

    @property
    def score(self) -> Fraction:
        """0 to 1."""
        return combine(self.scores, self.rule)

    @property
    def verdict(self) -> Verdict:
        """pass if the score reaches the rule's threshold."""
        return "pass" if self.score >= self.rule.threshold else "fail"

    def reasons(self) -> tuple[str, ...]:
        """One line for each question that was answered with no."""
        return tuple(
            f"{_BY_ID[a.question].text} No: {a.evidence}" for a in self.answers if not a.yes
        )

    def data(self) -> dict[str, Any]:
        """Plain data for the bundle: enough to score again without a judge."""
        return {
            "judge": self.judge,
            "submission_sha256": self.submission_sha256,
            "answers": [a.data() for a in self.answers],
            "dimensions": dict(zip(DIMENSIONS, map(str, self.scores), strict=True)),
            "score": str(self.score),
            "score_shown": fixed(self.score, 3),
            "rule": self.rule.name,
            "weights": [str(w) for w in self.rule.weights],
            "threshold": str(self.rule.threshold),
        }


def digest(submission: Mapping[str, Any]) -> str:
    """SHA-256 of a submission's canonical JSON (sorted keys, no blanks, UTF-8)."""
    text = json.dumps(submission, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def dimension_scores(answers: Sequence[Answer]) -> tuple[Fraction, ...]:
    """Share of yes in each dimension. Raises InvalidSpec unless all nine are answered once."""
    given = [a.question for a in answers]
    unknown = sorted(set(given) - set(_BY_ID))
    missing = [q.id for q in QUESTIONS if q.id not in given]
    twice = sorted({q for q in given if given.count(q) > 1})
    for what, names in (("unknown", unknown), ("unanswered", missing), ("answered twice", twice)):
        if names:
            raise InvalidSpec(f"questions {what}: {', '.join(names)}", "there are nine questions")
    scores = []
    for dimension in DIMENSIONS:
        ids = [q.id for q in QUESTIONS if q.dimension == dimension]
        yes = sum(1 for a in answers if a.question in ids and a.yes)
        scores.append(Fraction(yes, len(ids)))
    return tuple(scores)


def conclude(
    answers: Sequence[Answer], rule: Rule, judge: str, submission: Mapping[str, Any]
) -> DiagnosisResult:
    """The result of nine answers under a rule. Raises InvalidSpec."""
    scores = dimension_scores(answers)
    order = list(_BY_ID)
    ordered = tuple(sorted(answers, key=lambda a: order.index(a.question)))
    return DiagnosisResult(rule, ordered, judge, digest(submission), scores)


def judge_diagnosis(case: Case, judge: Judge, rule: Rule) -> DiagnosisResult:
    """Ask a judge. Raises what the judge raises, and InvalidSpec for answers that do not fit."""
    return conclude(judge.answer(case), rule, judge.name, case.submission)


def answer_from(question: str, data: Any) -> Answer:
    """An answer from decoded JSON or YAML: yes, no, or {answer, evidence, confidence}.

    Raises InvalidSpec: anything but an explicit yes or no is no answer.
    """
    fields = data if isinstance(data, Mapping) else {"answer": data}
    said = fields.get("answer")
    words = {"yes": True, "no": False}
    yes = words.get(said.strip().lower()) if isinstance(said, str) else said
    if not isinstance(yes, bool):
        raise InvalidSpec(f"{question}: {said!r} is neither yes nor no")
    try:
        confidence = Fraction(str(fields.get("confidence", 1)))
    except (ValueError, ZeroDivisionError) as exc:
        raise InvalidSpec(f"{question}: confidence is not a number", str(exc)) from exc
    if not 0 <= confidence <= 1:
        raise InvalidSpec(f"{question}: confidence is not between 0 and 1")
    return Answer(question, yes, str(fields.get("evidence", "")), confidence)


def rescore(stored: Mapping[str, Any], submission: Mapping[str, Any]) -> DiagnosisResult:
    """Score again from what the bundle keeps, under the rule that was stored; asks nobody.

    Raises InvalidSpec if the answers belong to another submission, or do not fit.
    """
    if stored.get("submission_sha256") != digest(submission):
        raise InvalidSpec(
            "the stored answers belong to another submission",
            "the submission's SHA-256 is not the one that was judged",
        )
    try:
        weights = tuple(Fraction(w) for w in stored["weights"])
        threshold = Fraction(stored["threshold"])
        rows = list(stored["answers"])
        rule = Rule(str(stored["rule"]), (weights[0], weights[1], weights[2]), threshold)
        answers = [answer_from(str(row["question"]), row) for row in rows]
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError) as exc:
        raise InvalidSpec("the stored diagnosis cannot be read", repr(exc)) from exc
    return conclude(answers, rule, str(stored.get("judge", "")), submission)
