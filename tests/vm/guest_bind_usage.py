"""Guard rails and the use of space, against real swap areas and file systems."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

from guest_bind_kit import EXT4, NODE, XFS, check, filefrag, fragmented, kinds, loop, mounted, sh

from nodeagent.bind.resolve import resolve_device, resolve_file, resolve_volume
from nodeagent.bind.spacemap import space_map
from nodeagent.bind.usage import guards
from nodeagent.model.ranges import covers, intersect, parse_ranges, total


@check
def swap_and_protected_paths() -> str:
    with loop(64) as device, loop(64) as area, mounted(device, *EXT4) as mnt:
        sh("mkswap", area)
        sh("swapon", area)
        file = mnt / "swap file"
        os.close(os.open(file, os.O_CREAT, 0o600))
        sh("fallocate", "-l", "8M", str(file))
        sh("mkswap", str(file))
        sh("swapon", str(file))
        try:
            seen = kinds(guards(NODE, resolve_device(NODE, area)))
            assert seen["swap", area].hit is True
            (mnt / "state").mkdir()
            (mnt / "state/journal").write_bytes(os.urandom(50_000))
            (mnt / "data").write_bytes(os.urandom(50_000))
            os.link(mnt / "state/journal", mnt / "other name")
            protected = [str(mnt / "state"), "/no/such/path"]

            def hits(path: str) -> tuple[object, object]:
                found = kinds(guards(NODE, resolve_file(NODE, str(mnt / path)), protected))
                return (found["protected-path", protected[0]].hit, found["swap", str(file)].hit)

            assert hits("data") == (False, False)
            assert hits("state/journal") == (True, False)
            assert hits("other name") == (True, False), "a hard link hides a protected file"
            journal = resolve_file(NODE, str(mnt / "state/journal")).ranges
            found = kinds(guards(NODE, resolve_device(NODE, device, journal[:1]), protected))
            assert found["protected-path", protected[0]].hit is True
            first = filefrag(file)[0][1] // 512
            found = kinds(guards(NODE, resolve_device(NODE, device, parse_ranges(f"{first}"))))
            assert found["swap", str(file)].hit is True
        finally:
            sh("swapoff", str(file))
            sh("swapoff", area)
    return ""


@check
def an_unseen_holder_is_a_guard_rail() -> str:
    with loop(64) as device:
        free = resolve_device(NODE, device)
        assert not kinds(guards(NODE, free))
        holder = os.open(device, os.O_RDONLY | os.O_EXCL)
        try:
            (guard,) = guards(NODE, free)
            assert guard.kind == "claimed" and device in guard.via, guard
            sh("blockdev", "--setro", device)
            locked = guards(NODE, resolve_device(NODE, device))
            assert [g.kind for g in locked] == ["read-only", "claimed"], locked
            sh("blockdev", "--setrw", device)
        finally:
            os.close(holder)
        assert not kinds(guards(NODE, free)), "asking has left a claim"
        with ThreadPoolExecutor(8) as pool:  # plans come side by side
            looks = [pool.submit(guards, NODE, free) for _ in range(200)]
            assert not any(look.result() for look in looks), "two who asked have seen each other"
        sh("mkfs.ext4", "-q", device)
        # A mount in another namespace only: findmnt here does not know it.
        script = f"mkdir -p /run/x && mount {device} /run/x && echo up && cat"
        argv = ["unshare", "-m", "sh", "-c", script]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None and other.stdout.readline() == b"up\n"
            assert [g.kind for g in guards(NODE, free)] == ["claimed"]
            other.communicate(b"")
    return ""


def space_of(*mkfs: str, size: int) -> str:
    with loop(size) as device, mounted(device, *mkfs) as mnt:
        data = fragmented(mnt / "f")
        (mnt / "dir").mkdir()
        (mnt / "dir" / "g").write_bytes(data)
        os.link(mnt / "f", mnt / "dir" / "h")
        os.sync()
        bound = resolve_volume(NODE, str(mnt))
        assert bound.volume is not None and bound.whole
        space = space_map(NODE, bound.volume)
        assert not space.partial and space.files == 8, space.files
        for path in (mnt / "f", mnt / "dir/g"):
            assert covers(space.file_data, resolve_file(NODE, str(path)).ranges)
        super_block = parse_ranges("0+1") if mkfs[0] == "mkfs.xfs" else parse_ranges("2+2")
        assert not intersect(super_block, (*space.file_data, *space.free))
        parts = (space.file_data, space.metadata, space.free, space.unknown)
        everything = [r for part in parts for r in part]
        assert sum(total(part) for part in parts) == total(everything), "parts overlap"
        missing = bound.top.size_sectors - total(everything)
        assert 0 <= missing < 4096, f"{missing} sectors in no part"
        few = space_map(NODE, bound.volume, within=super_block, max_files=1)
        assert few.partial and covers((*few.metadata, *few.unknown), super_block)
        return str({n: total(p) for n, p in zip("dmfu", parts, strict=True)})


@check
def space_of_ext4() -> str:
    return space_of(*EXT4, size=64)


@check
def space_of_xfs() -> str:
    return space_of(*XFS, size=320)


@check
def space_of_xfs_without_a_reverse_map() -> str:
    return space_of("mkfs.xfs", "-qf", "-m", "rmapbt=0,reflink=0", size=320)
