"""Which sectors of which device lie below a device-mapper segment, where that is exact.

Argument orders: Documentation/admin-guide/device-mapper/*.rst; the mapping functions
are in drivers/md/dm-linear.c, dm-crypt.c, dm-flakey.c, dm-delay.c, dm-dust.c and
dm-stripe.c. All numbers are 512-byte sectors.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from nodeagent.encode.dm_table import Segment, parse_segment
from nodeagent.model.ranges import Range, Ranges, normalise

_DEV = re.compile(r"\d+:\d+", re.ASCII)
_SECRET = re.compile(r"((?:internal_hash|journal_crypt|journal_mac):[^:]+:)[0-9A-Fa-f]+")
_KEEPS_NOTHING = {"error": "every I/O fails there", "zero": "reads are zeros"}
_MAX_CHUNKS = 1 << 18
_NOT_EXACT = {
    "thin": "a thin pool places blocks by its own metadata",
    "thin-pool": "it is the pool's own data area, mapped by its metadata",
    "snapshot": "blocks lie in the origin or in the copy-on-write store",
    "snapshot-merge": "blocks are being moved",
    "mirror": "each sector has several copies",
    "raid": "a RAID personality spreads or copies sectors",
    "cache": "hot blocks lie on the cache device",
    "writecache": "recent writes lie on the cache device",
    "multipath": "several paths lead to one disk",
    "integrity": "tags lie between the data",
    "vdo": "blocks are deduplicated and compressed",
}


class Piece(NamedTuple):
    """`length` sectors from `start` of a device are those from `low` of `dev` (major:minor)."""

    start: int
    length: int
    dev: str
    low: int


def redact(line: str) -> str:
    """A table line without key material: the key of dm-crypt, the keyed hashes of dm-integrity.

    The kernel prints them in full to root (crypt_status, drivers/md/dm-crypt.c); keys
    in the kernel's keyring (`:32:logon:name`) are names only and stay.
    """
    words = line.split()
    if len(words) > 4 and words[2] == "crypt" and not words[4].startswith(":"):
        words[4] = "0" * len(words[4]) if words[4] != "-" else "-"
        return " ".join(words)
    return _SECRET.sub(lambda m: m[1] + "0", line)


def pieces(line: str, inside: Ranges) -> tuple[Piece, ...] | str:
    """The part of a segment's mapping that `inside` (sectors of the device) needs.

    A sentence instead of pieces says why the mapping is not one-to-one.
    """
    segment = parse_segment(line)
    window = _clip(segment, inside)
    if segment.target == "striped":
        return _striped(segment, window)
    place = _placed(segment)
    if isinstance(place, str):
        return place
    dev, low = place
    return tuple(Piece(s, e - s, dev, low + s - segment.start) for s, e in window)


def _clip(segment: Segment, ranges: Ranges) -> list[tuple[int, int]]:
    first = max(0, bisect_right(ranges, segment.start, key=lambda r: r.start) - 1)
    out = []
    for item in ranges[first:]:
        if item.start >= segment.end:
            break
        start, end = max(item.start, segment.start), min(item.end, segment.end)
        if start < end:
            out.append((start, end))
    return out


def _placed(segment: Segment) -> tuple[str, int] | str:
    """(device, sector) that the segment's first sector lies on, or why there is none."""
    name, args = segment.target, segment.args
    if name in ("linear", "flakey", "dust"):
        return _device(segment, 0)
    if name == "delay":
        # With split devices the stored sector is where writes go.
        return _device(segment, 3 if len(args) >= 6 else 0)
    if name == "crypt":
        if any(word.startswith("integrity:") for word in args):
            return "dm-crypt with integrity tags: sectors lie between the tags"
        return _device(segment, 3)
    if name == "snapshot-origin":
        return (args[0], segment.start) if args and _DEV.fullmatch(args[0]) else _broken(segment)
    why = _KEEPS_NOTHING.get(name) or _NOT_EXACT.get(name) or "its mapping is not known here"
    return f"dm-{name}: {why}"


def _device(segment: Segment, at: int) -> tuple[str, int] | str:
    args = segment.args
    if len(args) < at + 2 or not _DEV.fullmatch(args[at]) or not _number(args[at + 1]):
        return _broken(segment)
    return args[at], int(args[at + 1])


def _striped(segment: Segment, window: list[tuple[int, int]]) -> tuple[Piece, ...] | str:
    args = segment.args
    if len(args) < 2 or not (_number(args[0]) and _number(args[1])):
        return _broken(segment)
    count, chunk = int(args[0]), int(args[1])
    legs = [_device(segment, 2 + 2 * i) for i in range(count)]
    if not legs or chunk < 1:
        return _broken(segment)
    if sum((end - start) // chunk + 2 for start, end in window) > _MAX_CHUNKS:
        return f"dm-striped: the sectors are in more than {_MAX_CHUNKS} chunks"
    out = []
    for start, end in window:
        at = start
        while at < end:
            row, inside = divmod(at - segment.start, chunk)
            leg = legs[row % count]
            if isinstance(leg, str):
                return leg
            length = min(chunk - inside, end - at)
            out.append(Piece(at, length, leg[0], leg[1] + row // count * chunk + inside))
            at += length
    return tuple(out)


def _number(word: str) -> bool:
    return word.isascii() and word.isdigit()


def _broken(segment: Segment) -> str:
    return f"dm-{segment.target}: its arguments are not those of this target"


def down(table: Iterable[str], ranges: Ranges) -> tuple[list[Piece], list[tuple[str, Ranges]]]:
    """Map normal ranges through a table: pieces below, and what ends here with the reason."""
    found: list[Piece] = []
    stuck: list[tuple[str, Ranges]] = []
    for line in table:
        segment = parse_segment(line)
        window = _clip(segment, ranges)
        if not window:
            continue
        part = normalise(Range(start=s, length=e - s) for s, e in window)
        mapped = pieces(line, part)
        if isinstance(mapped, str):
            stuck.append((mapped, part))
        else:
            found.extend(mapped)
    return found, stuck
