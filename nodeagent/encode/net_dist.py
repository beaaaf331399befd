"""Delay distributions for netem: tables of deviations in 1/8192 of sigma. Pure.

A table holds the inverse of a distribution function with mean 0 and variance 1 at evenly
spaced places, cut off where 16 bits end, at 4 sigma (get_dist_delay, sch_netem.c).
"""

from __future__ import annotations

from functools import cache
from math import sqrt
from statistics import NormalDist

SCALE = 8192
SIZE = 4096
_LIMIT = 32767


@cache
def table(name: str) -> tuple[int, ...]:
    """The table of `normal`, `pareto` or `paretonormal`. Raises KeyError."""
    inverse = {"normal": _normal, "pareto": _pareto, "paretonormal": _pareto_normal}[name]
    return tuple(
        max(-_LIMIT, min(_LIMIT, round(SCALE * inverse((i + 0.5) / SIZE)))) for i in range(SIZE)
    )


def _normal(share: float) -> float:
    return NormalDist().inv_cdf(share)


def _pareto(share: float) -> float:
    """Pareto with shape 3: mean 1.5, variance 0.75; a long tail of late packets."""
    return float(((1 - share) ** (-1 / 3) - 1.5) / sqrt(0.75))


def _pareto_normal(share: float) -> float:
    """A quarter normal, three quarters Pareto, at the same place of both."""
    return 0.25 * _normal(share) + 0.75 * _pareto(share)
