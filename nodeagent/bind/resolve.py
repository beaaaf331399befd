"""Targets to bindings: the one entry for devices, volumes and files.

Nothing is changed, with one exception that is part of the mapping: a file is flushed
(fsync), as its fresh data has no place before.
"""

from __future__ import annotations

import os
import stat

from nodeagent.bind import extents as ex
from nodeagent.bind.block import Blocks
from nodeagent.bind.mounts import Mount, identity, mount_of_fd, resolve_mount_point
from nodeagent.bind.node import Node, device_numbers, opened, real_path, reason, reopened, shown
from nodeagent.bind.overlay import real_file
from nodeagent.bind.stack import descend
from nodeagent.encode.fiemap import XFLAG_DAX, XFLAG_REALTIME
from nodeagent.model.binding import BlockBinding, BlockLayer, FileIdentity, VolumeIdentity
from nodeagent.model.binding import whole_range as whole
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.ranges import SECTOR, Ranges, align_out, normalise
from nodeagent.model.target import DeviceTarget, FileTarget, TargetBase, VolumeTarget


def resolve(node: Node, target: TargetBase, sectors: Ranges | None = None) -> BlockBinding:
    """Any disk target; `sectors` are of the device or volume, None for all of them.

    Raises Refused when the node or file system says no, InvalidSpec for ranges past the
    end, or for sectors together with a file.
    """
    if isinstance(target, DeviceTarget):
        return resolve_device(node, target.device, sectors)
    if isinstance(target, VolumeTarget):
        return resolve_volume(node, target.volume, sectors)
    if not isinstance(target, FileTarget):
        raise InvalidSpec(
            f"{target.label()} is no disk target", "", "name a device, volume or file"
        )
    if sectors is not None:
        raise InvalidSpec("sectors cannot be chosen in a file", "", "use --offset and --length")
    return resolve_file(node, target.file, target.offset, target.length)


def resolve_device(node: Node, path: str, sectors: Ranges | None = None) -> BlockBinding:
    """A block device by any of its paths, partitions and stacked devices included."""
    major, minor = device_numbers(node, path)
    blocks = Blocks(node)
    return _bind(blocks, f"device {path}", f"{major}:{minor}", sectors)


def resolve_number(
    node: Node, major: int, minor: int, sectors: Ranges | None = None
) -> BlockBinding:
    """A block device by its number, whatever its nodes in /dev are called."""
    return _bind(Blocks(node), f"device {major}:{minor}", f"{major}:{minor}", sectors)


def resolve_volume(node: Node, path: str, sectors: Ranges | None = None) -> BlockBinding:
    """The device below the file system that is mounted at exactly this path."""
    blocks = Blocks(node)
    volume = identity(resolve_mount_point(node, path, blocks.mounts))
    return _bind(blocks, f"volume {path}", _dev(volume), sectors, volume)


def _bind(
    blocks: Blocks,
    target: str,
    dev: str,
    sectors: Ranges | None,
    volume: VolumeIdentity | None = None,
) -> BlockBinding:
    top = blocks.layer(dev)
    notes: list[str] = []
    everything = whole(top)
    if not everything:
        raise Refused(f"{top.name} has no sectors", "its size is 0", "attach it to something first")
    ranges = everything if sectors is None else _aligned(top, sectors, notes)
    layers, ends = descend(blocks, dev, ranges)
    for item in layers:
        notes.extend(_layer_notes(item.layer, item.ranges))
    return BlockBinding(
        target=target,
        layers=layers,
        ends=ends,
        whole=ranges == everything,
        volume=volume,
        notes=tuple(notes),
    )


def _aligned(top: BlockLayer, sectors: Ranges, notes: list[str]) -> Ranges:
    asked = normalise(sectors)
    if not asked or asked[-1].end > top.size_sectors:
        last = asked[-1] if asked else "none"
        raise InvalidSpec(
            f"sectors {last} are not on {top.name}",
            f"it has {top.size_sectors} sectors of {SECTOR} bytes",
            f"the last sector is {top.size_sectors - 1}",
        )
    ranges = align_out(asked, top.logical_block // SECTOR)
    if ranges != asked:
        notes.append(f"widened to the {top.logical_block}-byte blocks of {top.name}")
    return ranges


def _layer_notes(layer: BlockLayer, ranges: Ranges) -> list[str]:
    notes = []
    if align_out(ranges, layer.logical_block // SECTOR) != ranges:
        notes.append(f"not aligned to the {layer.logical_block}-byte blocks of {layer.name}")
    if layer.loop is not None and not layer.loop.direct_io:
        notes.append(f"{layer.name} reads through the page cache of {layer.loop.path!r}")
    return notes


def resolve_file(
    node: Node, path: str, offset: int = 0, length: int | None = None, host: Node | None = None
) -> BlockBinding:
    """A byte range of a regular file. Symbolic links are followed and reported in `via`.

    `host` is the view in which layers of an overlay are looked up; `node` by default.
    """
    with opened(node, path) as path_fd:
        status = os.fstat(path_fd)
        if not stat.S_ISREG(status.st_mode):
            raise Refused(
                f"{path!r} is not a regular file", "only regular files have extents", "name a file"
            )
        blocks = Blocks(node)
        mount = mount_of_fd(node, path_fd, blocks.mounts)
        real = real_path(node, path_fd)
        if real.endswith(" (deleted)") and status.st_nlink == 0:
            raise Refused(f"{path!r} is deleted", "an open file without a name", "name a file")
        if mount.fs_type == "overlay":
            below = real_file(host or node, mount, path_fd, real)
            found = resolve_file(host or node, below, offset, length)
            return _renamed(found, path, f"overlay {mount.mount_point} -> {below}")
        try:
            with reopened(path_fd, os.O_RDONLY) as fd:
                return _bind_file(blocks, mount, fd, path, (offset, length))
        except OSError as exc:
            raise Refused(f"{path!r} cannot be read", reason(exc)) from exc


def _renamed(found: BlockBinding, asked: str, via: str) -> BlockBinding:
    assert found.file is not None  # noqa: S101 - resolve_file always sets it
    file = found.file.model_copy(update={"asked": asked, "via": (via, *found.file.via)})
    note = "a write through the overlay may copy the file up, away from these sectors"
    return found.model_copy(
        update={"target": f"file {asked}", "file": file, "notes": (*found.notes, note)}
    )


def _bind_file(
    blocks: Blocks, mount: Mount, fd: int, path: str, part: tuple[int, int | None]
) -> BlockBinding:
    volume = identity(mount)
    top = blocks.layer(_dev(volume))
    _refuse_other_devices(fd, path, mount)
    start, end = _byte_range(os.fstat(fd).st_size, path, *part, top.logical_block)
    mapped = ex.map_bytes(fd, path, start, end - start)
    bound = _bind(blocks, f"file {path}", top.dev, ex.sectors(mapped.extents), volume)
    status = os.fstat(fd)
    final = shown(real_path(blocks.node, fd))
    file = FileIdentity(
        asked=path,
        path=final,
        major=volume.major,
        minor=volume.minor,
        inode=status.st_ino,
        generation=ex.generation(fd),
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        offset=start,
        length=end - start,
        fs_block=os.fstatvfs(fd).f_bsize,
        extents=mapped.extents,
        skipped=mapped.skipped,
        via=() if final == os.path.normpath(path) else (f"{path} -> {final}",),
    )
    return bound.model_copy(update={"file": file, "whole": False})


def _refuse_other_devices(fd: int, path: str, mount: Mount) -> None:
    flags = ex.xflags(fd)
    if flags & XFLAG_REALTIME:
        raise Refused(
            f"{path!r} is a real-time file",
            f"its data lies on another device than {mount.source} (FS_XFLAG_REALTIME)",
            "name the real-time device with --device",
        )
    if flags & XFLAG_DAX:
        raise Refused(
            f"{path!r} is read by DAX",
            "its pages are mapped straight from memory, no I/O passes the block layer",
            "choose another file",
        )


def _byte_range(
    size: int, path: str, offset: int, length: int | None, block: int
) -> tuple[int, int]:
    """The asked bytes, widened outward to logical blocks of the device."""
    if size == 0:
        raise Refused(f"{path!r} is empty", "no sector holds it", "choose a file with data")
    end = size if length is None else offset + length
    if offset >= size or end > size:
        raise InvalidSpec(
            f"the range ends past {path!r}", f"the file has {size} bytes", "choose a smaller range"
        )
    if offset < 0 or end <= offset:
        raise InvalidSpec("an empty or negative byte range", f"{offset} to {end}", "")
    return offset // block * block, -(-end // block) * block


def _dev(volume: VolumeIdentity) -> str:
    return f"{volume.major}:{volume.minor}"
