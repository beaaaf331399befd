"""Who would feel a fault: root file system, swap, protected paths, mounts, holders.

A fault on the whole of a device reaches everything on it and above it, so facts are
looked up on the device, its partitions, its holders, and loop devices whose file lies
on a file system there.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from nodeagent.bind import extents as ex
from nodeagent.bind.block import Blocks
from nodeagent.bind.fspath import inside
from nodeagent.bind.mounts import mount_of_fd
from nodeagent.bind.node import Node, open_path, read_text, reopened
from nodeagent.bind.overlay import layers as overlay_layers
from nodeagent.bind.spacemap import walk_data
from nodeagent.bind.stack import HOLE, below
from nodeagent.model.binding import BlockBinding, Guard, GuardKind, whole_range
from nodeagent.model.errors import FaultError
from nodeagent.model.ranges import (
    SECTOR,
    Range,
    Ranges,
    covers,
    intersect,
    normalise,
    overlaps,
    shift,
)

IN_USE = ("mounted", "held", "swap", "claimed")
"""Guards that tell of a user of the device, whoever it is."""
CLAIM_LOOKS, CLAIM_PAUSE_S = 3, 0.05
"""A device counts as claimed when it is so at every look: others look in this way too."""
_ONE_LOOK = threading.Lock()
"""Two looks at once would see each other."""


def guards(
    node: Node, binding: BlockBinding, protected_paths: Iterable[str] = ()
) -> tuple[Guard, ...]:
    """All reasons to keep off, the most serious kinds first. Paths that do not exist are left out.

    Changes nothing, but that a device that looks free is claimed for a moment. A planner
    that acts on the whole of layer D looks at guards with D in `devices`; one that acts
    on the bound sectors alone at those with `hit` not False.
    """
    return _Usage(node, binding).guards(tuple(protected_paths))


def is_claimed(node: Path) -> bool:
    """Whether open(2) with O_EXCL of this device node is refused as busy, and stays so."""
    for look in range(CLAIM_LOOKS):
        if look:
            time.sleep(CLAIM_PAUSE_S)
        try:
            with _ONE_LOOK:
                os.close(os.open(node, os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError as exc:
            if exc.errno != errno.EBUSY:
                return False
        else:
            return False
    return True


def reached_above(node: Node, binding: BlockBinding) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(devices, devices of mounted file systems) at and above a binding's top device, as
    major:minor: who uses one of them reads through the top device."""
    usage = _Usage(node, binding)
    devices = usage._above(binding.top.dev)
    mounts = usage.blocks.mounted_on
    return devices, tuple(sorted({m.dev for dev in devices for m in mounts.get(dev, ())}))


class _Usage:
    def __init__(self, node: Node, binding: BlockBinding) -> None:
        self.node = node
        self.blocks = Blocks(node)
        self.binding = binding
        self.reached: dict[str, list[str]] = {}
        for item in binding.layers:
            for dev in self._above(item.layer.dev):
                self.reached.setdefault(dev, []).append(item.layer.dev)

    def guards(self, paths: tuple[str, ...]) -> tuple[Guard, ...]:
        found = [*self._root(), *self._swap()]
        for path in paths:
            found.extend(self._protected(path))
        found.extend(self._read_only())
        found.extend(self._mounted())
        found.extend(self._held())
        if not any(guard.kind in IN_USE for guard in found):
            found.extend(self._claimed())
        return tuple(found)

    def _above(self, start: str) -> tuple[str, ...]:
        seen: list[str] = []
        todo = [start]
        while todo:
            dev = todo.pop()
            if dev in seen:
                continue
            seen.append(dev)
            todo.extend(self.blocks.partitions(dev))
            todo.extend(self.blocks.layer(dev).holders)
            todo.extend(self.loops.get(dev, ()))
        return tuple(seen)

    @cached_property
    def loops(self) -> dict[str, tuple[str, ...]]:
        """Loop devices by the device that their files lie on."""
        out: dict[str, list[str]] = {}
        for attribute in (self.node.sys / "block").glob("loop*/loop/backing_file"):
            loop = read_text(attribute.parent.parent / "dev")
            for dev in self._devices_of_path(read_text(attribute)):
                out.setdefault(dev, []).append(loop)
        return {dev: tuple(items) for dev, items in out.items()}

    def _devices_of_path(self, path: str) -> tuple[str, ...]:
        """Devices below the file system that a path lies on, overlay layers included."""
        try:
            fd = open_path(self.node, path)
        except (OSError, ValueError):
            return ()
        try:
            mount = mount_of_fd(self.node, fd, self.blocks.mounts)
        except FaultError:
            return ()
        finally:
            os.close(fd)
        if mount.fs_type == "overlay":
            places = (self._devices_of_path(d) for d in overlay_layers(mount.super_options))
            return tuple(sorted({dev for place in places for dev in place}))
        return tuple(dev for dev, items in self.blocks.mounted_on.items() if mount in items)

    def _guard(self, kind: GuardKind, what: str, dev: str, why: str, hit: bool | None) -> Guard:
        way = self.blocks.layer(dev).name
        lower = tuple(self.reached[dev])
        under = [self.blocks.layer(d).name for d in lower if d != dev]
        via = f"{why} {way}" + (f", which is on {' and '.join(under)}" if under else "")
        return Guard(kind=kind, what=what, via=via, devices=lower, hit=hit)

    def _root(self) -> list[Guard]:
        return [
            self._guard("root", "/", dev, "the root file system is on", self._range_hit(dev))
            for dev in self._devices_of_path("/")
            if dev in self.reached
        ]

    def _swap(self) -> list[Guard]:
        found = [
            self._guard("swap", path, dev, "swap area on", self._touches(dev))
            for dev, path in self.blocks.swap_devices.items()
            if dev in self.reached
        ]
        for swap in self.blocks.swaps:
            if not swap.is_file:
                continue
            for dev in self._devices_of_path(swap.path):
                if dev in self.reached:
                    hit = self._file_hit(dev, swap.path)
                    found.append(self._guard("swap", swap.path, dev, "swap file on", hit))
        return found

    def _protected(self, path: str) -> list[Guard]:
        return [
            self._guard("protected-path", path, dev, f"{path} is on", self._file_hit(dev, path))
            for dev in self._devices_of_path(path)
            if dev in self.reached
        ]

    def _read_only(self) -> list[Guard]:
        return [
            self._guard("read-only", item.layer.name, item.layer.dev, "read-only device", True)
            for item in self.binding.layers
            if item.layer.read_only
        ]

    def _mounted(self) -> list[Guard]:
        return [
            self._guard("mounted", point, dev, "mounted from", self._touches(dev))
            for dev in self.reached
            for point in self.blocks.layer(dev).mountpoints
        ]

    def _held(self) -> list[Guard]:
        bound = {item.layer.dev for item in self.binding.layers}
        found = []
        for item in self.binding.layers:
            for dev in item.layer.holders:
                if dev not in bound:
                    name = self.blocks.layer(dev).name
                    hit = self._touches(dev) if dev in self.reached else True
                    found.append(self._guard("held", name, item.layer.dev, "a layer over", hit))
        return found

    def _claimed(self) -> list[Guard]:
        """Held exclusively (bd_prepare_to_claim, block/bdev.c) by what no table here shows.

        Such are a mount in another namespace, a root that was switched away from, and a
        program that opened the device with O_EXCL. Found by claiming it for a moment.
        """
        top = self.binding.top  # those below are claimed by the one above
        if not is_claimed(self.node.dev / top.name.removeprefix("/dev/")):
            return []
        why = "something unseen from here (another mount namespace?) holds"
        return [self._guard("claimed", "an unseen user", top.dev, why, None)]

    def _range_hit(self, dev: str) -> bool | None:
        """Root: plain data of one file spares it; sectors chosen by number do not."""
        return False if dev in self.data_files else self._touches(dev)

    @cached_property
    def data_files(self) -> dict[str, str]:
        """Devices on which the bound sectors are plain data of one file, and that file."""
        out = {}
        if self.binding.file is not None:
            out[self.binding.top.dev] = self.binding.file.path
        layers = {item.layer.dev: item.layer for item in self.binding.layers}
        for item in self.binding.layers:
            upper = layers.get(item.above or "")
            if upper is not None and upper.loop is not None:
                out[item.layer.dev] = upper.loop.path
        return out

    def _touches(self, dev: str) -> bool | None:
        part = self.on(dev)
        return None if part is None else bool(part)

    def _file_hit(self, dev: str, path: str) -> bool | None:
        """Whether the bound sectors hold data of this file or tree on `dev`."""
        part = self.on(dev)
        if not part:
            return None if part is None else False
        if covers(part, whole_range(self.blocks.layer(dev))):
            return True
        if dev in self.data_files:
            known = inside(self.node, self.blocks.mounts, self.data_files[dev], path)
            if known is not None:
                return known
        return self._tree_hit(path, part)

    def _tree_hit(self, path: str, part: Ranges) -> bool | None:
        try:
            fd = open_path(self.node, path)
        except OSError:
            return None
        try:
            if not os.path.isdir(f"/proc/self/fd/{fd}"):
                with reopened(fd, os.O_RDONLY) as file_fd:
                    return overlaps(part, self._all_extents(file_fd))
            with reopened(fd, os.O_RDONLY | os.O_DIRECTORY) as root:
                data = walk_data(root)
        except (OSError, OverflowError):
            return None
        finally:
            os.close(fd)
        if overlaps(part, data.ranges):
            return True
        return None if data.partial else False

    @staticmethod
    def _all_extents(fd: int) -> Ranges:
        # Swap files may be unwritten in the file system's eyes: every extent counts.
        raw = ex.fiemap(fd, 0, max(os.fstat(fd).st_size, 1))
        ranges = (Range(start=e.physical // SECTOR, length=max(1, e.length // SECTOR)) for e in raw)
        return normalise(ranges)

    def on(self, dev: str) -> Ranges | None:
        """The bound sectors on any device of the stack, also above it; None if unknown."""
        for item in self.binding.layers:
            if item.layer.dev == dev:
                return item.ranges
        layer = self.blocks.layer(dev)
        step = below(self.blocks, layer, whole_range(layer))
        known: list[Range] = []
        for piece in step.pieces:
            if piece.dev in self.reached:
                part = self.on(piece.dev)
                if part is None:
                    return None
                window = Range(start=piece.low, length=piece.length)
                shared = intersect(part, (window,))
                known.extend(shift(shared, piece.start - piece.low))
        if not known and any(why != HOLE for why, _, _ in step.ends):
            return None
        return normalise(known)
