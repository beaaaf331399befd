"""Extents clipped to a byte range, byte by byte against a plain model; flags refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.bind import extents as ex
from nodeagent.bind.resolve import _byte_range
from nodeagent.bind.stack import HOLE, _through_file
from nodeagent.encode.fiemap import EXTENT_FLAGS, RawExtent
from nodeagent.model.binding import Extent
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.ranges import Range, normalise, parse_ranges, total

BLOCK = 1024


@st.composite
def files(draw: st.DrawFn) -> list[RawExtent]:
    """A file's extents in units of blocks: holes between, some unwritten, placed anywhere."""
    at, low, out = 0, 0, []
    for _ in range(draw(st.integers(0, 6))):
        at += draw(st.integers(0, 3))
        low += draw(st.integers(0, 5))
        length = draw(st.integers(1, 4))
        flags = draw(st.sampled_from([0, 0, 0x800, 0x1000]))
        out.append(RawExtent(at * BLOCK, low * BLOCK, length * BLOCK, flags))
        at, low = at + length, low + length
    return out


@given(files(), st.integers(0, 20), st.integers(1, 20))
def test_split_accounts_for_every_half_block(raw: list[RawExtent], at: int, length: int) -> None:
    offset, size = at * 512, length * 512
    mapped = ex.split(raw, offset, size)
    got: dict[int, object] = {}
    for e in mapped.extents:
        got |= {e.logical + i: e.physical + i for i in range(0, e.length, 512)}
    for part in mapped.skipped:
        got |= {part.offset + i: part.why for i in range(0, part.length, 512)}
    want: dict[int, object] = {}
    for byte in range(offset, offset + size, 512):
        want[byte] = "hole"
        for e in raw:
            if e.logical <= byte < e.logical + e.length:
                want[byte] = "unwritten" if e.flags & 0x800 else e.physical + byte - e.logical
    assert got == want
    assert total(ex.sectors(mapped.extents)) * 512 == sum(e.length for e in mapped.extents)


@pytest.mark.parametrize(
    "flag", [f for f, n in EXTENT_FLAGS.items() if n not in ("LAST", "MERGED", "UNWRITTEN")]
)
def test_each_flag_is_refused_by_its_name(flag: int) -> None:
    with pytest.raises(Refused, match=EXTENT_FLAGS[flag]) as caught:
        ex._check("/f", RawExtent(0, 0, 4096, flag | 0x801))
    assert "not known here" not in caught.value.why


def test_an_unknown_flag_is_refused_too() -> None:
    with pytest.raises(Refused, match="0x10000"):
        ex._check("/f", RawExtent(0, 0, 4096, 0x10000))
    ex._check("/f", RawExtent(0, 0, 4096, 0x1801))


def test_the_telling_flag_explains() -> None:
    with pytest.raises(Refused, match="inside metadata"):
        ex._check("/f", RawExtent(0, 0, 60, 0x301))
    with pytest.raises(Refused, match="no place yet"):
        ex._check("/f", RawExtent(0, 0, 60, 0x6))


def test_unaligned_extents_are_refused() -> None:
    with pytest.raises(Refused, match="not aligned"):
        ex.sectors([Extent(logical=0, physical=100, length=512)])


def test_byte_ranges_grow_to_blocks_and_stay_in_the_file() -> None:
    assert _byte_range(10_000, "f", 5000, 10, 512) == (4608, 5120)
    assert _byte_range(10_000, "f", 5000, 10, 4096) == (4096, 8192)
    assert _byte_range(10_000, "f", 0, None, 4096) == (0, 12_288)
    assert _byte_range(10_000, "f", 9_999, 1, 512) == (9728, 10_240)
    for offset, length in ((10_000, None), (10_000, 1), (0, 10_001), (9_999, 2), (1 << 63, 1)):
        with pytest.raises(InvalidSpec, match="past") as caught:
            _byte_range(10_000, "f", offset, length, 512)
        assert "10000 bytes" in caught.value.why
    for offset, length in ((0, 0), (-1, 1), (5, -1)):
        with pytest.raises(InvalidSpec, match="empty or negative"):
            _byte_range(10_000, "f", offset, length, 512)
    with pytest.raises(Refused, match="empty"):
        _byte_range(0, "f", 0, None, 512)


@given(files(), st.integers(0, 8), st.integers(0, 30), st.integers(1, 30))
def test_loop_sectors_through_a_file(
    raw: list[RawExtent], offset: int, start: int, length: int
) -> None:
    asked = (Range(start=start, length=length),)
    step = _through_file(raw, offset * 512, asked, "8:1")
    got = {p.start + i: p.low + i for p in step.pieces for i in range(p.length)}
    for why, part, exact in step.ends:
        assert not exact
        got |= {s: why for r in part for s in range(r.start, r.end)}  # type: ignore[misc]
    want: dict[int, object] = {}
    for sector in range(start, start + length):
        byte = (sector + offset) * 512
        want[sector] = HOLE
        for e in raw:
            if e.logical <= byte < e.logical + e.length:
                low = (e.physical + byte - e.logical) // 512
                want[sector] = "the backing file's extent is UNWRITTEN" if e.flags & 0x800 else low
    assert got == want


def test_ranges_of_pieces_are_normal() -> None:
    raw = [RawExtent(0, 8192, 1024, 0), RawExtent(1024, 9216, 1024, 0)]
    step = _through_file(raw, 0, parse_ranges("0+4"), "8:1")
    assert normalise(Range(start=p.low, length=p.length) for p in step.pieces) == parse_ranges(
        "16+4"
    )
