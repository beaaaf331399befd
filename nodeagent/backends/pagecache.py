"""Drop one byte range from the page cache, and say what stayed and why.

Facts (mm/fadvise.c, mm/truncate.c, Linux 6.12): POSIX_FADV_DONTNEED starts write-back
without waiting, leaves partial pages, and leaves a folio that straddles the range, that
is dirty, under write-back, locked or mapped. So: write back and wait, drop, look, and
widen only while something is left. Nothing outside the widened range is touched, and
BLKFLSBUF, which empties a whole device's cache, is never used.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from typing import Literal, NamedTuple

from nodeagent.bind.node import Node
from nodeagent.bind.procs import Pids, mapped_by
from nodeagent.model.binding import Residency

PAGE = os.sysconf("SC_PAGESIZE")
_LIBC = ctypes.CDLL(None, use_errno=True)
_SYS_CACHESTAT = 451
_SYNC_AND_WAIT = 0x1 | 0x2 | 0x4
_FOLIO_STEPS = (64 << 10, PAGE * PAGE // 8)
"""Widening steps: common large folios, then a PMD's worth, the largest folio there is."""
_MMAP_CHUNK = 1 << 30
_MAP_FAILED = ctypes.c_void_p(-1).value


class _Range(ctypes.Structure):
    """struct cachestat_range, include/uapi/linux/mman.h."""

    _fields_ = (("off", ctypes.c_uint64), ("len", ctypes.c_uint64))


class _Stat(ctypes.Structure):
    """struct cachestat; pages, not folios."""

    _fields_ = (
        ("cache", ctypes.c_uint64),
        ("dirty", ctypes.c_uint64),
        ("writeback", ctypes.c_uint64),
        ("evicted", ctypes.c_uint64),
        ("recently_evicted", ctypes.c_uint64),
    )


class Cached(NamedTuple):
    """Pages of a range in the page cache; None where mincore(2) cannot tell."""

    pages: int
    dirty: int | None
    writeback: int | None
    method: Literal["cachestat", "mincore"]


def evict(fd: int, offset: int, length: int, node: Node | None = None) -> Residency:
    """Write a range of an open file or block device back, and drop it from the cache.

    offset >= 0, length > 0, bytes. The file needs no flush by the caller: only the range
    is written (sync_file_range(2)), since a flush of all of a large database file would
    disturb more than was asked for. Raises OSError: EIO when the write-back failed,
    EINVAL for an empty range.
    """
    if offset < 0 or length <= 0:
        raise OSError(errno.EINVAL, "an empty or negative range")
    start = offset // PAGE * PAGE
    end = -(-(offset + length) // PAGE) * PAGE
    before = cached(fd, start, end - start)
    low, high = start, end
    _drop(fd, low, high)
    after = cached(fd, start, end - start)
    mappers = Pids((), complete=True)
    for step in _FOLIO_STEPS:
        if after.pages and step == _FOLIO_STEPS[-1]:
            # Before the widest step, since the scan costs more than the first: mapped
            # pages stay however much around them is dropped.
            mappers = _mappers(node or Node(), fd, start, end)
        if not after.pages or mappers.pids:
            break
        low, high = start // step * step, -(-end // step) * step
        _drop(fd, low, high)
        after = cached(fd, start, end - start)
    return Residency(
        total_pages=(end - start) // PAGE,
        cached_before=before.pages,
        cached_after=after.pages,
        dirty=after.dirty,
        writeback=after.writeback,
        widened=(low, high - low),
        mapped_by=mappers.pids,
        scan_complete=mappers.complete,
        method=after.method,
        note="; ".join(_notes(fd, after, mappers)),
    )


def _drop(fd: int, low: int, high: int) -> None:
    _sync_range(fd, low, high - low)
    os.posix_fadvise(fd, low, high - low, os.POSIX_FADV_DONTNEED)


def _is_device(fd: int) -> bool:
    return stat.S_ISBLK(os.fstat(fd).st_mode)


def _mappers(node: Node, fd: int, start: int, end: int) -> Pids:
    status = os.fstat(fd)
    if _is_device(fd):
        return Pids((), complete=True)
    return mapped_by(node, status.st_dev, status.st_ino, (start, end - start))


def _notes(fd: int, after: Cached, mappers: Pids) -> list[str]:
    notes = []
    if _is_device(fd):
        notes.append("copies of files on this device in the page cache are unknown")
    if after.pages:
        notes.append(_why(after, mappers))
    return notes


def _why(after: Cached, mappers: Pids) -> str:
    reasons = []
    if after.dirty:
        reasons.append(f"{after.dirty} written to again")
    if after.writeback:
        reasons.append(f"{after.writeback} under write-back")
    if mappers.pids:
        shown = ", ".join(str(pid) for pid in mappers.pids[:8])
        reasons.append(f"mapped by process {shown}")
    elif not mappers.complete:
        reasons.append("perhaps mapped: the scan of /proc was cut short")
    if not reasons:
        reasons.append("read again, locked or pinned at this moment")
    return f"{after.pages} pages are still cached: {' and '.join(reasons)}"


def cached(fd: int, offset: int, length: int) -> Cached:
    """How much of a range is in the page cache; reads nothing in. Raises OSError.

    cachestat(2) from Linux 6.5, else mincore(2) on a mapping that is never touched.
    preadv2 with RWF_NOWAIT is no way to look: it reads ahead by itself (filemap_get_pages;
    seen on 6.12, not on 6.1).
    """
    answer = _Stat()
    failed = _LIBC.syscall(
        ctypes.c_long(_SYS_CACHESTAT),
        ctypes.c_int(fd),
        ctypes.byref(_Range(offset, length)),
        ctypes.byref(answer),
        ctypes.c_uint(0),
    )
    if not failed:
        return Cached(answer.cache, answer.dirty, answer.writeback, "cachestat")
    code = ctypes.get_errno()
    if code not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
        raise OSError(code, os.strerror(code), "cachestat")
    return Cached(_mincore(fd, offset, length), None, None, "mincore")


def _mincore(fd: int, offset: int, length: int) -> int:
    size = os.lseek(fd, 0, os.SEEK_END)
    end = min(offset + length, -(-size // PAGE) * PAGE)
    pages = 0
    for at in range(offset, end, _MMAP_CHUNK):
        pages += _mincore_chunk(fd, at, min(_MMAP_CHUNK, end - at))
    return pages


def _mincore_chunk(fd: int, offset: int, length: int) -> int:
    mmap = _LIBC.mmap
    mmap.restype = ctypes.c_void_p
    address = mmap(
        None,
        ctypes.c_size_t(length),
        ctypes.c_int(0x1),  # PROT_READ
        ctypes.c_int(0x1),  # MAP_SHARED
        ctypes.c_int(fd),
        ctypes.c_int64(offset),
    )
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), "mmap for mincore")
    try:
        vector = (ctypes.c_ubyte * (-(-length // PAGE)))()
        if _LIBC.mincore(ctypes.c_void_p(address), ctypes.c_size_t(length), vector):
            raise OSError(ctypes.get_errno(), "mincore")
        return sum(byte & 1 for byte in bytes(vector))
    finally:
        _LIBC.munmap(ctypes.c_void_p(address), ctypes.c_size_t(length))


def _sync_range(fd: int, offset: int, length: int) -> None:
    failed = _LIBC.sync_file_range(
        ctypes.c_int(fd),
        ctypes.c_int64(offset),
        ctypes.c_int64(length),
        ctypes.c_uint(_SYNC_AND_WAIT),
    )
    if failed:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "sync_file_range")
