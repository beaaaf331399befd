"""How many of those that match: one, n, a share, or all; a seeded choice; pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from nodeagent.model.errors import InvalidSpec, Refused

T = TypeVar("T")
NARROW = ("selector", "field_selector", "owner", "node_selector", "on_node", "zone")
"""Words that make a selection less than every pod of a namespace."""
_SHARE = re.compile(r"(\d+(?:\.\d+)?)%", re.ASCII)


@dataclass(frozen=True)
class HowMany:
    """A number, a share of all that match, or all of them (both None)."""

    number: int | None = None
    share: Fraction | None = None

    def of(self, matching: int) -> int:
        """How many of so many. A share is rounded up, so that it is never none.

        Raises Refused when fewer match than were asked for.
        """
        if self.share is not None:
            return -(-matching * self.share.numerator // (self.share.denominator * 100))
        if self.number is not None and self.number > matching:
            raise Refused(
                f"{self.number} are asked for, {matching} can be hit",
                "fewer than asked would be another experiment",
                f"ask for at most {matching}, or for a share: 50%",
            )
        return matching if self.number is None else self.number

    def __str__(self) -> str:
        if self.share is not None:
            return f"{float(self.share):g}%"
        return "all" if self.number is None else str(self.number)


ALL = HowMany()


def parse_how_many(text: str) -> HowMany:
    """`3`, `50%` or `all`. Raises InvalidSpec; there are no magic numbers."""
    if text == "all":
        return ALL
    share = _SHARE.fullmatch(text)
    if share is not None:
        value = Fraction(share[1])
        if not 0 < value <= 100:
            raise InvalidSpec(f"{text!r} is not a share of what matches", "above 0% to 100%")
        return HowMany(share=value)
    if not re.fullmatch(r"[1-9]\d{0,6}", text, re.ASCII):
        raise InvalidSpec(f"{text!r} is not how many", "a number from 1, a share (50%), or all")
    return HowMany(number=int(text))


def chosen(
    candidates: Sequence[T], how_many: HowMany, seed: str, name: Callable[[T], str]
) -> tuple[T, ...]:
    """So many of them, by seed, in the order of their names.

    Each is ranked by a hash of (seed, name): the same seed gives the same choice on any
    machine, and one that comes or goes changes as little of it as can be.
    """
    ranked = sorted(candidates, key=lambda one: _rank(seed, name(one)))
    return tuple(sorted(ranked[: how_many.of(len(candidates))], key=name))


def capped(
    candidates: Sequence[T], cap: HowMany, seed: str, zone: Callable[[T], str],
    name: Callable[[T], str],
) -> tuple[T, ...]:  # fmt: skip
    """At most so many of each zone, by seed; a zone that has fewer gives all that it has."""
    zones: dict[str, list[T]] = {}
    for one in candidates:
        zones.setdefault(zone(one), []).append(one)
    found: list[T] = []
    for members in zones.values():
        fits = cap.number is None or cap.number <= len(members)
        found += chosen(members, cap if fits else ALL, seed, name)
    return tuple(sorted(found, key=name))


def _rank(seed: str, name: str) -> tuple[bytes, str]:
    return hashlib.sha256(f"{seed}\0{name}".encode()).digest(), name
