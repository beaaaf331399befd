"""From sectors of one device to the sectors below it, as far as the mapping is exact."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable
from typing import NamedTuple

from nodeagent.bind import dmmap
from nodeagent.bind.block import Blocks
from nodeagent.bind.dmmap import Piece
from nodeagent.bind.extents import fiemap, xflags
from nodeagent.bind.mounts import ON_ONE_DEVICE, mount_of_fd, why_not
from nodeagent.bind.node import Node, device_numbers, open_path, opened, reason, reopened
from nodeagent.encode import fiemap as fm
from nodeagent.model.binding import BlockLayer, DescentEnd, LayerRanges, LoopBacking
from nodeagent.model.errors import FaultError, Refused
from nodeagent.model.ranges import SECTOR, Range, Ranges, intersect, normalise, subtract

_MAX_DEPTH = 32
_LOOP_GET_STATUS64 = 0x4C05
_LOOP_INFO64 = struct.Struct("=QQ216x")
HOLE = "a hole in the backing file"
_LOWEST = {
    "disk": "the lowest device",
    "nbd": "the lowest device here: the data lies with an NBD server",
    "rbd": "the lowest device here: the data lies in a Ceph pool",
    "zram": "the lowest device: compressed memory",
    "ram": "the lowest device: memory",
}
_INEXACT = {
    "md": "md: a RAID personality spreads or copies sectors",
    "bcache": "bcache: blocks lie on the cache or the backing device",
    "drbd": "drbd: sectors are copied to another machine",
}


class Below(NamedTuple):
    """One step down: pieces of lower devices, and parts of the ranges that end here."""

    pieces: tuple[Piece, ...]
    ends: tuple[tuple[str, Ranges, bool], ...]


def descend(
    blocks: Blocks, dev: str, ranges: Ranges
) -> tuple[tuple[LayerRanges, ...], tuple[DescentEnd, ...]]:
    """All layers from `dev` down with the ranges as each of them sees it. Raises Refused.

    A device that is reached on several ways (two partitions of one disk below one
    volume) is one layer with all its ranges, named after the deepest way.
    """
    held: dict[str, list[Range]] = {}
    place: dict[str, tuple[int, str | None]] = {}
    ends: list[DescentEnd] = []
    todo: list[tuple[str, Ranges, int, str | None]] = [(dev, normalise(ranges), 0, None)]
    while todo:
        here, part, depth, above = todo.pop(0)
        held.setdefault(here, []).extend(part)
        place[here] = (depth, above)
        step = below(blocks, blocks.layer(here), part)
        ends.extend(DescentEnd(dev=here, ranges=r, exact=x, reason=w) for w, r, x in step.ends)
        if depth == _MAX_DEPTH:
            raise Refused(f"the stack below {dev} is too deep", f"more than {_MAX_DEPTH} layers")
        todo.extend((d, r, depth + 1, here) for d, r in by_device(step.pieces).items())
    found = tuple(
        LayerRanges(
            layer=blocks.layer(d), ranges=normalise(held[d]), depth=place[d][0], above=place[d][1]
        )
        for d in sorted(place, key=lambda d: (place[d][0], [int(n) for n in d.split(":")]))
    )
    return found, tuple(ends)


def by_device(pieces: Iterable[Piece]) -> dict[str, Ranges]:
    """Pieces as ranges on each lower device."""
    out: dict[str, list[Range]] = {}
    for piece in pieces:
        out.setdefault(piece.dev, []).append(Range(start=piece.low, length=piece.length))
    return {dev: normalise(items) for dev, items in out.items()}


def below(blocks: Blocks, layer: BlockLayer, ranges: Ranges) -> Below:
    """Where these sectors of a device lie one layer down."""
    if layer.kind == "partition" and layer.disk is not None:
        pieces = (Piece(r.start, r.length, layer.disk, r.start + layer.part_start) for r in ranges)
        return Below(tuple(pieces), ())
    if layer.kind == "dm":
        found, stuck = dmmap.down(layer.table, ranges)
        return Below(tuple(found), tuple((why, part, False) for why, part in stuck))
    if layer.loop is not None:
        return _below_loop(blocks, layer, layer.loop, ranges)
    if layer.kind in _INEXACT:
        return Below((), ((_INEXACT[layer.kind], ranges, False),))
    if layer.slaves:
        why = f"its mapping to {', '.join(layer.slaves)} is not known here"
        return Below((), ((why, ranges, False),))
    return Below((), ((_LOWEST.get(layer.kind, "the lowest device"), ranges, True),))


def _below_loop(blocks: Blocks, layer: BlockLayer, loop: LoopBacking, ranges: Ranges) -> Below:
    try:
        return _loop_extents(blocks, layer, loop, ranges)
    except FaultError as exc:
        why = str(exc)
    except (OSError, OverflowError) as exc:
        why = reason(exc)
    return Below((), ((f"loop over {loop.path!r}: {why}", ranges, False),))


def _loop_extents(blocks: Blocks, layer: BlockLayer, loop: LoopBacking, ranges: Ranges) -> Below:
    if loop.offset % SECTOR:
        raise Refused(f"its offset {loop.offset} is not a multiple of {SECTOR}")
    node = blocks.node
    with opened(node, loop.path) as path_fd:
        status = os.fstat(path_fd)
        if (status.st_dev, status.st_ino) != _loop_inode(node, layer):
            raise Refused("the path names another file than the device has open")
        mount = mount_of_fd(node, path_fd, blocks.mounts)
        if mount.fs_type not in ON_ONE_DEVICE:
            raise Refused(f"{mount.fs_type}: {why_not(mount.fs_type)}")
        with reopened(path_fd, os.O_RDONLY) as fd:
            if xflags(fd) & fm.XFLAG_REALTIME:
                raise Refused("it is a real-time file of xfs")
            first = loop.offset + ranges[0].start * SECTOR
            raw = fiemap(fd, first, loop.offset + ranges[-1].end * SECTOR - first)
    return _through_file(raw, loop.offset, ranges, mount.dev)


def _through_file(raw: list[fm.RawExtent], offset: int, ranges: Ranges, dev: str) -> Below:
    """Sectors of a loop device by the extents of its file; the rest ends with the reason."""
    pieces: list[Piece] = []
    stuck: dict[str, list[Range]] = {}
    covered: list[Range] = []
    for extent in raw:
        start = max(extent.logical - offset, 0)
        stop = extent.logical + extent.length - offset
        if stop <= start:
            continue
        window = Range(start=start // SECTOR, length=max(1, (stop - start) // SECTOR))
        part = intersect(ranges, (window,))
        covered.extend(part)
        bad = extent.flags & ~fm.HARMLESS_FLAGS
        if bad or (extent.physical | extent.length) % SECTOR:
            why = " | ".join(fm.flag_names(bad)) or "not aligned"
            stuck.setdefault(f"the backing file's extent is {why}", []).extend(part)
            continue
        low = (extent.physical - (extent.logical - offset)) // SECTOR
        pieces.extend(Piece(r.start, r.length, dev, r.start + low) for r in part)
    holes = subtract(ranges, covered)
    if holes:
        stuck[HOLE] = list(holes)
    ends = tuple((why, normalise(items), False) for why, items in stuck.items() if items)
    return Below(tuple(pieces), ends)


def _loop_inode(node: Node, layer: BlockLayer) -> tuple[int, int]:
    """(st_dev, st_ino) of a loop device's file, as the driver has it. Raises Refused, OSError."""
    path = str(node.dev / layer.kernel_name)
    host = Node(sys=node.sys, proc=node.proc, dev=node.dev)
    if device_numbers(host, path) != (layer.major, layer.minor):
        raise Refused(f"{path} is another device")
    fd = open_path(host, path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        buffer = bytearray(_LOOP_INFO64.size)
        fcntl.ioctl(fd, _LOOP_GET_STATUS64, buffer, True)
    finally:
        os.close(fd)
    device, inode = _LOOP_INFO64.unpack(buffer)
    return int(device), int(inode)
