"""Three-valued logic, and statistics that know what was not measured.

Kleene's rules: a conclusion stands only if it would stand whatever the unknown parts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from controller.records import SampleRecord, SampleRef, Verdict

Number = Fraction | float
"""Exact numbers; the floats are only the two infinities."""
INFINITE = float("inf")


@dataclass(frozen=True)
class Finding:
    """What a condition came to, why, and by which samples."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()
    deciding: tuple[SampleRef, ...] = ()


def all_of(verdicts: Sequence[Verdict]) -> Verdict:
    """pass if all pass, fail if any fails. Of none: unknown, never pass."""
    if "fail" in verdicts:
        return "fail"
    return "unknown" if not verdicts or "unknown" in verdicts else "pass"


def at_least(count: int, verdicts: Sequence[Verdict]) -> Verdict:
    """pass if so many pass, fail if they cannot any more."""
    passed, unknown = verdicts.count("pass"), verdicts.count("unknown")
    if passed >= count:
        return "pass"
    return "unknown" if passed + unknown >= count else "fail"


def join(verdict: Verdict, findings: Sequence[Finding]) -> Finding:
    """A finding with the reasons of those parts that made it so."""
    mattered = [f for f in findings if f.verdict == verdict] or list(findings)
    return Finding(
        verdict,
        tuple(dict.fromkeys(r for f in mattered for r in f.reasons)),
        tuple(dict.fromkeys(d for f in mattered for d in f.deciding)),
    )


def bounds_verdict(low: Number, high: Number, most: Number | None, least: Number | None) -> Verdict:
    """Judge a number known to lie in [low, high] against one or both bounds."""
    verdicts: list[Verdict] = []
    if most is not None:
        verdicts.append("pass" if high <= most else "fail" if low > most else "unknown")
    if least is not None:
        verdicts.append("pass" if low >= least else "fail" if high < least else "unknown")
    return all_of(verdicts)


def number(value: Any) -> Fraction | None:
    """An exact number of a sample's data; None for what is no number (booleans are none)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    try:
        return Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        return None


def bound(value: Decimal | timedelta | None) -> Fraction | None:
    """A bound of a condition as a number; durations in ns."""
    if isinstance(value, timedelta):
        return Fraction(value // timedelta(microseconds=1) * 1000)
    return None if value is None else Fraction(value)


def field_of(sample: SampleRecord, name: str) -> Any:
    """duration_ns, or a member of `data`."""
    return sample.duration_ns if name == "duration_ns" else sample.data.get(name)


def rank(values: Sequence[Number], p: Decimal) -> Number:
    """The p-th percentile by nearest rank: the smallest value that p % are not above."""
    ordered = sorted(values)
    at = -((-Fraction(p) * len(ordered)) // 100)
    return ordered[max(1, int(at)) - 1]


def percentile_range(
    samples: Sequence[SampleRecord], name: str, p: Decimal
) -> tuple[Number, Number]:
    """Between what and what a percentile lies, unknown samples being anything.

    A failed sample counts as the largest: a refused connection is not a fast answer.
    """
    low: list[Number] = []
    high: list[Number] = []
    for sample in samples:
        value = number(field_of(sample, name)) if sample.verdict == "pass" else None
        if sample.verdict == "fail":
            low.append(INFINITE)
            high.append(INFINITE)
        elif value is None:
            low.append(-INFINITE)
            high.append(INFINITE)
        else:
            low.append(value)
            high.append(value)
    return rank(low, p), rank(high, p)


def rate_range(samples: Sequence[SampleRecord]) -> tuple[Fraction, Fraction]:
    """Between what and what the share of passes lies, unknown samples being either."""
    passed = sum(1 for s in samples if s.verdict == "pass")
    unknown = sum(1 for s in samples if s.verdict == "unknown")
    return Fraction(passed, len(samples)), Fraction(passed + unknown, len(samples))


def extreme_range(
    samples: Sequence[SampleRecord], name: str, *, largest: bool
) -> tuple[Number, Number]:
    """Between what and what the least or the largest value lies; no number is anything."""
    values = [number(field_of(s, name)) for s in samples if s.verdict != "unknown"]
    low: list[Number] = [-INFINITE if v is None else v for v in values]
    high: list[Number] = [INFINITE if v is None else v for v in values]
    if len(values) < len(samples):
        low.append(-INFINITE)
        high.append(INFINITE)
    return (max(low), max(high)) if largest else (min(low), min(high))


def levels(samples: Sequence[SampleRecord], failures: int, successes: int) -> list[Verdict]:
    """Health after each sample: it flips only after so many in a row that say so.

    The first known sample sets it at once; a sample that could not be measured makes it
    unknown until one can.
    """
    found: list[Verdict] = []
    state: Verdict = "unknown"
    run, last = 0, ""
    for sample in samples:
        run = run + 1 if sample.verdict == last else 1
        last = sample.verdict
        needed = {"fail": failures, "pass": successes}.get(sample.verdict, 1)
        if state == "unknown" or sample.verdict == "unknown" or run >= needed:
            state = sample.verdict
        found.append(state)
    return found
