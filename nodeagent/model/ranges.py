"""Sets of sectors: ranges in units of 512 bytes, and the text a person writes for them.

All functions take any sequence of ranges and give a *normal* tuple back: sorted, no two
ranges touch or overlap. Sectors are always 512 bytes, whatever the device's block size
(the unit of sector_t, include/linux/types.h).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from pydantic import BaseModel, ConfigDict, Field, model_validator

SECTOR = 512
MAX_SECTOR = 1 << 54
"""First sector that no device can have: byte offsets are loff_t, below 2^63."""

_ELEMENT = re.compile(r"(\d+)(?:([+-])(\d+))?", re.ASCII)
_NEGATIVE = re.compile(r"-\d+.*|\d+[+-]-\d+", re.ASCII)


class Range(BaseModel):
    """Sectors [start, start + length) in units of 512 bytes; never empty."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    start: int = Field(ge=0, lt=MAX_SECTOR, description="first sector")
    length: int = Field(gt=0, le=MAX_SECTOR, description="number of sectors")

    @model_validator(mode="after")
    def _bounded(self) -> Range:
        if self.end > MAX_SECTOR:
            raise ValueError(f"range {self} ends past 2^63 bytes")
        return self

    @property
    def end(self) -> int:
        """First sector after the range."""
        return self.start + self.length

    def __str__(self) -> str:
        return f"{self.start}+{self.length}"


Ranges = tuple[Range, ...]
_Pairs = list[tuple[int, int]]


def _pairs(ranges: Iterable[Range]) -> _Pairs:
    """Sorted, merged (start, end) pairs."""
    merged: _Pairs = []
    for start, end in sorted((r.start, r.start + r.length) for r in ranges):
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def _build(pairs: Iterable[tuple[int, int]]) -> Ranges:
    return tuple(Range(start=start, length=end - start) for start, end in pairs)


def normalise(ranges: Iterable[Range]) -> Ranges:
    """Sorted, with touching and overlapping ranges merged."""
    given = tuple(ranges)
    # Validating each range again is what costs with 100,000 of them.
    if all(a.start + a.length < b.start for a, b in pairwise(given)):
        return given
    return _build(_pairs(given))


def total(ranges: Iterable[Range]) -> int:
    """How many different sectors the ranges hold."""
    return sum(end - start for start, end in _pairs(ranges))


def intersect(a: Iterable[Range], b: Iterable[Range]) -> Ranges:
    """Sectors that are in both."""
    left, right = _pairs(a), _pairs(b)
    out: _Pairs = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < end:
            out.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return _build(out)


def subtract(a: Iterable[Range], b: Iterable[Range]) -> Ranges:
    """Sectors of `a` that are not in `b`."""
    holes = _pairs(b)
    out: _Pairs = []
    j = 0
    for left, end in _pairs(a):
        start = left
        while j < len(holes) and holes[j][1] <= start:
            j += 1
        k = j
        while k < len(holes) and holes[k][0] < end:
            if holes[k][0] > start:
                out.append((start, holes[k][0]))
            start = max(start, holes[k][1])
            k += 1
        if start < end:
            out.append((start, end))
    return _build(out)


def overlaps(a: Iterable[Range], b: Iterable[Range]) -> bool:
    """Whether the two share a sector."""
    return bool(intersect(a, b))


def covers(outer: Iterable[Range], inner: Iterable[Range]) -> bool:
    """Whether every sector of `inner` is in `outer`."""
    return not subtract(inner, outer)


def first_overlap(ranges: Iterable[Range]) -> tuple[Range, Range] | None:
    """Two ranges of one list that share a sector, if there are any."""
    reach: Range | None = None
    for item in sorted(ranges, key=lambda r: (r.start, r.length)):
        if reach is not None and item.start < reach.end:
            return reach, item
        if reach is None or item.end > reach.end:
            reach = item
    return None


def shift(ranges: Iterable[Range], sectors: int) -> Ranges:
    """All ranges moved by so many sectors. Raises ValueError below sector 0."""
    return _build((start + sectors, end + sectors) for start, end in _pairs(ranges))


def align_out(ranges: Iterable[Range], unit: int) -> Ranges:
    """The smallest multiples of `unit` sectors that hold the ranges."""
    if unit < 1:
        raise ValueError(f"{unit} is not a positive number of sectors")
    given = normalise(ranges)
    if not any(r.start % unit or r.length % unit for r in given):
        return given
    grown = (
        Range(start=s // unit * unit, length=-(-e // unit) * unit - s // unit * unit)
        for s, e in _pairs(given)
    )
    return normalise(grown)


def pick(ranges: Iterable[Range], indices: Sequence[int]) -> tuple[int, ...]:
    """The sectors at these indices when all sectors of the ranges are counted from 0.

    For a seeded choice: draw indices below `total(ranges)`. Raises IndexError.
    """
    pairs = _pairs(ranges)
    firsts = [0, *accumulate(end - start for start, end in pairs)]
    out = []
    for index in indices:
        if not 0 <= index < firsts[-1]:
            raise IndexError(f"sector {index} of {firsts[-1]}")
        slot = bisect_right(firsts, index) - 1
        out.append(pairs[slot][0] + index - firsts[slot])
    return tuple(out)


def parse_ranges(text: str) -> Ranges:
    """`1024+8` (start and length), `1024-1031` (first and last), `1024` (one), by commas.

    Numbers are decimal and in sectors of 512 bytes. Raises ValueError with a sentence
    for a person: empty, negative, zero, reversed, overlapping, past 2^63 bytes.
    """
    found = [_parse_element(element.strip(" \t"), text) for element in text.split(",")]
    clash = first_overlap(found)
    if clash is not None:
        raise ValueError(f"sectors {clash[0]} and {clash[1]} overlap")
    return normalise(found)


def _parse_element(element: str, text: str) -> Range:
    if not element:
        raise ValueError(f"{text!r} has an empty sector range")
    match = _ELEMENT.fullmatch(element)
    if match is None:
        if _NEGATIVE.fullmatch(element):
            raise ValueError(f"{element!r} has a negative number of sectors")
        raise ValueError(
            f"{element!r} is not a sector range: write 1024+8 (start and length) "
            "or 1024-1031 (first and last), in units of 512 bytes"
        )
    if any(len(number or "") > 20 for number in (match[1], match[3])):
        raise ValueError(f"{element[:24]}... is past 2^63 bytes")
    start, length = int(match[1]), 1
    if match[2] == "+":
        length = int(match[3])
    elif match[2] == "-":
        length = int(match[3]) - start + 1
        if length < 1:
            raise ValueError(f"sector range {element!r} ends before it starts")
    if length == 0:
        raise ValueError(f"sector range {element!r} has zero length")
    if start + length > MAX_SECTOR:
        raise ValueError(f"sector range {element!r} ends past 2^63 bytes")
    return Range(start=start, length=length)


def format_ranges(ranges: Iterable[Range], limit: int = 0) -> str:
    """What `parse_ranges` reads back; with `limit`, the first few and how many more."""
    parts = [f"{start}+{end - start}" for start, end in _pairs(ranges)]
    if limit and len(parts) > limit:
        return f"{','.join(parts[:limit])} and {len(parts) - limit} more"
    return ",".join(parts)
