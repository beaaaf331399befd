"""Scores: golden vectors of published tables, exactness, and what must not be assumed."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.score import (
    BIN_NS,
    OUTCOMES,
    FaultMarks,
    RunResult,
    Score,
    action_bins,
    fixed,
    median,
    repeated,
    run_score,
    seen_so_far,
)

GOLDEN = [
    (58, 30, 7, 1, 35, "20.1"),
    (59, 12, 2, 3, 13, "7.3"),
    (55, 25, 4, 1, 28, "17.0"),
    (30, 24, 6, 15, 35, "38.9"),
]


def marks(n: int, *stages: int | None, acted: int | None = None) -> FaultMarks:
    return FaultMarks(f"f{n:03}", "db", 0, *stages, acted)


def faults_with(n: int, correlated: int, localized: int, repaired: int, credit: int) -> Score:
    """Faults that have these stage counts and this sum of credits, found by search.

    a: correlated and localized and repaired, b: correlated and localized, c: only correlated;
    what is left of localized and repaired goes to faults that were never correlated.
    """
    for three in range(repaired + 1):
        for two in range(localized - three + 1):
            if correlated + two + 2 * three != credit or three + two > correlated:
                continue
            left_l, left_r = localized - three - two, repaired - three
            corr_repaired = max(0, left_r - (n - correlated))
            if corr_repaired > correlated - three - two or left_l > n - correlated:
                continue
            rows = [(1, 2, 3)] * three + [(1, 2, None)] * two
            plain = correlated - three - two
            rows += [(1, None, 3)] * corr_repaired + [(1, None, None)] * (plain - corr_repaired)
            rest = n - correlated
            rows += [
                (None, 2 if i < left_l else None, 3 if i < left_r - corr_repaired else None)
                for i in range(rest)
            ]
            return Score(tuple(marks(i, *row) for i, row in enumerate(rows)))
    raise AssertionError("the golden vector cannot be")


@pytest.mark.parametrize(("n", "correlated", "localized", "repaired", "credit", "score"), GOLDEN)
def test_golden_vectors(
    n: int, correlated: int, localized: int, repaired: int, credit: int, score: str
) -> None:
    assert fixed(run_score(credit, n)) == score
    found = faults_with(n, correlated, localized, repaired, credit)
    data = found.data()
    assert len(found.marks) == n
    assert [data["stages"][s]["faults"] for s in ("correlated", "localized", "repaired")] == [
        correlated,
        localized,
        repaired,
    ]
    assert (data["credit"], data["score"]) == (credit, score)
    assert sum(data["outcomes"].values()) == n


def test_no_faults_is_no_score_and_impossible_sums_are_refused() -> None:
    assert Score(()).data()["score"] == "—"
    assert run_score(0, 0) is None
    with pytest.raises(ValueError, match="cannot have"):
        run_score(4, 1)
    with pytest.raises(ValueError, match="cannot have"):
        run_score(-1, 3)


def test_every_combination_of_stages_has_one_outcome() -> None:
    expected = {
        (1, 1, 1): ("handled", 3),
        (1, 1, 0): ("located", 2),
        (1, 0, 1): ("repaired but not handled", 1),
        (0, 1, 1): ("repaired but not handled", 0),
        (1, 0, 0): ("correlated only", 1),
        (0, 1, 0): ("located", 0),
        (0, 0, 1): ("repaired but not handled", 0),
        (0, 0, 0): ("missed", 0),
    }
    for bits in product((0, 1), repeat=3):
        stages = [10 if bit else None for bit in bits]
        outcome, credit = expected[bits]
        assert (marks(0, *stages).outcome, marks(0, *stages).credit) == (outcome, credit)
        acted = marks(0, *stages, acted=5)
        assert acted.outcome == (outcome if bits[2] else "acted on")
        assert acted.credit == credit, "an action is no stage"
        assert acted.outcome in OUTCOMES


def test_medians_are_from_injection_and_never_ordered() -> None:
    late = FaultMarks("a", "s", 10 * 10**9, 70 * 10**9, 20 * 10**9, None)
    soon = FaultMarks("b", "s", 0, 3 * 10**9, None, None)
    stages = Score((late, soon)).data()["stages"]
    assert stages["correlated"]["median_s"] == "31.5"
    assert stages["localized"]["median_s"] == "10.0"
    assert stages["repaired"]["median_s"] == "—"
    assert median([5, 1, 2]) == 2
    assert median([1, 2]) == Fraction(3, 2)
    assert median([]) is None


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (Fraction(1, 20), 1, "0.1"),
        (Fraction(1, 4), 1, "0.3"),
        (Fraction(-1, 4), 1, "-0.3"),
        (Fraction(-1, 100), 1, "0.0"),
        (Fraction(1799, 90), 1, "20.0"),
        (Fraction(999, 10), 0, "100"),
        (Fraction(116, 150), 3, "0.773"),
        (0, 1, "0.0"),
        (None, 1, "—"),
    ],
)
def test_fixed_rounds_halves_away_from_zero(value: Fraction, digits: int, text: str) -> None:
    assert fixed(value, digits) == text


@settings(deadline=None)
@given(st.fractions(min_value=-10000, max_value=10000), st.integers(1, 6))
def test_fixed_is_within_half_a_unit(value: Fraction, digits: int) -> None:
    assert abs(Fraction(fixed(value, digits)) - value) <= Fraction(1, 2 * 10**digits)


def test_seen_so_far_counts_only_what_was_injected_by_then() -> None:
    first = FaultMarks("a", "s", 0, 5, None, 30)
    second = FaultMarks("b", "s", 20, None, None, None)
    rows = seen_so_far([first, second])
    assert [row["t_ns"] for row in rows] == [0, 5, 20, 30]
    assert [row["correlated"]["share"] for row in rows] == ["0", "1", "1/2", "1/2"]
    assert [row["repaired"]["count"] for row in rows] == [0, 0, 0, 1]


def test_action_bins_cover_the_run() -> None:
    bins = action_bins([-5, 0, BIN_NS - 1, BIN_NS], 3 * BIN_NS)
    assert [b["actions"] for b in bins] == [3, 1, 0]
    assert action_bins([], 0) == [{"from_ns": 0, "actions": 0}]
    assert [b["actions"] for b in action_bins([5 * BIN_NS], BIN_NS)] == [0, 0, 0, 0, 0, 1]


def test_repeated_runs_count_unknown_as_no_success() -> None:
    runs = [
        RunResult(False, True, True),
        RunResult(False, True, False),
        RunResult(True, False, True),
        RunResult(True, None, None),
    ]
    found = repeated(runs)
    assert found["all"]["mitigation"]["of"] == "2/4"
    assert found["all"]["end_to_end"]["of"] == "1/4"
    assert found["all"]["mitigation_given_right_diagnosis"]["of"] == "1/2"
    assert found["all"]["mitigation_given_wrong_diagnosis"]["of"] == "1/1"
    assert found["all"]["unknown_mitigation"] == 1
    assert found["noise on"]["mitigation"]["percent"] == "0.0"
    assert found["noise on"]["mitigation_given_wrong_diagnosis"]["percent"] == "—"
    assert "noise off" not in repeated(runs[2:])


times = st.one_of(st.none(), st.integers(0, 10**12))


@settings(deadline=None)
@given(st.lists(st.builds(FaultMarks, st.just("f"), st.just("s"), st.just(0), times, times, times)))
def test_score_is_bounded_and_data_is_json(all_marks: list[FaultMarks]) -> None:
    score = Score(tuple(all_marks), end_ns=1)
    assert score.value is None or 0 <= score.value <= 100
    assert sum(score.data()["outcomes"].values()) == len(all_marks)
    assert json.dumps(score.data(), sort_keys=True) == json.dumps(score.data(), sort_keys=True)
