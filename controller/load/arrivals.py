"""When requests start: a pure function of stages, distribution and seed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from fractions import Fraction

from controller.load.spec import LoadSpec, Stage

US = 1_000_000
_SCALE = 10**9


def arrivals(spec: LoadSpec) -> Iterator[int]:
    """Start times in ns from the start of the load, ascending, rounded to whole microseconds.

    The stages give the expected count by each moment. `uniform` starts a request whenever
    that count reaches the next whole number less one half, `poisson` after exponential steps
    of mean one, so that both follow steps and ramps alike.
    """
    targets = _poisson(spec.seed) if spec.arrivals == "poisson" else _uniform()
    target = next(targets)
    passed, begin = 0, 0
    for stage in spec.stages:
        length = stage.duration // timedelta(microseconds=1)
        when = _flat(stage, length) if stage.to in (None, stage.rate) else _ramp(stage, length)
        count = int(stage.requests * _SCALE)
        while target < passed + count:
            yield (begin + when(target - passed)) * 1000
            target = next(targets)
        passed += count
        begin += length


def _uniform() -> Iterator[int]:
    half = _SCALE // 2
    while True:
        yield half
        half += _SCALE


def _poisson(seed: int) -> Iterator[int]:
    """Cumulative exponential steps in units of 1/_SCALE; random.Random(seed).random() is the
    same on every machine and version of Python (library documentation of `random`)."""
    source = random.Random(seed)  # noqa: S311 - reproducible on purpose
    total = 0
    while True:
        total += round(-math.log(1.0 - source.random()) * _SCALE)
        yield total


When = Callable[[int], int]
"""Microseconds into a stage at which the expected count is so many / _SCALE."""


def _flat(stage: Stage, length_us: int) -> When:
    """count = rate·t, in whole numbers."""
    over, under = US * stage.rate.denominator, stage.rate.numerator * _SCALE
    return lambda scaled: min(length_us - 1, scaled * over // under)


def _ramp(stage: Stage, length_us: int) -> When:
    """count = r0·t + (r1 - r0)·t²/(2·length), solved for t in whole numbers.

    With rates as whole multiples of 1/d: t = length·(√(r0² + 2·(r1 - r0)·count/length) - r0) /
    (r1 - r0).
    """
    r0, r1 = stage.rate, stage.rate if stage.to is None else stage.to
    d = math.lcm(r0.denominator, r1.denominator)
    a, b = int(r0 * d), int(r1 * d)
    fine = 10**9

    def when(scaled: int) -> int:
        # (r·d)² plus 2·(b - a)·d·count·US/length, times fine² for the digits after the point
        inside = a * a * fine**2 + 2 * (b - a) * d * scaled * US * fine**2 // (_SCALE * length_us)
        root = math.isqrt(max(0, inside))
        return max(0, min(length_us - 1, length_us * (root - a * fine) // ((b - a) * fine)))

    return when


def rate_at(stages: Sequence[Stage], at_ns: int) -> Fraction:
    """Planned requests a second at a moment; 0 after the last stage."""
    left = at_ns
    for stage in stages:
        length = stage.duration // timedelta(microseconds=1) * 1000
        if left < length:
            to = stage.rate if stage.to is None else stage.to
            return stage.rate + (to - stage.rate) * Fraction(left, length)
        left -= length
    return Fraction(0)


def total_ns(stages: Sequence[Stage]) -> int:
    """How long all stages take."""
    return sum(s.duration // timedelta(microseconds=1) for s in stages) * 1000
