"""The sector index that the BPF programs search: pure encoding, and a model of the search.

An index is an array of 16-byte entries (struct fc_entry, bpf/faultctl.bpf.h), native byte
order: a head with two counts, then chunks (64 aligned sectors and a bitmap of the bad ones,
sorted), then intervals (end and start, sorted, disjoint). Short ranges become chunks, whose
bits a write can clear one by one; long ranges become intervals, which stay as they are.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from nodeagent.model.errors import InvalidSpec
from nodeagent.model.ranges import Range, Ranges

ENTRY = 16
"""Bytes of one entry."""
CHUNK_SHIFT = 6
CHUNK = 1 << CHUNK_SHIFT
"""Sectors of one chunk."""
FULL = (1 << CHUNK) - 1
MAX_ENTRIES = 1 << 20
"""Entries that the search still reaches (FC_SEARCH_STEPS), the head included."""
SEARCH_STEPS = 21
LONG_SECTORS = 1 << 15
"""Ranges of more sectors than this (16 MiB) become intervals."""


@dataclass(frozen=True)
class SectorIndex:
    """chunks: (sector >> 6, bitmap), sorted. intervals: (start, end), sorted and disjoint."""

    chunks: tuple[tuple[int, int], ...] = ()
    intervals: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        """How many entries the encoded index has."""
        return 1 + len(self.chunks) + len(self.intervals)

    def encode(self) -> bytes:
        """The bytes of the BPF array's elements, element 0 first."""
        flat = array("Q", (len(self.chunks), len(self.intervals)))
        for chunk in self.chunks:
            flat.extend(chunk)
        for start, end in self.intervals:
            flat.extend((end, start))
        return flat.tobytes()

    def ranges(self) -> Ranges:
        """The sectors that it holds, as normal ranges."""
        runs = list(self.intervals)
        for number, bits in self.chunks:
            runs += _runs(number << CHUNK_SHIFT, bits)
        return tuple(Range(start=start, length=end - start) for start, end in _merged(runs))

    def hits(self, first: int, end: int) -> bool:
        """Whether the BPF program would match a bio of sectors [first, end)."""
        words = array("Q", self.encode())
        at, stop = 1, 1 + len(self.chunks)
        at = lower_bound(words, at, stop, first >> CHUNK_SHIFT)
        while at < stop and words[2 * at] <= (end - 1) >> CHUNK_SHIFT:
            if words[2 * at + 1] & chunk_mask(words[2 * at], first, end):
                return True
            at += 1
        at = lower_bound(words, stop, len(self), first + 1)
        return at < len(self) and words[2 * at + 1] < end


def lower_bound(words: array[int], low: int, high: int, key: int) -> int:
    """First entry in [low, high) whose first word is at least `key`; as fc_lower_bound does."""
    for _ in range(SEARCH_STEPS):
        if low >= high:
            break
        middle = low + (high - low) // 2
        if words[2 * middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


def chunk_mask(number: int, first: int, end: int) -> int:
    """The bits of a chunk that lie in sectors [first, end)."""
    base = number << CHUNK_SHIFT
    low, high = max(first - base, 0), min(end - base, CHUNK)
    return ((1 << high) - 1) & ~((1 << low) - 1) if high > low else 0


def _merged(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """(start, end) pairs, sorted, touching and overlapping ones merged.

    As model.ranges.normalise, without an object for each of perhaps 100,000 ranges.
    """
    out: list[tuple[int, int]] = []
    for start, end in sorted(runs):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out


def _runs(base: int, bits: int) -> list[tuple[int, int]]:
    """The runs of set bits of one chunk, as (start, end) sectors."""
    runs = []
    while bits:
        start = (bits & -bits).bit_length() - 1
        length = (~(bits >> start) & (bits >> start) + 1).bit_length() - 1
        runs.append((base + start, base + start + length))
        bits &= ~(((1 << length) - 1) << start)
    return runs


def _add_chunks(chunks: list[tuple[int, int]], start: int, end: int) -> None:
    """Append the chunks of one range; the first may share a chunk with the last range."""
    for number in range(start >> CHUNK_SHIFT, ((end - 1) >> CHUNK_SHIFT) + 1):
        bits = chunk_mask(number, start, end)
        if chunks and chunks[-1][0] == number:
            chunks[-1] = (number, chunks[-1][1] | bits)
        else:
            chunks.append((number, bits))


def build_index(ranges: Iterable[Range], long_sectors: int = LONG_SECTORS) -> SectorIndex:
    """Index of some ranges; those of more than `long_sectors` become intervals.

    With long_sectors=0 all do (a watch needs no bits). Raises InvalidSpec when they do not
    fit into MAX_ENTRIES entries.
    """
    chunks: list[tuple[int, int]] = []
    intervals: list[tuple[int, int]] = []
    room = MAX_ENTRIES - 1
    for start, end in _merged((one.start, one.start + one.length) for one in ranges):
        if end - start > long_sectors:
            intervals.append((start, end))
        elif len(chunks) + (end - start >> CHUNK_SHIFT) <= room:
            _add_chunks(chunks, start, end)
        else:
            raise _too_many(long_sectors)
    if len(chunks) + len(intervals) > room:
        raise _too_many(long_sectors)
    return SectorIndex(tuple(chunks), tuple(intervals))


def _too_many(long_sectors: int) -> InvalidSpec:
    return InvalidSpec(
        "the sector ranges cannot be indexed",
        f"they need more than {MAX_ENTRIES - 1} entries (64 sectors each in ranges of at most "
        f"{long_sectors} sectors)",
        "give fewer or shorter ranges",
    )


def decode_index(data: bytes) -> SectorIndex:
    """What the kernel holds now. Raises ValueError when the counts do not fit the bytes."""
    words = array("Q")
    words.frombytes(data)
    count, intervals = (words[0], words[1]) if len(words) >= 2 else (0, 0)
    if len(words) != 2 * (1 + count + intervals):
        raise ValueError(f"{len(data)} bytes do not hold {count} chunks and {intervals} intervals")
    pairs = list(zip(words[2::2], words[3::2], strict=True))
    return SectorIndex(tuple(pairs[:count]), tuple((start, end) for end, start in pairs[count:]))
