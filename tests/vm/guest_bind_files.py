"""Files to sectors, against filefrag and O_DIRECT reads of the device."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from guest_bind_kit import (
    EXT4,
    NODE,
    WORK,
    XFS,
    Skip,
    check,
    filefrag,
    fragmented,
    holds,
    kinds,
    loop,
    mounted,
    refused,
    sh,
)

from nodeagent.bind.node import Node
from nodeagent.bind.resolve import resolve_device, resolve_file, resolve_volume
from nodeagent.bind.usage import guards
from nodeagent.model.binding import differences
from nodeagent.model.errors import InvalidSpec
from nodeagent.model.ranges import total


def on_file_system(device: str, *mkfs: str) -> str:
    with mounted(device, *mkfs, at="mnt with space\nand newline") as mnt:
        fresh = mnt / "fresh"
        data = os.urandom(100_000)
        fresh.write_bytes(data)
        # Not flushed by us: delayed allocation is the library's to resolve.
        found = resolve_file(NODE, str(fresh))
        holds(found, data)
        assert found.volume is not None and found.volume.mount_point == str(mnt)
        part = resolve_file(NODE, str(fresh), 5000, 3)
        assert part.file is not None and (part.file.offset, part.file.length) == (4608, 512)
        holds(part, data)
        many = mnt / "many"
        data = fragmented(many)
        found = resolve_file(NODE, str(many))
        assert found.file is not None
        rows = filefrag(many)
        assert len(rows) >= 2, f"not fragmented: {rows}"
        mine = [(e.logical, e.physical, e.length) for e in found.file.extents]
        # Beyond the end of the file, xfs keeps preallocated blocks.
        assert mine == [row[:3] for row in rows if row[0] < len(data)], (mine, rows)
        holds(found, data)
        sparse = mnt / "sparse"
        with sparse.open("wb") as file:
            file.write(data[:4096])
            file.seek(1 << 20)
            file.write(data[:8192])
            os.posix_fallocate(file.fileno(), 2 << 20, 65536)
        found = resolve_file(NODE, str(sparse))
        assert found.file is not None
        assert {part.why for part in found.file.skipped} == {"hole", "unwritten"}, found.file
        assert total(found.ranges) == (4096 + 8192) // 512
        refused("hole.*zeros", lambda: resolve_file(NODE, str(sparse), 65536, 4096))
        refused("unwritten.*zeros", lambda: resolve_file(NODE, str(sparse), 2 << 20, 4096))
        link = mnt / "link"
        link.symlink_to("many")
        via = resolve_file(NODE, str(link)).file
        assert via is not None and via.path == str(many) and "->" in via.via[0], via
        refused("past", lambda: resolve_file(NODE, str(many), 0, 1 << 30), InvalidSpec)
        return f"{len(rows)} extents"


@check
def ext4_files() -> str:
    with loop(64) as device:
        return on_file_system(device, *EXT4)


@check
def ext4_with_small_blocks() -> str:
    with loop(64) as device:
        return on_file_system(device, *EXT4, "-b", "1024")


@check
def xfs_files() -> str:
    with loop(320) as device:
        return on_file_system(device, *XFS)


@check
def ext3_and_ext2_by_block_lists() -> str:
    for name in ("ext3", "ext2"):
        with loop(64) as device, mounted(device, f"mkfs.{name}", "-qF") as mnt:
            data = fragmented(mnt / "f")
            holds(resolve_file(NODE, str(mnt / "f")), data)
    return ""


@check
def inline_data_is_refused() -> str:
    with loop(64) as device, mounted(device, *EXT4) as mnt:
        (mnt / "tiny").write_bytes(b"x" * 40)
        refused("DATA_INLINE", lambda: resolve_file(NODE, str(mnt / "tiny")))
        (mnt / "empty").touch()
        refused("empty", lambda: resolve_file(NODE, str(mnt / "empty")))
    return ""


@check
def reflinked_extents_are_refused() -> str:
    with loop(320) as device, mounted(device, *XFS) as mnt:
        (mnt / "a").write_bytes(os.urandom(65536))
        sh("cp", "--reflink=always", str(mnt / "a"), str(mnt / "b"))
        refused("SHARED", lambda: resolve_file(NODE, str(mnt / "a")))
        data = os.urandom(65536)
        (mnt / "b").write_bytes(data)
        holds(resolve_file(NODE, str(mnt / "b")), data)
    return ""


@check
def real_time_files_are_refused() -> str:
    with loop(320) as device, loop(64) as real_time:
        sh("mkfs.xfs", "-qf", "-m", "reflink=0,rmapbt=0", "-r", f"rtdev={real_time}", device)
        try:
            with mounted(device, options=f"rtdev={real_time}") as mnt:
                sh("xfs_io", "-Rfc", "pwrite 0 64k", str(mnt / "rt"))
                (mnt / "plain").write_bytes(os.urandom(8192))
                found = resolve_file(NODE, str(mnt / "plain"))
                assert found.volume is not None and found.volume.more_devices == (real_time,)
                refused("REALTIME", lambda: resolve_file(NODE, str(mnt / "rt")))
        except AssertionError as exc:
            if "mount" in str(exc) and "rc 32" in str(exc):
                raise Skip("kernel without CONFIG_XFS_RT") from exc
            raise
    return ""


@check
def tmpfs_and_directories_are_refused() -> str:
    point = WORK / "tmpfs"
    point.mkdir()
    sh("mount", "-t", "tmpfs", "none", str(point))
    try:
        (point / "f").write_bytes(b"x" * 9000)
        refused("tmpfs: it lives in memory", lambda: resolve_file(NODE, str(point / "f")))
        refused("tmpfs: it lives in memory", lambda: resolve_volume(NODE, str(point)))
        (point / "dir").mkdir()
        refused("not a mount point", lambda: resolve_volume(NODE, str(point / "dir")))
    finally:
        sh("umount", str(point))
    return ""


@check
def btrfs_is_refused_but_its_devices_are_known() -> str:
    sh("modprobe", "-q", "btrfs", ok=False)
    if "btrfs" not in Path("/proc/filesystems").read_text():
        raise Skip("kernel without btrfs")
    mkfs = ("mkfs.btrfs", "-qf", "-d", "raid1", "-m", "raid1")
    with loop(128) as one, loop(128) as two, mounted(one, *mkfs, two) as mnt:
        (mnt / "f").write_bytes(os.urandom(50_000))
        refused("btrfs: its addresses", lambda: resolve_file(NODE, str(mnt / "f")))
        refused("btrfs: its addresses", lambda: resolve_volume(NODE, str(mnt)))
        for device in (one, two):
            found = kinds(guards(NODE, resolve_device(NODE, device), [str(mnt)]))
            assert ("mounted", str(mnt)) in found, f"{device} is not seen as mounted"
            assert found["protected-path", str(mnt)].hit is True
    return ""


@check
def overlay_files() -> str:
    with loop(64) as device, mounted(device, *EXT4) as mnt:
        for name in ("low,er", "upper", "work", "merged"):
            (mnt / name).mkdir()
        below, above = os.urandom(20_000), os.urandom(30_000)
        (mnt / "low,er/below").write_bytes(below)
        (mnt / "low,er/hidden").write_bytes(below)
        (mnt / "upper/hidden").write_bytes(above)
        sh("mount", "-t", "overlay", "overlay", "-o",
           f"lowerdir={mnt}/low\\,er,upperdir={mnt}/upper,workdir={mnt}/work",
           f"{mnt}/merged")  # fmt: skip
        try:
            for name, layer, data in (
                ("below", "low,er", below), ("hidden", "upper", above),
            ):  # fmt: skip
                found = resolve_file(NODE, f"{mnt}/merged/{name}")
                assert found.file is not None and found.file.path == f"{mnt}/{layer}/{name}"
                assert "overlay" in found.file.via[0]
                holds(found, data)
            with (mnt / "merged/below").open("ab") as file:
                file.write(b"copied up")
            moved = resolve_file(NODE, f"{mnt}/merged/below").file
            assert moved is not None and moved.path == f"{mnt}/upper/below"
            refused("overlay: its files", lambda: resolve_volume(NODE, f"{mnt}/merged"))
        finally:
            sh("umount", f"{mnt}/merged")
    return ""


@check
def another_mount_namespace() -> str:
    with loop(64) as device:
        sh(*EXT4, device)
        point = WORK / "private"
        point.mkdir()
        script = f"mount {device} {point} && echo 0123456789 > {point}/x && "
        script += f"head -c 50000 /dev/urandom > {point}/f && sync -f {point}/f && "
        script += f"ln -s {point}/f {WORK}/abs; echo ready; read x; umount {point}"
        child = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", script], stdin=-1, stdout=-1, text=True
        )
        assert child.stdin is not None and child.stdout is not None
        try:
            assert child.stdout.readline() == "ready\n"
            refused("cannot open", lambda: resolve_file(NODE, f"{point}/f"))
            inside = Node(root=f"/proc/{child.pid}/root", mount_pid=str(child.pid))
            data = Path(f"/proc/{child.pid}/root{point}/f").read_bytes()
            holds(resolve_file(inside, f"{point}/f"), data)
            linked = resolve_file(inside, f"{WORK}/abs").file
            assert linked is not None and linked.path == f"{point}/f", linked
            volume = resolve_volume(inside, str(point)).volume
            assert volume is not None and volume.mount_point == str(point)
        finally:
            child.stdin.write("\n")
            child.stdin.close()
            child.wait(30)
            (WORK / "abs").unlink(missing_ok=True)
    return ""


@check
def stale_plans() -> str:
    with loop(64) as device, mounted(device, *EXT4) as mnt:
        file = mnt / "f"
        file.write_bytes(os.urandom(50_000))
        plan = resolve_file(NODE, str(file), 8192, 8192)
        with file.open("r+b") as handle:
            handle.write(b"changed in place")
            handle.seek(0, 2)
            handle.write(b"and longer")
        assert differences(plan, resolve_file(NODE, str(file), 8192, 8192)) == ()
        (mnt / "new").write_bytes(os.urandom(50_000))
        (mnt / "new").rename(file)
        moved = differences(plan, resolve_file(NODE, str(file), 8192, 8192))
        assert any("inode" in m for m in moved) and any("sectors were" in m for m in moved), moved
        return "; ".join(moved)
