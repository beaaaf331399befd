"""Random draws that are equal on every machine and under every Python version.

Only the standard library, integers and decimals: a stream is SHA-256 in counter mode
(FIPS 180-4), a distribution is its inverse CDF in 34-digit decimal arithmetic, whose
results the General Decimal Arithmetic Specification fixes to the last digit (`ln` and
`exp` are correctly rounded). No platform float, no library generator takes part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from typing import TypeVar

T = TypeVar("T")

ARITHMETIC = Context(prec=34, rounding=ROUND_HALF_EVEN, Emin=-999999, Emax=999999)
"""Of every draw and fit; the platform's own settings do not count."""
_WORD = 1 << 64
_UNIT_BITS = 53
MAX_REDRAWS = 1000


class Stream:
    """An endless sequence of uniform 64-bit words, named by a seed and a label.

    Streams with different labels are independent, so that drawing more of one thing
    never shifts another.
    """

    def __init__(self, seed: int, label: str) -> None:
        self._key = f"faultctl-stream-1/{seed}/{label}/".encode()
        self._counter = 0
        self._words: list[int] = []

    def word(self) -> int:
        """0 <= word < 2**64."""
        if not self._words:
            block = hashlib.sha256(self._key + str(self._counter).encode()).digest()
            self._counter += 1
            self._words = [int.from_bytes(block[i : i + 8], "big") for i in (24, 16, 8, 0)]
        return self._words.pop()

    def below(self, bound: int) -> int:
        """0 <= value < bound, each equally likely (rejection, no modulo bias)."""
        if not 0 < bound <= _WORD:
            raise ValueError(f"cannot draw below {bound}")
        limit = _WORD - _WORD % bound
        while True:
            word = self.word()
            if word < limit:
                return word % bound

    def unit(self) -> Decimal:
        """A multiple of 2**-54 inside (0, 1); never 0 or 1."""
        bits = self.word() >> (64 - _UNIT_BITS)
        with localcontext(ARITHMETIC):
            return Decimal(2 * bits + 1) / Decimal(1 << (_UNIT_BITS + 1))

    def choice(self, items: Sequence[T]) -> T:
        """One of the items, each equally likely."""
        return items[self.below(len(items))]

    def weighted(self, items: Sequence[tuple[T, int]]) -> T:
        """One of the items by integer weights."""
        total = sum(weight for _, weight in items)
        left = self.below(total)
        for item, weight in items:
            if left < weight:
                return item
            left -= weight
        raise AssertionError("weights do not add up")

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """`count` different items in drawn order (Fisher–Yates from the front)."""
        pool = list(items)
        for index in range(min(count, len(pool))):
            other = index + self.below(len(pool) - index)
            pool[index], pool[other] = pool[other], pool[index]
        return pool[: min(count, len(pool))]


# Wichura, Algorithm AS 241 (Applied Statistics 37, 1988): PPND16, relative accuracy 1e-16.
_CENTRE = (
    "2509.0809287301226727 33430.575583588128105 67265.770927008700853 45921.953931549871457 "
    "13731.693765509461125 1971.5909503065514427 133.14166789178437745 3.387132872796366608",
    "5226.495278852854561 28729.085735721942674 39307.89580009271061 21213.794301586595867 "
    "5394.1960214247511077 687.1870074920579083 42.313330701600911252 1",
)
_MIDDLE = (
    "7.7454501427834140764e-4 .0227238449892691845833 .24178072517745061177 "
    "1.27045825245236838258 3.64784832476320460504 5.7694972214606914055 "
    "4.6303378461565452959 1.42343711074968357734",
    "1.05075007164441684324e-9 5.475938084995344946e-4 .0151986665636164571966 "
    ".14810397642748007459 .68976733498510000455 1.6763848301838038494 "
    "2.05319162663775882187 1",
)
_TAIL = (
    "2.01033439929228813265e-7 2.71155556874348757815e-5 .0012426609473880784386 "
    ".026532189526576123093 .29656057182850489123 1.7848265399172913358 "
    "5.4637849111641143699 6.6579046435011037772",
    "2.04426310338993978564e-15 1.4215117583164458887e-7 1.8463183175100546818e-5 "
    "7.868691311456132591e-4 .0148753612908506148525 .13692988092273580531 "
    ".59983220655588793769 1",
)


def _coefficients(text: str) -> tuple[Decimal, ...]:
    return tuple(Decimal(part) for part in text.split())


_AS241 = {
    name: (_coefficients(pair[0]), _coefficients(pair[1]))
    for name, pair in (("centre", _CENTRE), ("middle", _MIDDLE), ("tail", _TAIL))
}


def _ratio(region: str, r: Decimal) -> Decimal:
    above, below = Decimal(0), Decimal(0)
    for a, b in zip(*_AS241[region], strict=True):
        above, below = above * r + a, below * r + b
    return above / below


def normal_quantile(p: Decimal) -> Decimal:
    """The standard normal's inverse CDF, 0 < p < 1."""
    with localcontext(ARITHMETIC):
        q = p - Decimal("0.5")
        if abs(q) <= Decimal("0.425"):
            return q * _ratio("centre", Decimal("0.180625") - q * q)
        r = (-(p if q <= 0 else 1 - p).ln()).sqrt()
        if r <= 5:
            x = _ratio("middle", r - Decimal("1.6"))
        else:
            x = _ratio("tail", r - 5)
        return -x if q < 0 else x


def _constant(p: Mapping[str, Decimal], u: Decimal) -> Decimal:
    return p["value"]


def _uniform(p: Mapping[str, Decimal], u: Decimal) -> Decimal:
    return p["low"] + (p["high"] - p["low"]) * u


def _exponential(p: Mapping[str, Decimal], u: Decimal) -> Decimal:
    return -p["mean"] * (1 - u).ln()


def _lognormal(p: Mapping[str, Decimal], u: Decimal) -> Decimal:
    return p["median"] * (p["sigma"] * normal_quantile(u)).exp()


def _weibull(p: Mapping[str, Decimal], u: Decimal) -> Decimal:
    return p["scale"] * ((-(1 - u).ln()).ln() / p["shape"]).exp()


INVERSE_CDF: dict[
    str, tuple[tuple[str, ...], Callable[[Mapping[str, Decimal], Decimal], Decimal]]
] = {
    "constant": (("value",), _constant),
    "uniform": (("low", "high"), _uniform),
    "exponential": (("mean",), _exponential),
    "lognormal": (("median", "sigma"), _lognormal),
    "weibull": (("scale", "shape"), _weibull),
}
"""Name -> (parameters, inverse CDF). Times are milliseconds; sigma and shape are numbers."""


@dataclass(frozen=True)
class Distribution:
    """A named distribution of milliseconds, optionally cut to [least, most] by drawing again."""

    name: str
    parameters: Mapping[str, Decimal]
    least: int = 0
    most: int | None = None

    def draw(self, stream: Stream) -> int:
        """Whole milliseconds. Raises ValueError if nearly no draw falls between the bounds."""
        _, inverse = INVERSE_CDF[self.name]
        for _ in range(MAX_REDRAWS):
            unit = stream.unit()
            with localcontext(ARITHMETIC):
                value = int(inverse(self.parameters, unit).to_integral_value())
            if value >= self.least and (self.most is None or value <= self.most):
                return value
        raise ValueError(
            f"{MAX_REDRAWS} draws of {self.name} fell outside {self.least} ms..{self.most} ms"
        )
