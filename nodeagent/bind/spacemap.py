"""What a mounted file system keeps where: FS_IOC_GETFSMAP, and FIEMAP as proof of file data.

ioctl_getfsmap(2). xfs names its metadata; without its reverse map, and on ext4, most of
what is in use is "unknown" and counts as metadata until a file's extent proves it data.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from nodeagent.bind import extents as ex
from nodeagent.bind.node import Node, opened, reason, reopened
from nodeagent.encode import fiemap as fm
from nodeagent.model.binding import SpaceMap, VolumeIdentity
from nodeagent.model.ranges import SECTOR, Range, Ranges, intersect, normalise, subtract

_RECORDS = 1024
MAX_FILES = 200_000
MAX_SECONDS = 20.0
_NO_DATA = fm.EXTENT_LAST | fm.EXTENT_MERGED | 0x2000
"""Flags beside which an extent is still data in blocks of its own: LAST, MERGED, SHARED."""


@dataclass
class Data:
    """Sectors that regular files keep data in, as far as they were walked."""

    found: list[Range] = field(default_factory=list)
    files: int = 0
    partial: bool = False

    @property
    def ranges(self) -> Ranges:
        """Normal form."""
        return normalise(self.found)


def walk_data(root_fd: int, max_files: int = MAX_FILES, max_seconds: float = MAX_SECONDS) -> Data:
    """Map all regular files below a directory, on its own file system only.

    Nothing is flushed: data without a place yet is on no sector. Files that cannot be
    opened, and either limit, make the answer `partial`.
    """
    data = Data()
    deadline = time.monotonic() + max_seconds
    seen: set[int] = set()
    for fd in _files(root_fd, data):
        status = os.fstat(fd)
        if status.st_ino in seen:
            continue
        seen.add(status.st_ino)
        data.files += 1
        _add(fd, status.st_size, data)
        if data.files >= max_files or time.monotonic() > deadline:
            data.partial = True
            break
    return data


def _add(fd: int, size: int, data: Data) -> None:
    if not size or ex.xflags(fd) & fm.XFLAG_REALTIME:
        return
    try:
        raw = ex.fiemap(fd, 0, size, sync=False)
    except (OSError, OverflowError):
        data.partial = True
        return
    for item in raw:
        if not item.flags & ~_NO_DATA and item.length >= SECTOR:
            data.found.append(Range(start=item.physical // SECTOR, length=item.length // SECTOR))


def _files(root_fd: int, data: Data) -> Iterator[int]:
    """Open regular files one after another, links and other file systems left out."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    device = os.fstat(root_fd).st_dev
    stack = [os.dup(root_fd)]
    try:
        while stack:
            here = stack.pop()
            try:
                for name, is_dir in _entries(here, device, data):
                    try:
                        fd = os.open(name, flags, dir_fd=here)
                    except OSError:
                        data.partial = True
                        continue
                    if is_dir and len(stack) < 512:
                        stack.append(fd)
                        continue
                    data.partial = data.partial or is_dir
                    try:
                        if not is_dir:
                            yield fd
                    finally:
                        os.close(fd)
            finally:
                os.close(here)
    finally:
        for left in stack:
            os.close(left)


def _entries(fd: int, device: int, data: Data) -> Iterator[tuple[str, bool]]:
    with os.scandir(fd) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                data.partial = True
                continue
            if status.st_dev != device:
                # What the other file system covers is not seen either.
                data.partial = True
            elif stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode):
                yield entry.name, stat.S_ISDIR(status.st_mode)


def getfsmap(fd: int) -> list[fm.Fsmap]:
    """All records of the file system that `fd` is on. Raises OSError (EOPNOTSUPP: none)."""
    out: list[fm.Fsmap] = []
    low: fm.Fsmap | None = None
    while True:
        buffer = fm.pack_fsmap(low, _RECORDS)
        fcntl.ioctl(fd, fm.FS_IOC_GETFSMAP, buffer, True)
        batch = fm.unpack_fsmap(buffer)
        out.extend(batch)
        if len(batch) < _RECORDS or batch[-1].flags & fm.FMR_OF_LAST:
            return out
        low = batch[-1]


def space_map(
    node: Node,
    volume: VolumeIdentity,
    within: Ranges | None = None,
    max_files: int = MAX_FILES,
    max_seconds: float = MAX_SECONDS,
) -> SpaceMap:
    """Sectors of the volume's device by use, clipped to `within`. Raises Refused.

    `file_data` is proven by a file's extent; `metadata` and `free` are the file
    system's own word; the rest is `unknown` and counts as metadata.
    """
    notes: list[str] = []
    with (
        opened(node, volume.mount_point, os.O_PATH | os.O_DIRECTORY) as path_fd,
        reopened(path_fd, os.O_RDONLY | os.O_DIRECTORY) as fd,
    ):
        try:
            records = getfsmap(fd)
        except OSError as exc:
            records = []
            notes.append(f"no FS_IOC_GETFSMAP on {volume.fs_type}: {reason(exc)}")
        data = walk_data(fd, max_files, max_seconds)
    if volume.root != "/":
        data.partial = True
        notes.append(f"only {volume.root} of the file system is mounted here")
    device = fm.fsmap_dev(volume.major, volume.minor)
    parts = _parts([r for r in records if r.device == device], data.ranges)
    if within is not None:
        parts = _clipped(parts, within)
    return SpaceMap(**parts, partial=data.partial, files=data.files, notes=tuple(notes))


def _parts(mine: list[fm.Fsmap], data: Ranges) -> dict[str, Ranges]:
    free = _ranges(r for r in mine if _special(r, fm.FMR_OWN_FREE))
    unknown = _ranges(r for r in mine if _is_unknown(r))
    metadata = subtract(_ranges(r for r in mine if _is_metadata(r)), data)
    proven = subtract(data, free)
    return {
        "file_data": proven,
        "metadata": metadata,
        "free": free,
        "unknown": subtract(unknown, (*proven, *metadata, *free)),
    }


def _clipped(parts: dict[str, Ranges], within: Ranges) -> dict[str, Ranges]:
    """The parts within a range; what none of them covers is unknown."""
    found = {name: intersect(ranges, within) for name, ranges in parts.items()}
    rest = subtract(within, [r for ranges in found.values() for r in ranges])
    return {**found, "unknown": normalise((*found["unknown"], *rest))}


def _special(record: fm.Fsmap, code: int) -> bool:
    return bool(record.flags & fm.FMR_OF_SPECIAL_OWNER) and record.owner == code


def _is_unknown(record: fm.Fsmap) -> bool:
    if record.flags & fm.FMR_OF_SPECIAL_OWNER:
        return record.owner == fm.FMR_OWN_UNKNOWN
    # An inode's blocks: a file's data, or a directory's, which are metadata.
    return not record.flags & (fm.FMR_OF_ATTR_FORK | fm.FMR_OF_EXTENT_MAP)


def _is_metadata(record: fm.Fsmap) -> bool:
    return not _is_unknown(record) and not _special(record, fm.FMR_OWN_FREE)


def _ranges(records: Iterator[fm.Fsmap]) -> Ranges:
    return normalise(
        Range(start=r.physical // SECTOR, length=r.length // SECTOR)
        for r in records
        if r.length >= SECTOR
    )
