"""Block devices by their number: /sys/dev/block/MAJOR:MINOR, never by name.

Attributes: Documentation/ABI/stable/sysfs-block; `dm/` in Documentation/ABI/testing/sysfs-block-dm.
"""

from __future__ import annotations

import os
import re
import stat
from functools import cached_property
from pathlib import Path

from nodeagent.bind.dmmap import redact
from nodeagent.bind.mounts import Mount, Swap, read_mounts, read_swaps
from nodeagent.bind.node import Node, read_int, read_text, reason, shown
from nodeagent.model.binding import BlockLayer, LayerKind, LoopBacking
from nodeagent.model.errors import Refused

_PREFIXES: tuple[tuple[str, LayerKind], ...] = (
    ("loop", "loop"),
    ("md", "md"),
    ("bcache", "bcache"),
    ("drbd", "drbd"),
    ("nbd", "nbd"),
    ("rbd", "rbd"),
    ("zram", "zram"),
    ("ram", "ram"),
)
_PLAIN = re.compile(r"[A-Za-z0-9#+\-.:=@_]")


class Blocks:
    """Reads layers; mounts, swap areas and devices are read once and kept.

    One object a resolution: what it returns belongs to one moment.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self._layers: dict[str, BlockLayer] = {}

    @cached_property
    def mounts(self) -> tuple[Mount, ...]:
        """The mount table of the node's view."""
        return read_mounts(self.node)

    @cached_property
    def swaps(self) -> tuple[Swap, ...]:
        """Active swap areas."""
        return read_swaps(self.node)

    @cached_property
    def mounted_on(self) -> dict[str, tuple[Mount, ...]]:
        """Mounts by the device below, btrfs by the devices of its sysfs entry or source."""
        out: dict[str, list[Mount]] = {}
        for mount in self.mounts:
            for dev in self._devices_of(mount):
                out.setdefault(dev, []).append(mount)
        return {dev: tuple(items) for dev, items in out.items()}

    @cached_property
    def swap_devices(self) -> dict[str, str]:
        """Swap devices, major:minor to path."""
        return {dev: s.path for s in self.swaps if not s.is_file and (dev := self._rdev(s.path))}

    def layer(self, dev: str) -> BlockLayer:
        """The device `major:minor`. Raises Refused when the kernel has none."""
        if dev not in self._layers:
            self._layers[dev] = self._read(dev)
        return self._layers[dev]

    def directory(self, dev: str) -> Path:
        """Its directory in sysfs."""
        return self.node.sys / "dev" / "block" / dev

    def partitions(self, dev: str) -> tuple[str, ...]:
        """Partitions of a disk, major:minor."""
        return _devices(self.directory(dev), "*/partition", parent=True)

    def _read(self, dev: str) -> BlockLayer:
        path = self.directory(dev)
        if not (path / "dev").exists():
            raise Refused(
                f"no block device {dev}", f"{path} does not exist", "list devices with lsblk"
            )
        real = path.resolve()
        part = (path / "partition").exists()
        queue = (real.parent if part else real) / "queue"
        kind = _kind(path, real.name)
        dm_name = read_text(path / "dm" / "name") or None
        major, minor = (int(number) for number in dev.split(":"))
        return BlockLayer(
            major=major,
            minor=minor,
            name=self._device_path(real.name, path, dm_name),
            kernel_name=real.name,
            kind=kind,
            size_sectors=read_int(path / "size"),
            logical_block=read_int(queue / "logical_block_size", 512),
            physical_block=read_int(queue / "physical_block_size", 512),
            read_only=read_int(path / "ro") != 0,
            zoned=read_text(queue / "zoned", "none") != "none",
            diskseq=self._diskseq(real, part),
            part_start=read_int(path / "start") if part else 0,
            disk=read_text(real.parent / "dev") if part else None,
            dm_name=shown(dm_name) if dm_name else None,
            dm_uuid=shown(read_text(path / "dm" / "uuid")) or None,
            dm_suspended=read_int(path / "dm" / "suspended") != 0,
            table=self._table(dev, kind),
            loop=_backing(path),
            holders=_devices(path, "holders/*"),
            slaves=_devices(path, "slaves/*"),
            mountpoints=tuple(shown(m.mount_point) for m in self.mounted_on.get(dev, ())),
            swap=dev in self.swap_devices,
        )

    def _device_path(self, kernel_name: str, path: Path, dm_name: str | None) -> str:
        if dm_name:
            mapper = f"mapper/{mangle(dm_name)}"
            if (self.node.dev / mapper).exists():
                return f"/dev/{mapper}"
        for line in read_text(path / "uevent").split("\n"):
            if line.startswith("DEVNAME="):
                return "/dev/" + line.removeprefix("DEVNAME=")
        return "/dev/" + kernel_name.replace("!", "/")

    @staticmethod
    def _diskseq(real: Path, part: bool) -> int | None:
        return read_int((real.parent if part else real) / "diskseq") or None

    def _table(self, dev: str, kind: LayerKind) -> tuple[str, ...]:
        if kind != "dm":
            return ()
        if self.node.dm_table is None:
            raise Refused(f"cannot read the table of {dev}", "no device-mapper control is at hand")
        major, minor = (int(number) for number in dev.split(":"))
        try:
            return tuple(redact(line) for line in self.node.dm_table(major, minor))
        except OSError as exc:
            raise Refused(f"cannot read the table of {dev}", reason(exc)) from exc

    def _devices_of(self, mount: Mount) -> tuple[str, ...]:
        if not mount.dev.startswith("0:"):
            return (mount.dev,)
        if mount.fs_type not in ("btrfs", "bcachefs") or not mount.source.startswith("/dev/"):
            return ()
        first = self._rdev(mount.source.split(":")[0])
        if not first:
            return ()
        for group in (self.node.sys / "fs" / "btrfs").glob("*/devices"):
            members = _devices(group, "*")
            if first in members:
                return members
        return (first,)

    def _rdev(self, path: str) -> str:
        try:
            found = os.stat(self.node.dev / path.removeprefix("/dev/"))
        except OSError:
            return ""
        if not stat.S_ISBLK(found.st_mode):
            return ""
        return f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"


def _kind(path: Path, name: str) -> LayerKind:
    if (path / "partition").exists():
        return "partition"
    if (path / "dm").exists():
        return "dm"
    return next((kind for prefix, kind in _PREFIXES if re.match(rf"{prefix}_?[\d_]", name)), "disk")


def _backing(path: Path) -> LoopBacking | None:
    loop = path / "loop"
    if not loop.exists():
        return None
    return LoopBacking(
        path=shown(read_text(loop / "backing_file")),
        offset=read_int(loop / "offset"),
        size_limit=read_int(loop / "sizelimit"),
        direct_io=read_int(loop / "dio") != 0,
    )


def _devices(base: Path, pattern: str, *, parent: bool = False) -> tuple[str, ...]:
    found = [read_text((item.parent if parent else item) / "dev") for item in base.glob(pattern)]
    return tuple(sorted((dev for dev in found if dev), key=_by_number))


def _by_number(dev: str) -> tuple[int, ...]:
    return tuple(int(part) for part in dev.split(":"))


def mangle(name: str) -> str:
    r"""A device-mapper name as udev writes it below /dev/mapper: other bytes as `\xNN`."""
    return "".join(
        char if _PLAIN.fullmatch(char) else "".join(f"\\x{byte:02x}" for byte in os.fsencode(char))
        for char in name
    )
