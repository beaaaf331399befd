"""Cutting faults into a live table, and finding what lies below a range.

Only what the kernel maps sector by sector without state can be cut: linear,
error and zero. Everything else is refused by name, see _WHY.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from nodeagent.encode import dm_targets as targets
from nodeagent.encode.dm_effects import Backing as Backing
from nodeagent.encode.dm_effects import Delay as Delay
from nodeagent.encode.dm_effects import Dust as Dust
from nodeagent.encode.dm_effects import Effect as Effect
from nodeagent.encode.dm_effects import Fail as Fail
from nodeagent.encode.dm_effects import FailReads as FailReads
from nodeagent.encode.dm_effects import FailWrites as FailWrites
from nodeagent.encode.dm_effects import Flakey as Flakey
from nodeagent.encode.dm_table import BadTable, DevNum, Segment, Table
from nodeagent.model.errors import Conflict, Refused

_WHY = {
    "striped": "its chunks interleave over several devices; put the fault on one of them",
    "crypt": "its key lives in the table and its data depends on the sector number",
    "flakey": "its up and down clock would start anew; it may be another fault's",
    "delay": "the fault would replace the delay; it may be another fault's",
    "dust": "its list of bad blocks is lost when the table is loaded anew",
    "multipath": "it is request-based and cannot be mixed with bio-based targets",
    "mirror": "it may be moving data (pvmove) while the table is swapped",
    "raid": "it resynchronises and keeps state per array",
    "thin": "the pool holds its mapping",
    "thin-pool": "it holds the mapping of all thin volumes",
    "snapshot": "its exception store is bound to the whole segment",
    "snapshot-origin": "snapshots of it would miss writes",
    "snapshot-merge": "a merge is under way",
    "cache": "dirty blocks may be in the cache only",
    "writecache": "dirty blocks may be in the cache only",
}


class UnsplittableTarget(Refused):
    """A base segment that cannot be cut or covered; `target` names its type."""

    def __init__(self, segment: Segment, what: str) -> None:
        super().__init__(
            f"cannot {what} a {segment.target} segment "
            f"(sectors {segment.start}..{segment.end - 1})",
            _WHY.get(segment.target, "faultctl does not know how this target maps sectors"),
            "name a device below or above it whose table is linear",
        )
        self.target = segment.target


@dataclass(frozen=True, slots=True)
class Overlay:
    """A fault on sectors [start, start + length) of a table."""

    start: int
    length: int
    effect: Effect

    @property
    def end(self) -> int:
        """First sector behind the overlay."""
        return self.start + self.length


def overlay(base: Table, overlays: Sequence[Overlay], block_sectors: int = 1) -> Table:
    """The base table with each overlay's range replaced, all else mapped as before.

    block_sectors: the device's logical block size in sectors; a cut elsewhere
    would load and then fail in the swap (dm_calculate_queue_limits). The order
    of overlays does not matter; without overlays the base comes back as it is.
    Raises BadTable, Conflict on overlap, UnsplittableTarget.
    """
    ordered = _checked(base, overlays, block_sectors)
    pieces: list[Segment] = []
    at = 0
    for segment in base.segments:
        done = segment.start
        while at < len(ordered) and ordered[at].start < segment.end:
            current = ordered[at]
            low, high = max(current.start, segment.start), min(current.end, segment.end)
            if low > done:
                pieces.append(_cut(segment, done, low))
            pieces.append(_cover(segment, low, high, current.effect))
            done = high
            if current.end > segment.end:
                break  # the rest of it lies on the next segment
            at += 1
        if done < segment.end:
            pieces.append(_cut(segment, done, segment.end))
    return Table(tuple(pieces))


def merge(table: Table) -> Table:
    """Neighbouring linear segments that continue each other, joined.

    Only for tables that we split ourselves: LVM's tables come back byte for
    byte from the journal, never through here.
    """
    merged: list[Segment] = []
    for segment in table.segments:
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.target == segment.target == "linear"
            and _backing(last, segment.start) == _backing(segment, segment.start)
        ):
            merged[-1] = Segment(last.start, last.length + segment.length, "linear", last.args)
        else:
            merged.append(segment)
    return Table(tuple(merged))


class Extent(NamedTuple):
    """A range on a device, in sectors."""

    dev: DevNum
    start: int
    length: int


def map_range(table: Table, start: int, length: int) -> list[Extent]:
    """Where a range of the device lies one layer down, in order.

    Knows linear and crypt (both keep order and length; crypt adds its own
    offset). Raises BadTable for a range outside, UnsplittableTarget otherwise.
    """
    end = start + length
    if start < 0 or length <= 0 or end > table.length:
        raise BadTable(f"range {start}+{length} is not on the device", f"0..{table.length}")
    found: list[Extent] = []
    for segment in table.segments:
        low, high = max(start, segment.start), min(end, segment.end)
        if low < high:
            if segment.target not in ("linear", "crypt"):
                raise UnsplittableTarget(segment, "map a range through")
            dev, at = _backing(segment, low)
            found.append(Extent(dev, at, high - low))
    return found


def _checked(base: Table, overlays: Sequence[Overlay], block: int) -> list[Overlay]:
    ordered = sorted(overlays, key=lambda one: (one.start, one.length))
    for one in ordered:
        if one.start < 0 or one.length <= 0 or one.end > base.length:
            raise BadTable(
                f"range {one.start}+{one.length} is not on the device",
                f"it has sectors 0..{base.length - 1}",
            )
        if one.start % block or one.length % block:
            raise BadTable(
                f"range {one.start}+{one.length} cuts a logical block",
                f"the device's blocks are {block} sectors of 512 bytes",
            )
    for one, two in pairwise(ordered):
        if two.start < one.end:
            raise Conflict(
                f"ranges {one.start}+{one.length} and {two.start}+{two.length} overlap",
                "a sector can have only one fault on device-mapper",
            )
    return ordered


def _cut(segment: Segment, low: int, high: int) -> Segment:
    if (low, high) == (segment.start, segment.end):
        return segment
    if segment.target in ("error", "zero") and not segment.args:
        return Segment(low, high - low, segment.target)
    if segment.target != "linear":
        raise UnsplittableTarget(segment, "cut")
    return Segment(low, high - low, *targets.linear(*_backing(segment, low)))


def _cover(segment: Segment, low: int, high: int, effect: Effect) -> Segment:
    """The fault's piece. error and zero have nothing below for a fault to pass on."""
    if segment.target == "linear":
        made = effect.target(low, _backing(segment, low))
        return Segment(low, high - low, *made)
    if segment.target in ("error", "zero") and not effect.needs_backing:
        return Segment(low, high - low, *effect.target(low, Backing(DevNum(0, 0), 0)))
    raise UnsplittableTarget(segment, "put a fault on")


def _backing(segment: Segment, sector: int) -> Backing:
    """Where a sector of a linear or crypt segment lies."""
    words = segment.args[3:5] if segment.target == "crypt" else segment.args[:2]
    if len(words) != 2 or not words[1].isascii() or not words[1].isdigit():
        raise BadTable(f"no {segment.target} table line: {segment}")
    return Backing(DevNum.parse(words[0]), int(words[1]) + sector - segment.start)
