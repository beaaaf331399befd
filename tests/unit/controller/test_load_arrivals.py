"""Arrivals are a pure function: counts, shapes, seeds, and what is refused."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from controller.load.arrivals import arrivals, rate_at, total_ns
from controller.load.spec import LoadSpec, format_rate, parse_load, parse_rate
from controller.load.windows import Tally, judge

REQUEST = {"type": "http", "host": "h"}


def load(*stages: dict[str, str], **more: Any) -> LoadSpec:
    return parse_load({"request": REQUEST, "stages": list(stages), **more})


def test_uniform_is_exact() -> None:
    found = list(arrivals(load({"rate": "4/s", "for": "1s"}, arrivals="uniform")))
    assert found == [125_000_000, 375_000_000, 625_000_000, 875_000_000]
    odd = list(
        arrivals(
            load(
                {"rate": "1/s", "for": "1500ms"},
                {"rate": "1/s", "for": "1500ms"},
                arrivals="uniform",
            )
        )
    )
    assert odd == [500_000_000, 1_500_000_000, 2_500_000_000], "no request is lost between stages"


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 200), st.integers(0, 200), st.integers(1, 5)),
        min_size=1,
        max_size=4,
    )
)
def test_uniform_counts_and_order_whatever_the_stages(shape: list[tuple[int, int, int]]) -> None:
    stages = [{"rate": f"{a}/s", "to": f"{b}/s", "for": f"{s}s"} for a, b, s in shape]
    spec = load(*stages, arrivals="uniform")
    found = list(arrivals(spec))
    total = sum(Fraction(a + b, 2) * s for a, b, s in shape)
    assert abs(len(found) - total) <= 1
    assert found == sorted(found)
    assert all(0 <= t < total_ns(spec.stages) and t % 1000 == 0 for t in found)


def test_a_ramp_against_numeric_integration() -> None:
    spec = load({"rate": "10/s", "to": "100/s", "for": "10s"}, arrivals="uniform")
    found = list(arrivals(spec))
    step, count, expected = 10**-4, 0.0, []
    for i in range(100_000):
        before = count
        count += float(rate_at(spec.stages, int((i + 0.5) * step * 1e9))) * step
        if math.floor(count + 0.5) > math.floor(before + 0.5):
            expected.append((i + 1) * step)
    assert len(found) == len(expected) == 550
    assert max(abs(t / 1e9 - e) for t, e in zip(found, expected, strict=True)) < 2 * step


def test_poisson_is_seeded_and_looks_like_it() -> None:
    spec = load({"rate": "100/s", "for": "100s"}, seed=17)
    found = list(arrivals(spec))
    assert found == list(arrivals(spec))
    assert found != list(arrivals(load({"rate": "100/s", "for": "100s"}, seed=18)))
    assert abs(len(found) - 10_000) < 400, "four standard deviations"
    gaps = [b - a for a, b in pairwise(found)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((g - mean) ** 2 for g in gaps) / len(gaps))
    assert abs(deviation / mean - 1) < 0.06, "exponential gaps: deviation equals mean"


def test_the_same_seed_is_the_same_load_everywhere() -> None:
    spec = load(
        {"rate": "50/s", "for": "20s"}, {"rate": "5/s", "to": "300/s", "for": "10s"}, seed=17
    )
    text = ",".join(str(t) for t in arrivals(spec))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "5d2c9ba036d01b71"


def test_stages_shape_the_poisson_load_too() -> None:
    spec = load(
        {"rate": "10/s", "for": "50s"},
        {"rate": "0/s", "for": "50s"},
        {"rate": "40/s", "for": "50s"},
    )
    found = list(arrivals(spec))
    counts = [sum(1 for t in found if i * 50 <= t / 1e9 < (i + 1) * 50) for i in range(3)]
    assert abs(counts[0] - 500) < 90
    assert counts[1] == 0
    assert abs(counts[2] - 2000) < 180


@pytest.mark.parametrize(
    ("text", "rate", "shown"),
    [
        ("50/s", Fraction(50), "50/s"),
        ("90/m", Fraction(3, 2), "90/m"),
        ("0.5/s", Fraction(1, 2), "30/m"),
        ("10/h", Fraction(1, 360), "10/h"),
        ("0/s", Fraction(0), "0/s"),
    ],
)
def test_rates(text: str, rate: Fraction, shown: str) -> None:
    assert parse_rate(text) == rate
    assert format_rate(rate) == shown
    assert parse_rate(shown) == rate


@pytest.mark.parametrize(
    "bad",
    ["50", "50rps", "-1/s", "1e3/s", "/s", "50/d", "", None, 50, "２/s", "10000000/s", "1 /s"],
)
def test_bad_rates(bad: object) -> None:
    with pytest.raises(ValueError, match=r"rate|more than"):
        parse_rate(bad)


@pytest.mark.parametrize(
    "change",
    [
        {"stages": []},
        {"stages": [{"rate": "1/s", "for": "0s"}]},
        {"stages": [{"rate": "1/s"}]},
        {"stages": [{"rate": "1000000/s", "for": "1h"}]},
        {"window": "10ms"},
        {"in_flight": 0},
        {"request": {"type": "sql", "engine": "mysql", "host": "h"}},
        {"request": {"type": "http", "host": "h", "follow": True}},
        {"request": {"type": "tcp", "host": "h", "port": 1}},
        {"request": {"type": "grpc", "host": "h", "port": 1, "message": "xyz"}},
        {"rps": 5},
    ],
)
def test_bad_loads(change: dict[str, Any]) -> None:
    data = {"request": REQUEST, "stages": [{"rate": "1/s", "for": "1s"}]}
    with pytest.raises(ValidationError):
        parse_load(data | change)


def test_windows_are_judged_at_their_edges() -> None:
    spec = load({"rate": "1/s", "for": "1s"}, latency="100ms")
    good = [100_000_000] * 99
    assert judge(spec, Tally(100, ok=99, failed=1, latencies_ns=good)).verdict == "pass"
    assert judge(spec, Tally(100, ok=98, failed=2, latencies_ns=good[:98])).verdict == "fail"
    slow = [100_000_001] * 100
    assert judge(spec, Tally(100, ok=100, latencies_ns=slow)).verdict == "fail"
    assert judge(spec, Tally(0)).verdict == "unknown"
    assert judge(spec, Tally(100, ok=99, dropped=1, latencies_ns=good)).verdict == "unknown"
    assert judge(spec, Tally(100, ok=100, late=1, latencies_ns=good)).verdict == "unknown"
