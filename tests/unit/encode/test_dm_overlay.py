"""Cutting faults into a table: what lies outside must not move by a sector."""

from __future__ import annotations

import random
from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.encode import dm
from nodeagent.encode.dm import BadTable, DevNum, Overlay, Segment, Table, UnsplittableTarget
from nodeagent.model.errors import Conflict, Refused

A, B, ERR = DevNum(8, 0), DevNum(8, 16), DevNum(253, 9)
EFFECTS = [
    dm.Fail(),
    dm.Flakey(1, 2, dm.FlakeyFeatures(error_writes=True)),
    dm.Delay(1, 2, 3),
    dm.FailReads(ERR, 700),
    dm.FailWrites(ERR, 0),
    dm.Dust(512),
]


@st.composite
def bases(draw: st.DrawFn, linear_only: bool = False) -> Table:
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    segments, at = [], 0
    for length in lengths:
        kinds = ["linear"] if linear_only else ["linear", "linear", "error", "zero"]
        kind = draw(st.sampled_from(kinds))
        target = dm.Target(kind)
        if kind == "linear":
            target = dm.linear(draw(st.sampled_from([A, B])), draw(st.integers(0, 1000)))
        segments.append(Segment(at, length, *target))
        at += length
    return Table(tuple(segments))


@st.composite
def faulty(draw: st.DrawFn, block: int = 1) -> tuple[Table, list[Overlay]]:
    base = draw(bases(linear_only=True))
    cuts = st.integers(0, base.length // block)
    marks = sorted(draw(st.sets(cuts, max_size=8)))
    pairs = zip(marks[::2], marks[1::2], strict=False)
    made = [
        Overlay(low * block, (high - low) * block, draw(st.sampled_from(EFFECTS)))
        for low, high in pairs
    ]
    return base, made


def segment_of(table: Table, sector: int) -> Segment:
    starts = [segment.start for segment in table.segments]
    return table.segments[bisect_right(starts, sector) - 1]


def where(table: Table, sector: int) -> tuple[str, str, int]:
    """Target, device and sector there, read straight from the words."""
    segment = segment_of(table, sector)
    if segment.target != "linear":
        return segment.target, "", 0
    return "linear", segment.args[0], int(segment.args[1]) + sector - segment.start


@given(faulty())
def test_outside_nothing_moves_and_inside_all_is_covered(case: tuple[Table, list[Overlay]]) -> None:
    base, faults = case
    result = dm.overlay(base, faults)
    assert result.length == base.length
    for sector in range(base.length):
        inside = [one for one in faults if one.start <= sector < one.end]
        if not inside:
            assert where(result, sector) == where(base, sector)
            continue
        made = segment_of(result, sector)
        _, dev, at = where(base, made.start)
        expected = inside[0].effect.target(made.start, dm.Backing(DevNum.parse(dev), at))
        assert (made.target, made.args) == expected
        assert inside[0].start <= made.start and made.end <= inside[0].end
        # one piece maps one stretch of the base
        assert segment_of(base, made.start) == segment_of(base, made.end - 1)


@given(faulty(), st.randoms())
def test_order_does_not_matter(case: tuple[Table, list[Overlay]], rng: random.Random) -> None:
    base, faults = case
    shuffled = rng.sample(faults, len(faults))
    assert dm.overlay(base, shuffled) == dm.overlay(base, faults)


@given(faulty())
def test_without_faults_the_base_comes_back_byte_for_byte(
    case: tuple[Table, list[Overlay]],
) -> None:
    base, faults = case
    assert dm.overlay(base, []) is not None
    assert str(dm.overlay(base, [])) == str(base)
    # Taking one of several back leaves what the others alone would have made.
    for gone in faults:
        left = [one for one in faults if one is not gone]
        assert dm.overlay(base, left).length == base.length
    # A table cut up and put back as linear merges to the merged base.
    cut = [
        Segment(piece.start, piece.length, *dm.linear(dev, at))
        for piece in dm.overlay(base, faults).segments
        for dev, at, _ in dm.map_range(base, piece.start, piece.length)
    ]
    assert dm.merge(Table(tuple(cut))) == dm.merge(base)


@given(bases())
def test_merge_keeps_the_mapping(base: Table) -> None:
    merged = dm.merge(base)
    assert merged.length == base.length and len(merged.segments) <= len(base.segments)
    assert all(where(merged, at) == where(base, at) for at in range(base.length))
    assert dm.merge(merged) == merged


@given(bases(linear_only=True), st.data())
def test_map_range_agrees_with_every_sector(base: Table, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, base.length - 1))
    length = data.draw(st.integers(1, base.length - start))
    found = [
        ("linear", str(dev), at + step)
        for dev, at, many in dm.map_range(base, start, length)
        for step in range(many)
    ]
    assert found == [where(base, sector) for sector in range(start, start + length)]


@given(faulty(block=8))
def test_whole_blocks_pass_the_block_check(case: tuple[Table, list[Overlay]]) -> None:
    base, faults = case
    assert dm.overlay(base, faults, 8) == dm.overlay(base, faults)


BASE = dm.parse_table("0 100 linear 8:0 2048\n100 100 linear 8:16 0")


def test_overlay_golden() -> None:
    faults = [
        Overlay(96, 8, dm.FailReads(ERR, 700)),
        Overlay(0, 4, dm.Fail()),
        Overlay(150, 2, dm.Flakey(0, 1, dm.FlakeyFeatures(drop_writes=True))),
        Overlay(152, 48, dm.Delay(5, 6)),
    ]
    assert str(dm.overlay(BASE, faults)).splitlines() == [
        "0 4 error",
        "4 92 linear 8:0 2052",
        "96 4 delay 253:9 96 700 8:0 2144 0 8:0 2144 0",
        "100 4 delay 253:9 100 700 8:16 0 0 8:16 0 0",
        "104 46 linear 8:16 4",
        "150 2 flakey 8:16 50 0 1 1 drop_writes",
        "152 48 delay 8:16 52 5 8:16 52 6 8:16 52 6",
    ]
    other = [Overlay(10, 1, dm.FailWrites(ERR, 9)), Overlay(11, 1, dm.Dust(512))]
    assert str(dm.overlay(BASE, other)).splitlines()[1:3] == [
        "10 1 delay 8:0 2058 0 253:9 10 9 8:0 2058 0",
        "11 1 dust 8:0 2059 512",
    ]


def test_whole_device() -> None:
    assert str(dm.overlay(BASE, [Overlay(0, 200, dm.Fail())])) == "0 100 error\n100 100 error"


@pytest.mark.parametrize(
    ("start", "length", "block"),
    [(0, 0, 1), (-1, 5, 1), (0, -1, 1), (199, 2, 1), (200, 1, 1), (4, 8, 8), (8, 4, 8)],
)
def test_bad_ranges(start: int, length: int, block: int) -> None:
    with pytest.raises(BadTable):
        dm.overlay(BASE, [Overlay(start, length, dm.Fail())], block)
    if block == 1:
        with pytest.raises(BadTable):
            dm.map_range(BASE, start, length)


def test_overlap_names_both() -> None:
    with pytest.raises(Conflict, match=r"10\+10 and 19\+1 overlap"):
        dm.overlay(BASE, [Overlay(19, 1, dm.Fail()), Overlay(10, 10, dm.Delay(1, 1))])


UNSPLITTABLE = {
    "crypt": "aes-xts-plain64 00 0 8:0 4096",
    "striped": "2 8 8:0 0 8:16 0",
    "flakey": "8:0 0 1 1 0",
    "delay": "8:0 0 1",
    "dust": "8:0 0 512",
    "multipath": "0 0 1 1 service-time 0 1 2 8:0 1 1",
    "mirror": "core 2 64 nosync 2 8:0 0 8:16 0",
    "raid": "raid1 3 0 region_size 1024 2 8:0 8:1 8:2 8:3",
    "thin": "253:0 1",
    "snapshot": "253:0 253:1 P 8",
    "cache": "8:0 8:1 8:2 512 1 writethrough smq 0",
    "verity": "1 8:0 8:1",
    "thing": "",
}


@pytest.mark.parametrize("target", sorted(UNSPLITTABLE))
def test_what_cannot_be_cut_is_named_and_left_alone_elsewhere(target: str) -> None:
    base = dm.parse_table(f"0 8 linear 8:32 0\n8 64 {target} {UNSPLITTABLE[target]}")
    for start, length in ((8, 64), (16, 8), (4, 8)):
        with pytest.raises(UnsplittableTarget) as refused:
            dm.overlay(base, [Overlay(start, length, dm.Fail())])
        assert refused.value.target == target and target in str(refused.value)
        assert isinstance(refused.value, Refused) and refused.value.hint
    beside = dm.overlay(base, [Overlay(0, 4, dm.Fail())])
    assert beside.segments[-1] == base.segments[-1]
    if target != "crypt":
        with pytest.raises(UnsplittableTarget):
            dm.map_range(base, 8, 8)


def test_crypt_is_mapped_with_its_own_offset() -> None:
    table = dm.parse_table("0 8 linear 8:0 0\n8 100 crypt aes-xts-plain64 :64:logon:k 7 8:16 4096")
    assert dm.map_range(table, 4, 10) == [(A, 4, 4), (B, 4096, 6)]


def test_nothing_below_error_and_zero_for_a_fault_to_pass_on() -> None:
    base = dm.parse_table("0 8 zero\n8 8 error")
    assert str(dm.overlay(base, [Overlay(2, 2, dm.Fail())])).splitlines() == [
        "0 2 zero",
        "2 2 error",
        "4 4 zero",
        "8 8 error",
    ]
    for effect in EFFECTS[1:]:
        with pytest.raises(UnsplittableTarget):
            dm.overlay(base, [Overlay(2, 2, effect)])


@pytest.mark.parametrize("words", ["8:0", "8:0 x", "sda 0", "8:0 0 1"])
def test_linear_words_that_make_no_sense(words: str) -> None:
    base = dm.parse_table(f"0 8 linear {words}")
    if words == "8:0 0 1":  # the kernel takes two words only; we read no more
        return
    with pytest.raises(BadTable):
        dm.overlay(base, [Overlay(1, 1, dm.Fail())])


def test_a_hundred_thousand_cuts_in_one_pass() -> None:
    base = Table((Segment(0, 10**9, *dm.linear(A, 0)),))
    faults = [Overlay(at * 4 + 1, 1, dm.Fail()) for at in range(100_000)]
    result = dm.overlay(base, faults)
    assert len(result.segments) == 200_001 and result.length == base.length
