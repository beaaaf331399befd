"""Diagnosis: exact rules, strict answers, and a rule judge that cannot be talked round."""

from __future__ import annotations

import itertools
import json
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.diagnosis import (
    DIMENSIONS,
    QUESTIONS,
    RULES,
    Answer,
    Case,
    answer_from,
    combine,
    conclude,
    digest,
    dimension_scores,
    judge_diagnosis,
    rescore,
    rule_named,
)
from controller.diagnosis_judges import ModelJudge, PersonJudge
from controller.diagnosis_rules import RuleJudge, covers, names, words
from controller.records import GroundTruth
from controller.score import fixed
from nodeagent.model.errors import InvalidSpec

TRUTH = GroundTruth(
    category="disk",
    mechanism="latent sectors under a table",
    service="postgres",
    scope=("checkout", "postgres"),
    symptom_probe="orders-query",
    artifact="/dev/vdb sectors 2048-2055",
    root_cause="Sectors of the table orders cannot be read.",
)
RIGHT = {
    "service": "Postgres",
    "artifact": "/dev/vdb, sectors 2048-2055",
    "category": "disk",
    "mechanism": "latent sector error under the table orders",
    "symptom": "orders-query fails",
    "node": "n1",
    "scope": ["postgres", "checkout"],
}


def case(submission: dict[str, object]) -> Case:
    return Case(
        TRUTH,
        "latent-sector",
        "n1",
        submission,
        services=("postgres", "checkout", "cart", "redis"),
        nodes=("n1", "n2"),
    )


def answers(*yes: str) -> list[Answer]:
    return [Answer(q.id, q.id in yes, "because") for q in QUESTIONS]


def test_nine_questions_three_in_each_dimension() -> None:
    assert len(QUESTIONS) == 9
    assert [sum(q.dimension == d for q in QUESTIONS) for d in DIMENSIONS] == [3, 3, 3]


def test_golden_thirds_passes_exactly_at_seven_ninths() -> None:
    scores = (Fraction(1), Fraction(1), Fraction(1, 3))
    assert combine(scores, RULES["thirds"]) == Fraction(7, 9) == RULES["thirds"].threshold
    assert 1 / 3 * 1 + 1 / 3 * 1 + 1 / 3 * (1 / 3) < 7 / 9, "the float that must not decide"
    seven = [q.id for q in QUESTIONS if q.id not in ("reached", "spared")]
    result = conclude(answers(*seven), RULES["thirds"], "test", {})
    assert result.scores == scores
    assert result.verdict == "pass"
    six = conclude(answers(*seven[:-1]), RULES["thirds"], "test", {})
    assert six.verdict == "fail"


def test_golden_code_rule() -> None:
    scores = (Fraction(1), Fraction(1), Fraction(1, 3))
    assert fixed(combine(scores, RULES["code"]), 3) == "0.773"
    assert combine((Fraction(1), Fraction(1), Fraction(1)), RULES["code"]) == 1
    for rule in RULES.values():
        assert sum(rule.weights) == 1


def test_code_rule_at_its_edge() -> None:
    """All 64 score triples: exact comparison with 0.70."""
    thirds = [Fraction(i, 3) for i in range(4)]
    for triple in itertools.product(thirds, repeat=3):
        a, b, c = (int(3 * s) for s in triple)
        assert (combine(triple, RULES["code"]) >= Fraction(7, 10)) == (
            33 * a + 33 * b + 34 * c >= 210
        )


def test_unknown_rule_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="halves"):
        rule_named("halves")


def test_answers_must_be_all_nine_once() -> None:
    with pytest.raises(InvalidSpec, match="unanswered: spared"):
        dimension_scores(answers()[:-1])
    with pytest.raises(InvalidSpec, match="answered twice: service"):
        dimension_scores([*answers(), answers()[0]])
    with pytest.raises(InvalidSpec, match="unknown: vibe"):
        dimension_scores([*answers(), Answer("vibe", True, "")])


@pytest.mark.parametrize("bad", [None, "", "maybe", 1, 0, [], {}, {"answer": None}, "yes no"])
def test_only_yes_or_no_is_an_answer(bad: object) -> None:
    with pytest.raises(InvalidSpec, match="neither yes nor no"):
        answer_from("service", bad)


@pytest.mark.parametrize("bad", ["1.1", -1, "x", "1/0", float("nan"), [1]])
def test_confidence_is_between_0_and_1(bad: object) -> None:
    with pytest.raises(InvalidSpec, match="confidence"):
        answer_from("service", {"answer": "yes", "confidence": bad})


def test_rescoring_needs_no_judge_and_gives_the_same_bytes() -> None:
    result = judge_diagnosis(case(RIGHT), RuleJudge(), RULES["thirds"])
    stored = json.loads(json.dumps(result.data()))
    again = rescore(stored, RIGHT)
    assert json.dumps(again.data()) == json.dumps(result.data())
    with pytest.raises(InvalidSpec, match="another submission"):
        rescore(stored, RIGHT | {"service": "redis"})
    for key in ("weights", "threshold", "answers", "rule"):
        with pytest.raises(InvalidSpec, match="cannot be read"):
            rescore({k: v for k, v in stored.items() if k != key}, RIGHT)


def test_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({"a": 1}) != digest({"a": "1"})


def test_rule_judge_takes_a_right_diagnosis() -> None:
    result = judge_diagnosis(case(RIGHT), RuleJudge(), RULES["thirds"])
    assert [a.question for a in result.answers if not a.yes] == []
    assert result.score == 1


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        ({"service": "redis"}, {"service", "nothing-else"}),
        ({"service": ["postgres", "redis"]}, {"service", "nothing-else"}),
        ({"service": []}, {"service", "nothing-else"}),
        ({"artifact": "/dev/vdc sectors 1-2"}, {"artifact"}),
        ({"category": "network"}, {"category"}),
        ({"mechanism": "packets are lost"}, {"mechanism"}),
        ({"symptom": "cart is slow"}, {"symptom"}),
        ({"node": "n2"}, {"node"}),
        ({"scope": ["postgres"]}, {"reached"}),
        ({"scope": ["postgres", "checkout", "cart"]}, {"spared"}),
        ({"scope": []}, {"reached", "spared"}),
    ],
)
def test_each_wrong_field_costs_its_question(change: dict[str, object], lost: set[str]) -> None:
    found = RuleJudge().answer(case(RIGHT | change))
    assert {a.question for a in found if not a.yes} == lost
    assert all(a.evidence for a in found)


def test_free_text_that_is_right() -> None:
    text = (
        "On node n1 the disk under postgres has latent sector errors "
        "(/dev/vdb sectors 2048-2055); orders-query fails and checkout feels it."
    )
    found = {a.question: a for a in RuleJudge().answer(case({"text": text}))}
    assert found["artifact"].yes
    assert found["mechanism"].yes
    assert found["category"].yes
    assert found["node"].yes
    assert found["symptom"].yes
    assert found["category"].confidence == Fraction(1, 2)
    assert not found["service"].yes, "two services are named: which one is blamed is open"


def test_free_text_that_names_everything_blames_nothing() -> None:
    text = "postgres checkout cart redis disk network process load n1 n2"
    found = {a.question: a.yes for a in RuleJudge().answer(case({"text": text}))}
    names_all = ("service", "nothing-else", "category", "node", "spared")
    assert not any(found[q] for q in names_all)


def test_nothing_said_is_nothing_right() -> None:
    for submission in ({}, {"text": ""}, {"text": None}):
        assert not any(a.yes for a in RuleJudge().answer(case(submission)))


def test_denials() -> None:
    assert not names(words("it is not the disk"), "disk")
    assert not names(words("the disk is healthy"), "disk")
    assert not names(words("postgres isn't broken"), "nothing")
    assert names(words("not the network: the disk"), "disk")
    assert not names(words("not the network: the disk"), "network")
    assert names(words("The network was ruled fine early on, later I saw the disk fail"), "disk")
    assert not names(words("postgresql is down"), "postgres"), "part of a word is another word"
    assert not covers([], "")


def test_person_judge_reads_a_file() -> None:
    text = "answers:\n" + "".join(
        f"  {q.id}: {{answer: yes, evidence: saw it, confidence: 0.7}}\n" for q in QUESTIONS
    )
    result = judge_diagnosis(case(RIGHT), PersonJudge(text, "Ada"), RULES["code"])
    assert (result.score, result.judge) == (1, "Ada")
    assert result.answers[0].confidence == Fraction(7, 10)
    for bad in ("answers: [", "answers: 3", "nothing", ""):
        with pytest.raises(InvalidSpec):
            PersonJudge(bad).answer(case(RIGHT))


def test_model_judge_is_parsed_strictly() -> None:
    seen: list[str] = []

    def complete(prompt: str) -> str:
        seen.append(prompt)
        table = {q.id: {"answer": "no", "evidence": "e", "confidence": 0.5} for q in QUESTIONS}
        return "```json\n" + json.dumps({"answers": table}) + "\n```"

    result = judge_diagnosis(case(RIGHT), ModelJudge(complete, "m1"), RULES["thirds"])
    assert (result.score, result.judge, len(seen)) == (0, "model m1", 1)
    assert "2048-2055" in seen[0]
    for reply in ("I think yes", "{}", '{"answers": {"service": "yes"}}'):
        judge = ModelJudge(lambda _, r=reply: r, "m1")  # type: ignore[misc]
        with pytest.raises(InvalidSpec):
            judge_diagnosis(case(RIGHT), judge, RULES["thirds"])


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([*RIGHT, "text"]), st.text() | st.lists(st.text())))
def test_rule_judge_answers_whatever_it_is_given(submission: dict[str, object]) -> None:
    one = judge_diagnosis(case(submission), RuleJudge(), RULES["thirds"])
    two = judge_diagnosis(case(submission), RuleJudge(), RULES["thirds"])
    assert one.data() == two.data()
    assert len(one.answers) == 9
