"""Conditions: statistics with bounds, the baseline, and logic that unknowns cannot fool."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging_kit import S, armed, history, planned, sample, samples
from pydantic import TypeAdapter, ValidationError

from controller.oracle_conditions import evaluate
from controller.oracle_logic import all_of, at_least, levels, number, rank
from controller.oracle_scene import Pace, Scene
from controller.oracle_spec import Condition, parse_oracle, probes_of
from controller.records import SampleRecord, Verdict

CONDITION: TypeAdapter[Any] = TypeAdapter(Condition)
VERDICTS = st.sampled_from(["pass", "fail", "unknown"])


def judged(condition: dict[str, Any], *parts: Any, hold: int = 10, pace: Pace = Pace(2 * S)) -> Any:  # noqa: B008 - frozen
    h = history(planned(), armed(100), *parts)
    scene = Scene(h, 200 * S, (200 + hold) * S, h.injected()[0], paces={"p": pace})
    return evaluate(CONDITION.validate_python(condition), scene)


def hold_of(*verdicts: str, **more: Any) -> list[SampleRecord]:
    return [sample("p", 200 + i, v, **more) for i, v in enumerate(verdicts)]


@settings(deadline=None)
@given(st.lists(VERDICTS, min_size=1, max_size=6), st.integers(1, 6))
def test_logic_is_what_all_fillings_of_the_unknown_agree_on(found: list[Verdict], n: int) -> None:
    import itertools

    fillings = list(
        itertools.product(*[["pass", "fail"] if v == "unknown" else [v] for v in found])
    )
    for result, test in (
        (all_of(found), lambda f: "fail" not in f),
        (at_least(n, found), lambda f: f.count("pass") >= n),
    ):
        answers = {test(f) for f in fillings}
        assert result == (
            "unknown" if len(answers) == 2 else "pass" if answers == {True} else "fail"
        )


def test_nothing_is_no_pass() -> None:
    assert all_of([]) == "unknown"


def test_nested_conditions_and_their_reasons() -> None:
    good = {"type": "level", "probe": "p"}
    bad = {"type": "level", "probe": "q"}
    none = {"type": "level", "probe": "nobody"}
    data = [hold_of(*["pass"] * 10), [sample("q", 200 + i, "fail") for i in range(10)]]
    found = judged({"type": "all", "of": [good, bad, none]}, *data)
    assert found.verdict == "fail"
    assert [d.probe for d in found.deciding] == ["q"], "only what decided"
    assert judged({"type": "any", "of": [good, bad]}, *data).verdict == "pass"
    assert judged({"type": "any", "of": [none, bad]}, *data).verdict == "unknown"
    two = {"type": "at-least", "count": 2, "of": [good, bad, none]}
    assert judged(two, *data).verdict == "unknown"
    nested = {"type": "all", "of": [{"type": "any", "of": [bad, good]}, good]}
    assert judged(nested, *data).verdict == "pass"
    assert probes_of(CONDITION.validate_python(nested)) == {"p", "q"}


def test_level_thresholds() -> None:
    def state(text: str, failures: int, successes: int) -> str:
        words = {"p": "pass", "f": "fail", "u": "unknown"}
        found = levels(hold_of(*[words[c] for c in text]), failures, successes)
        return "".join(v[0] for v in found)

    assert state("pfpffp", 1, 1) == "pfpffp"
    assert state("pfpffp", 2, 1) == "ppppfp"
    assert state("pffpfppf", 2, 2) == "ppffffpp"
    assert state("fp", 3, 3) == "ff"
    assert state("puup", 3, 1) == "puup"
    assert state("", 1, 1) == ""


def test_level_takes_the_probes_own_thresholds() -> None:
    blip = hold_of(*["pass"] * 4, "fail", *["pass"] * 5)
    condition: dict[str, Any] = {"type": "level", "probe": "p"}
    assert judged(condition, blip).verdict == "fail"
    assert judged(condition, blip, pace=Pace(2 * S, failures=2)).verdict == "pass"
    assert judged(condition | {"failures": 1}, blip, pace=Pace(2 * S, failures=2)).verdict == "fail"


def test_level_that_expects_failure() -> None:
    """A metastable overload must go on by itself."""
    condition = {"type": "level", "probe": "p", "expect": "fail"}
    assert judged(condition, hold_of(*["fail"] * 10)).verdict == "pass"
    assert judged(condition, hold_of(*["fail"] * 9, "pass")).verdict == "fail"
    assert judged(condition, hold_of(*["fail"] * 9, "unknown")).verdict == "unknown"


def test_rate_at_its_edge_and_with_unknowns() -> None:
    condition = {"type": "rate", "probe": "p", "at_least": "90%"}
    assert judged(condition, hold_of(*["pass"] * 9, "fail")).verdict == "pass"
    assert judged(condition, hold_of(*["pass"] * 8, "fail", "fail")).verdict == "fail"
    assert judged(condition, hold_of(*["pass"] * 8, "unknown", "fail")).verdict == "unknown"
    assert judged(condition, hold_of(*["pass"] * 9, "unknown")).verdict == "pass"
    assert judged(condition).verdict == "unknown"


def test_percentile_by_nearest_rank() -> None:
    assert rank([15, 20, 35, 40, 50], Decimal(30)) == 20
    assert rank([15, 20, 35, 40, 50], Decimal(40)) == 20
    assert rank([15, 20, 35, 40, 50], Decimal(50)) == 35
    assert rank([15, 20, 35, 40, 50], Decimal(100)) == 50
    assert rank([7], Decimal("0.1")) == 7
    assert rank(list(range(1, 1001)), Decimal("99.9")) == 999


def test_percentile_counts_a_failure_as_slowest() -> None:
    condition = {"type": "percentile", "probe": "p", "p": 90, "at_most": "250ms"}
    quick = hold_of(*["pass"] * 9, duration_ns=S // 4)
    assert judged(condition, quick, sample("p", 209, "fail", duration_ns=1)).verdict == "pass"
    slow = hold_of(*["pass"] * 8, duration_ns=S // 4)
    refused = [sample("p", t, "fail", duration_ns=1) for t in (208, 209)]
    assert judged(condition, slow, refused).verdict == "fail", "refused at once is not fast"
    gap = [sample("p", 208, "unknown"), sample("p", 209, "fail")]
    assert judged(condition, slow, gap).verdict == "unknown"
    edge = hold_of(*["pass"] * 10, duration_ns=S // 4 + 1)
    assert judged(condition, edge).verdict == "fail"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, "pass"),
        (6, "fail"),
        ("5", "pass"),
        (None, "unknown"),
        (True, "unknown"),
        ("x", "unknown"),
    ],
)
def test_percentile_of_a_field(value: object, expected: str) -> None:
    condition = {"type": "percentile", "probe": "p", "field": "depth", "at_most": 5}
    assert judged(condition, hold_of(*["pass"] * 10, data={"depth": value})).verdict == expected


def test_baseline_comparison() -> None:
    condition = {"type": "baseline", "probe": "p", "p": 50, "at_most_times": "1.5"}
    before = samples("p", 0, 60, duration_ns=100)
    for took, expected in ((150, "pass"), (151, "fail")):
        found = judged(condition, before, hold_of(*["pass"] * 10, duration_ns=took))
        assert found.verdict == expected
    slow = hold_of(*["pass"] * 10, duration_ns=10**6)
    assert judged(condition, slow).verdict == "unknown", "no baseline is no verdict"
    assert judged(condition, samples("p", 0, 2), slow).verdict == "unknown"
    broken = samples("p", 0, 60, "fail")
    assert judged(condition, broken, slow).verdict == "unknown"
    assert judged(condition, before).verdict == "unknown"
    rate = {"type": "baseline", "probe": "p", "stat": "rate", "at_least_times": "0.9"}
    half = [sample("p", t, "pass" if t % 2 else "fail") for t in range(60)]
    same = hold_of(*["pass", "fail"] * 5)
    assert judged(rate, half, same).verdict == "pass"
    assert judged(rate, before, same).verdict == "fail"
    least = {"type": "baseline", "probe": "p", "stat": "min", "field": "n", "at_least_times": 1}
    many = samples("p", 0, 60, data={"n": 3})
    assert judged(least, many, hold_of(*["pass"] * 10, data={"n": 3})).verdict == "pass"
    assert judged(least, many, hold_of(*["pass"] * 10, data={"n": 2})).verdict == "fail"
    assert judged(least, many, hold_of(*["pass"] * 10)).verdict == "unknown"


@settings(deadline=None)
@given(
    st.lists(VERDICTS, min_size=10, max_size=10),
    st.lists(st.booleans(), min_size=10, max_size=10),
    st.sampled_from(
        [
            {"type": "rate", "probe": "p", "at_least": "70%"},
            {"type": "percentile", "probe": "p", "p": 70, "at_most": "50ms"},
            {"type": "percentile", "probe": "p", "p": 70, "at_least": "50ms"},
            {"type": "level", "probe": "p"},
            {"type": "baseline", "probe": "p", "stat": "rate", "at_least_times": "0.7"},
        ]
    ),
)
def test_a_definite_verdict_stands_whatever_the_unknown_samples_were(
    verdicts: list[str], truth: list[bool], condition: dict[str, Any]
) -> None:
    before = samples("p", 0, 60, duration_ns=S // 100)
    known = [
        ("pass" if t else "fail") if v == "unknown" else v
        for v, t in zip(verdicts, truth, strict=True)
    ]
    unsure = judged(condition, before, hold_of(*verdicts)).verdict
    sure = judged(condition, before, hold_of(*known)).verdict
    assert sure != "unknown"
    assert unsure in ("unknown", sure)


def test_a_window_that_is_not_covered_cannot_pass() -> None:
    condition = {"type": "rate", "probe": "p", "at_least": "50%"}
    assert judged(condition, hold_of(*["pass"] * 10)).verdict == "pass"
    assert judged(condition, hold_of(*["pass"] * 5)).verdict == "unknown"
    assert judged(condition, hold_of(*["fail"] * 5)).verdict == "fail"
    late = [sample("p", t) for t in range(205, 210)]
    assert judged(condition, late).verdict == "unknown"
    assert judged(condition | {"samples": 11}, hold_of(*["pass"] * 10)).verdict == "unknown"


@pytest.mark.parametrize(
    "bad",
    [
        {"hold": "60"},
        {"hold": "0s"},
        {"cap": "-1s"},
        {"require": {"type": "magic"}},
        {"require": {"type": "all", "of": []}},
        {"require": {"type": "at-least", "count": 3, "of": [{"type": "gone"}]}},
        {"require": {"type": "percentile", "probe": "p"}},
        {"require": {"type": "percentile", "probe": "p", "at_most": "fast"}},
        {"require": {"type": "percentile", "probe": "p", "p": 0, "at_most": 1}},
        {"require": {"type": "baseline", "probe": "p"}},
        {"require": {"type": "baseline", "probe": "p", "window": "before", "at_most_times": 2}},
        {"require": {"type": "rate", "probe": "p", "at_least": 0.9}},
        {"require": {"type": "level"}},
        {"unknown": 1},
        [],
        None,
    ],
)
def test_bad_oracles_are_refused(bad: object) -> None:
    with pytest.raises(ValidationError):
        parse_oracle(bad)


def test_number_takes_only_numbers() -> None:
    assert number("0.1") == number(Decimal("0.1"))
    for bad in (None, True, "", "one", [], {}, float("nan"), float("inf")):
        assert number(bad) is None
