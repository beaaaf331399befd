"""Eviction of a byte range, against xfs_io's mincore."""

from __future__ import annotations

import mmap
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from guest_bind_kit import EXT4, NODE, XFS, check, loop, mounted, sh

from nodeagent.backends import pagecache
from nodeagent.bind.procs import device_opened_by, mapped_by, opened_by


def resident(path: Path) -> int:
    """Pages in the cache, by xfs_io's mincore command (of any file system's files)."""
    out = sh("xfs_io", "-r", "-c", f"mmap -r 0 {path.stat().st_size}", "-c", "mincore", str(path))
    return sum(int(count) for count in re.findall(r"(\d+) pages", out))


def cache_of(*mkfs: str, size: int) -> str:
    with loop(size) as device, mounted(device, *mkfs) as mnt:
        path = mnt / "f"
        path.write_bytes(os.urandom(8 << 20))
        fd = os.open(path, os.O_RDONLY)
        pages = (8 << 20) // pagecache.PAGE
        assert pagecache.cached(fd, 0, 8 << 20).pages == resident(path) == pages
        assert pagecache._mincore(fd, 0, 8 << 20) == pages
        result = pagecache.evict(fd, (5 << 20) + 100, 5000, NODE)
        assert (result.total_pages, result.cached_before, result.cached_after) == (2, 2, 0), result
        assert pagecache.cached(fd, 5 << 20, 8192).pages == 0
        gone = pages - resident(path)
        assert gone * pagecache.PAGE <= result.widened[1] <= 2 << 20, (gone, result)
        assert pagecache._mincore(fd, 0, 8 << 20) == pages - gone
        os.pread(fd, 8 << 20, 0)
        with mmap.mmap(fd, 8 << 20, prot=mmap.PROT_READ) as view:
            assert view[5 << 20] >= 0
            stuck = pagecache.evict(fd, 5 << 20, 4096, NODE)
            assert stuck.cached_after == 1 and os.getpid() in stuck.mapped_by, stuck
            assert "mapped by process" in stuck.note
            status = os.fstat(fd)
            assert os.getpid() in mapped_by(NODE, status.st_dev, status.st_ino).pids
        assert os.getpid() in opened_by(NODE, status.st_dev, status.st_ino).pids
        os.close(fd)
        assert os.getpid() not in opened_by(NODE, status.st_dev, status.st_ino).pids
        return f"{result.method}, widened to {result.widened[1]}, {gone} pages gone"


@check
def cache_of_ext4() -> str:
    return cache_of(*EXT4, size=64)


@check
def cache_of_xfs() -> str:
    return cache_of(*XFS, size=320)


@check
def cache_of_a_device_range() -> str:
    with loop(64) as device:
        fd = os.open(device, os.O_RDONLY)
        try:
            os.pread(fd, 1 << 20, 0)
            before = pagecache.cached(fd, 0, 1 << 20).pages
            result = pagecache.evict(fd, 64 << 10, 8192, NODE)
            assert result.cached_before == 2 and result.cached_after == 0, result
            assert "unknown" in result.note
            after = pagecache.cached(fd, 0, 1 << 20).pages
            assert after > 0 and before - after <= result.widened[1] // pagecache.PAGE
            rdev = os.fstat(fd).st_rdev
            opened = device_opened_by(NODE, os.major(rdev), os.minor(rdev))
            assert os.getpid() in opened.pids
        finally:
            os.close(fd)
    return f"{before} -> {after}"


@check
def nowait_reads_fill_the_cache() -> str:
    """Why RWF_NOWAIT is no way to look: measured, so that a kernel that changes it is noticed."""
    with loop(64) as device, mounted(device, *EXT4) as mnt:
        path = mnt / "f"
        path.write_bytes(os.urandom(4 << 20))
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert pagecache.cached(fd, 0, 4 << 20).pages == 0
        with suppress(BlockingIOError):
            os.preadv(fd, [bytearray(4096)], 1 << 20, os.RWF_NOWAIT)
        time.sleep(0.5)
        pages = pagecache.cached(fd, 0, 4 << 20).pages
        os.close(fd)
        return f"{pages} pages came in"
