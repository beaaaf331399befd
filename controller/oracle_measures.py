"""Conditions that are statistics of samples: levels, rates, percentiles, and the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

from controller import oracle_logic as logic
from controller.oracle_logic import Finding
from controller.oracle_scene import Pace, Scene, sample_ref, settle, shown
from controller.oracle_spec import Baseline, Level, Percentile, Rate
from controller.records import SampleRecord, Verdict
from controller.score import fixed


def level(condition: Level, scene: Scene) -> Finding:
    """Whether the probe was healthy, or unhealthy if that is expected, all the time."""
    samples = scene.samples(condition.probe, condition.window)
    pace = scene.paces.get(condition.probe, Pace(0))
    failures, successes = condition.failures, condition.successes
    found = logic.levels(
        samples,
        pace.failures if failures is None else failures,
        pace.successes if successes is None else successes,
    )
    bad: Verdict = "fail" if condition.expect == "pass" else "pass"
    for verdict in (bad, "unknown"):
        if verdict in found:
            sample = samples[found.index(verdict)]
            said = f" ({sample.reason})" if sample.reason else ""
            times = f"{found.count(verdict)} of {len(found)} samples"
            text = f"{condition.probe}: {verdict} in {times} of the {condition.window} window{said}"
            outcome: Verdict = "unknown" if verdict == "unknown" else "fail"
            return Finding(outcome, (text,), (sample_ref(sample),))
    text = f"{condition.probe}: {condition.expect} in all {len(found)} samples"
    return settle("pass" if found else "unknown", text, condition, scene)


def rate(condition: Rate, scene: Scene) -> Finding:
    """Whether enough samples pass, whatever the unknown ones were."""
    samples = scene.samples(condition.probe, condition.window)
    if not samples:
        return settle("unknown", f"{condition.probe}: no samples", condition, scene)
    low, high = logic.rate_range(samples)
    verdict = logic.bounds_verdict(low, high, None, Fraction(condition.at_least) / 100)
    text = f"{condition.probe}: {fixed(100 * low, 2)}% pass, {condition.at_least}% are needed"
    if low != high:
        text += f", {fixed(100 * (high - low), 2)}% could not be measured"
    return settle(verdict, text, condition, scene)


def percentile(condition: Percentile, scene: Scene) -> Finding:
    """Whether a percentile keeps its bounds, whatever the unknown samples were."""
    samples = scene.samples(condition.probe, condition.window)
    if not samples:
        return settle("unknown", f"{condition.probe}: no samples", condition, scene)
    low, high = logic.percentile_range(samples, condition.field, condition.p)
    most, least = logic.bound(condition.at_most), logic.bound(condition.at_least)
    verdict = logic.bounds_verdict(low, high, most, least)
    name = condition.field
    text = f"{condition.probe}: p{condition.p} of {name} is {shown(name, high)}"
    return settle(verdict, text, condition, scene)


Range = tuple[logic.Number, logic.Number]


def _statistic(condition: Baseline, samples: Sequence[SampleRecord]) -> Range:
    if condition.stat == "rate":
        return logic.rate_range(samples)
    if condition.stat == "percentile":
        return logic.percentile_range(samples, condition.field, condition.p)
    return logic.extreme_range(samples, condition.field, largest=condition.stat == "max")


def baseline(condition: Baseline, scene: Scene) -> Finding:
    """Whether a statistic keeps its ratio to the baseline; no baseline is unknown."""
    before = scene.samples(condition.probe, "before")
    if len(before) < condition.samples:
        text = f"{condition.probe}: the baseline window has {len(before)} samples"
        return Finding("unknown", (f"{text}, {condition.samples} are needed",))
    samples = scene.samples(condition.probe, condition.window)
    if not samples:
        return settle("unknown", f"{condition.probe}: no samples", condition, scene)
    base_low, base_high = _statistic(condition, before)
    low, high = _statistic(condition, samples)
    if isinstance(base_low, float) or isinstance(base_high, float):
        return Finding("unknown", (f"{condition.probe}: the baseline itself has no measure",))
    verdicts: list[Verdict] = []
    if condition.at_most_times is not None:
        verdicts.append(
            _against(low, high, base_low, base_high, condition.at_most_times, most=True)
        )
    if condition.at_least_times is not None:
        times = condition.at_least_times
        verdicts.append(_against(low, high, base_low, base_high, times, most=False))
    name = "rate" if condition.stat == "rate" else condition.field
    text = f"{condition.probe}: {condition.stat} of {name} is {shown(name, high)}"
    text += f", in the baseline {shown(name, base_high)}"
    return settle(logic.all_of(verdicts), text, condition, scene)


def _against(
    low: logic.Number,
    high: logic.Number,
    base_low: Fraction,
    base_high: Fraction,
    times: Decimal,
    *,
    most: bool,
) -> Verdict:
    """Judge [low, high] against a bound that itself is only known to lie in a range."""
    strict, lax = (base_low, base_high) if most else (base_high, base_low)
    limits = [Fraction(times) * b for b in (strict, lax)]
    verdicts = [
        logic.bounds_verdict(low, high, b if most else None, None if most else b) for b in limits
    ]
    if verdicts[0] == "pass":
        return "pass"
    return "fail" if verdicts[1] == "fail" else "unknown"
