"""Sector sets against plain Python sets, and the text form against hostile input."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nodeagent.model import ranges as rs
from nodeagent.model.ranges import Range

small = st.builds(Range, start=st.integers(0, 60), length=st.integers(1, 12))
lists = st.lists(small, max_size=8)


def as_set(items: object) -> set[int]:
    return {s for r in items for s in range(r.start, r.end)}  # type: ignore[attr-defined]


def is_normal(items: tuple[Range, ...]) -> bool:
    return all(a.end < b.start for a, b in itertools.pairwise(items))


@given(lists, lists)
def test_set_algebra(a: list[Range], b: list[Range]) -> None:
    assert as_set(rs.normalise(a)) == as_set(a)
    assert as_set(rs.intersect(a, b)) == as_set(a) & as_set(b)
    assert as_set(rs.subtract(a, b)) == as_set(a) - as_set(b)
    assert rs.total(a) == len(as_set(a))
    assert rs.overlaps(a, b) == bool(as_set(a) & as_set(b))
    assert rs.covers(a, b) == (as_set(b) <= as_set(a))
    for out in (rs.normalise(a), rs.intersect(a, b), rs.subtract(a, b)):
        assert is_normal(out)


@given(lists)
def test_first_overlap(a: list[Range]) -> None:
    clash = rs.first_overlap(a)
    doubled = len(as_set(a)) != sum(r.length for r in a)
    assert (clash is not None) == doubled
    if clash is not None:
        assert as_set([clash[0]]) & as_set([clash[1]])


@given(lists, st.integers(1, 9))
def test_align_out(a: list[Range], unit: int) -> None:
    want = {s for x in as_set(a) for s in range(x // unit * unit, x // unit * unit + unit)}
    assert as_set(rs.align_out(a, unit)) == want


@given(lists)
def test_pick_names_every_sector_once(a: list[Range]) -> None:
    count = rs.total(a)
    assert rs.pick(a, range(count)) == tuple(sorted(as_set(a)))
    with pytest.raises(IndexError):
        rs.pick(a, [count])
    with pytest.raises(IndexError):
        rs.pick(a, [-1])


@given(st.lists(small, min_size=1, max_size=8))
def test_text_round_trip(a: list[Range]) -> None:
    normal = rs.normalise(a)
    assert rs.parse_ranges(rs.format_ranges(a)) == normal
    dashes = ", ".join(f"{r.start}-{r.end - 1}" for r in normal)
    assert rs.parse_ranges(dashes) == normal


def test_forms() -> None:
    assert rs.parse_ranges("1024+8") == rs.parse_ranges("1024-1031")
    assert rs.parse_ranges("7") == (Range(start=7, length=1),)
    assert rs.parse_ranges("16+8,8+8, 100") == (
        Range(start=8, length=16),
        Range(start=100, length=1),
    )
    assert rs.format_ranges(rs.parse_ranges("1,3,5,7"), limit=2) == "1+1,3+1 and 2 more"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("1+1,", "empty"),
        ("1+0", "zero length"),
        ("-1", "negative"),
        ("5+-1", "negative"),
        ("9-8", "ends before it starts"),
        ("1+8,8+1", "overlap"),
        ("1+8,1+8", "overlap"),
        ("١٢+8", "not a sector range"),
        ("1²", "not a sector range"),
        ("0x10+8", "not a sector range"),
        ("1_0", "not a sector range"),
        ("1 + 8", "not a sector range"),
        ("1+8\n", "not a sector range"),
        ("1.5+8", "not a sector range"),
        ("9" * 5000, "past 2^63"),
        (f"{1 << 54}", "past 2^63"),
        (f"0+{(1 << 54) + 1}", "past 2^63"),
        (f"{1 << 63}+1", "past 2^63"),
    ],
)
def test_bad_text(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("^", r"\^")):
        rs.parse_ranges(text)


@given(st.text(max_size=40))
def test_any_text_parses_or_says_why(text: str) -> None:
    try:
        found = rs.parse_ranges(text)
    except ValueError as exc:
        assert str(exc)
    else:
        assert found and is_normal(found)


def test_bounds_of_the_model() -> None:
    assert Range(start=0, length=1 << 54).end == rs.MAX_SECTOR
    for start, length in ((-1, 1), (0, 0), ((1 << 54) - 1, 2)):
        with pytest.raises(ValidationError):
            Range(start=start, length=length)
