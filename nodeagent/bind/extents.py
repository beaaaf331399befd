"""From a byte range of an open file to extents on its file system's device, by FIEMAP.

Documentation/filesystems/fiemap.rst. The file is flushed first, since before that ext4
and xfs have not chosen the place of fresh data (delayed allocation).
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable
from typing import NamedTuple

from nodeagent.bind.node import reason
from nodeagent.encode import fiemap as fm
from nodeagent.model.binding import Extent, SkippedPart
from nodeagent.model.errors import Refused
from nodeagent.model.ranges import SECTOR, Range, Ranges, normalise

_BATCH = 512
MAX_EXTENTS = 1_000_000
_SAYS = {
    "UNKNOWN": "the file system does not say where the data lies",
    "DELALLOC": "the data has no place yet, though the file was flushed",
    "ENCODED": "the data is compressed or otherwise encoded",
    "DATA_ENCRYPTED": "the file system encrypts the data",
    "NOT_ALIGNED": "the data does not fill blocks of its own",
    "DATA_INLINE": "the data lies inside metadata",
    "DATA_TAIL": "several files share the block",
    "SHARED": "other files share the extent (reflink)",
}


class Mapped(NamedTuple):
    """What FIEMAP says about a byte range, clipped to it."""

    extents: tuple[Extent, ...]
    skipped: tuple[SkippedPart, ...]


def fiemap(
    fd: int, start: int, length: int, *, sync: bool = True, limit: int = MAX_EXTENTS
) -> list[fm.RawExtent]:
    """All extents that touch the range, in file order.

    Raises OSError (EOPNOTSUPP where the file system has no FIEMAP), and OverflowError
    when there are more than `limit`.
    """
    found: list[fm.RawExtent] = []
    at, end = start, start + length
    while at < end:
        buffer = fm.pack_fiemap(at, end - at, _BATCH, sync=sync)
        fcntl.ioctl(fd, fm.FS_IOC_FIEMAP, buffer, True)
        batch = fm.unpack_fiemap(buffer)
        found.extend(batch)
        if len(found) > limit:
            raise OverflowError(f"more than {limit} extents")
        if len(batch) < _BATCH or batch[-1].flags & fm.EXTENT_LAST:
            break
        at = max(at + 1, batch[-1].logical + batch[-1].length)
    return found


def map_bytes(fd: int, path: str, offset: int, length: int) -> Mapped:
    """Flush the file, then map [offset, offset + length) to exact extents.

    Holes and unwritten parts are skipped and reported. Raises Refused, with the flag's
    name, for any other extent that is not the file's own plain blocks; and when
    nothing but skipped parts remains.
    """
    try:
        os.fsync(fd)
        raw = fiemap(fd, offset, length)
    except (OSError, OverflowError) as exc:
        raise Refused(
            f"{path!r} cannot be mapped to sectors", f"FIEMAP: {reason(exc)}", "name a device"
        ) from exc
    for extent in raw:
        _check(path, extent)
    mapped = split(raw, offset, length)
    if not mapped.extents:
        why = " and ".join(sorted({part.why for part in mapped.skipped}))
        raise Refused(
            f"no sector holds bytes {offset} to {offset + length - 1} of {path!r}",
            f"the range is {why}: it reads as zeros without I/O",
            "choose a range that has been written",
        )
    return mapped


def _check(path: str, extent: fm.RawExtent) -> None:
    bad = extent.flags & ~(fm.HARMLESS_FLAGS | fm.EXTENT_UNWRITTEN)
    if not bad:
        return
    names = fm.flag_names(bad)
    # The most telling flag: NOT_ALIGNED and UNKNOWN are set beside others.
    first = min(names, key=lambda n: (n in ("NOT_ALIGNED", "UNKNOWN"), n))
    raise Refused(
        f"bytes from {extent.logical} of {path!r} have no sectors of their own",
        f"FIEMAP flag {' | '.join(names)}: {_SAYS.get(first, 'not known here')}",
        "choose another file or range",
    )


def split(raw: Iterable[fm.RawExtent], offset: int, length: int) -> Mapped:
    """Clip extents to the range; what none covers is a hole, unwritten ones are skipped."""
    extents: list[Extent] = []
    skipped: list[SkippedPart] = []
    at, end = offset, offset + length
    for item in sorted(raw):
        start = max(item.logical, at)
        stop = min(item.logical + item.length, end)
        if start >= stop:
            continue
        if start > at:
            skipped.append(SkippedPart(offset=at, length=start - at, why="hole"))
        if item.flags & fm.EXTENT_UNWRITTEN:
            skipped.append(SkippedPart(offset=start, length=stop - start, why="unwritten"))
        else:
            extents.append(_extent(item, start, stop))
        at = stop
    if at < end:
        skipped.append(SkippedPart(offset=at, length=end - at, why="hole"))
    return Mapped(tuple(extents), tuple(skipped))


def _extent(item: fm.RawExtent, start: int, stop: int) -> Extent:
    return Extent(
        logical=start,
        physical=item.physical + start - item.logical,
        length=stop - start,
        # LAST depends on where the file ends, not on where the data lies.
        flags=fm.flag_names(item.flags & ~fm.EXTENT_LAST),
    )


def sectors(extents: Iterable[Extent]) -> Ranges:
    """Extents as sectors of the file system's device. Raises Refused when not aligned."""
    out = []
    for item in extents:
        if item.physical % SECTOR or item.length % SECTOR:
            raise Refused(
                "an extent is not aligned to sectors",
                f"{item.length} bytes at byte {item.physical}",
                "choose another range",
            )
        out.append(Range(start=item.physical // SECTOR, length=item.length // SECTOR))
    return normalise(out)


def xflags(fd: int) -> int:
    """FS_XFLAG_* of a file (FS_IOC_FSGETXATTR); 0 where the file system has none."""
    buffer = fm.new_fsxattr()
    try:
        fcntl.ioctl(fd, fm.FS_IOC_FSGETXATTR, buffer, True)
    except OSError:
        return 0
    return fm.unpack_xflags(buffer)


def generation(fd: int) -> int | None:
    """The inode's generation (FS_IOC_GETVERSION), which a re-used inode number changes."""
    buffer = bytearray(8)
    try:
        fcntl.ioctl(fd, fm.FS_IOC_GETVERSION, buffer, True)
    except OSError:
        return None
    # The number is an int although the ioctl's size says long (fs/ext4/ioctl.c).
    return int(struct.unpack_from("=I", buffer)[0])
