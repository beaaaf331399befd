"""What a disk target is in the kernel's own terms: devices, sectors, extents.

A binding is a snapshot, read without changing anything. It holds what a planner needs
to choose the layer where a fault acts, and nothing that counts or ticks, so that one
made again under apply can be compared with the one that the plan was made from.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from nodeagent.model.ranges import Range, Ranges, format_ranges

LayerKind = Literal[
    "disk", "partition", "dm", "loop", "md", "bcache", "drbd", "nbd", "rbd", "zram", "ram"
]
GuardKind = Literal["root", "swap", "protected-path", "claimed", "read-only", "mounted", "held"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class LoopBacking(_Frozen):
    """The file below a loop device (drivers/block/loop.c, sysfs `loop/`)."""

    path: str = Field(description="as the kernel names it; may end in ' (deleted)'")
    offset: int = Field(ge=0, description="bytes into the file")
    size_limit: int = Field(ge=0, description="bytes, 0 for none")
    direct_io: bool = False


class BlockLayer(_Frozen):
    """One block device of a stack. Sizes in 512-byte sectors, block sizes in bytes."""

    major: int = Field(ge=0)
    minor: int = Field(ge=0)
    name: str = Field(description="/dev path that an operator would use")
    kernel_name: str = Field(description="as in /sys/class/block")
    kind: LayerKind
    size_sectors: int = Field(ge=0)
    logical_block: int = Field(ge=512, description="smallest I/O that the device takes, bytes")
    physical_block: int = Field(ge=512, description="bytes")
    read_only: bool = False
    zoned: bool = Field(default=False, description="writes must be sequential within zones")
    diskseq: int | None = Field(
        default=None, description="differs for every disk that ever had this name (5.15)"
    )
    part_start: int = Field(default=0, ge=0, description="sectors into `disk`; partitions only")
    disk: str | None = Field(default=None, description="major:minor of a partition's disk")
    dm_name: str | None = None
    dm_uuid: str | None = None
    dm_suspended: bool = False
    table: tuple[str, ...] = Field(
        default=(), description="live table, keys of dm-crypt replaced by zeros"
    )
    loop: LoopBacking | None = None
    holders: tuple[str, ...] = Field(default=(), description="major:minor of devices above")
    slaves: tuple[str, ...] = Field(default=(), description="major:minor of devices below")
    mountpoints: tuple[str, ...] = ()
    swap: bool = Field(default=False, description="the device itself is swapped to")

    @property
    def dev(self) -> str:
        """`major:minor`, the key of a device; names may change, this does not while it lives."""
        return f"{self.major}:{self.minor}"


class LayerRanges(_Frozen):
    """The target's sectors as one device of the stack sees them."""

    layer: BlockLayer
    ranges: Ranges
    depth: int = Field(ge=0, description="0 is what the user named, 1 is below it")
    above: str | None = Field(default=None, description="major:minor of the layer above")


class DescentEnd(_Frozen):
    """Where the mapping stops, and why: the last device, or a target that is not one-to-one."""

    dev: str
    ranges: Ranges
    exact: bool = Field(description="true for the lowest device, false where more lies below")
    reason: str


class Extent(_Frozen):
    """A piece of a file. Bytes; `physical` is on the file system's device."""

    logical: int = Field(ge=0)
    physical: int = Field(ge=0)
    length: int = Field(gt=0)
    flags: tuple[str, ...] = ()


class SkippedPart(_Frozen):
    """Bytes of the asked file range that no readable sector holds."""

    offset: int
    length: int
    why: Literal["hole", "unwritten"]


class FileIdentity(_Frozen):
    """A regular file and the part of it that was asked for."""

    asked: str = Field(description="path as the user wrote it")
    path: str = Field(description="path after symbolic links and overlay layers")
    major: int
    minor: int
    inode: int
    generation: int | None = Field(default=None, description="FS_IOC_GETVERSION")
    size: int = Field(description="bytes, at the time of the mapping")
    mtime_ns: int
    ctime_ns: int
    offset: int = Field(ge=0, description="asked range, widened to logical blocks; bytes")
    length: int = Field(gt=0)
    fs_block: int = Field(description="bytes")
    extents: tuple[Extent, ...] = Field(description="clipped to the range")
    skipped: tuple[SkippedPart, ...] = ()
    via: tuple[str, ...] = Field(default=(), description="symbolic links and overlays followed")


class VolumeIdentity(_Frozen):
    """A mounted file system on one block device."""

    mount_point: str
    root: str = Field(description="directory of the file system that is mounted there")
    fs_type: str
    source: str
    major: int
    minor: int
    read_only: bool
    options: str = Field(default="", description="of the super block")
    more_devices: tuple[str, ...] = Field(default=(), description="journal or real-time device")


class BlockBinding(_Frozen):
    """A device, volume or file resolved to sectors on every layer of its block stack."""

    target: str = Field(description="as the user named it")
    layers: tuple[LayerRanges, ...] = Field(min_length=1, description="from the top down")
    ends: tuple[DescentEnd, ...]
    whole: bool = Field(default=False, description="the ranges are the whole top device")
    volume: VolumeIdentity | None = None
    file: FileIdentity | None = None
    notes: tuple[str, ...] = ()

    @property
    def top(self) -> BlockLayer:
        """The device that was named, or that the file system is on."""
        return self.layers[0].layer

    @property
    def ranges(self) -> Ranges:
        """The target's sectors on the top device."""
        return self.layers[0].ranges

    def at(self, dev: str) -> Ranges:
        """The target's sectors on the device `major:minor`. Raises KeyError."""
        for item in self.layers:
            if item.layer.dev == dev:
                return item.ranges
        raise KeyError(dev)


class Guard(_Frozen):
    """A reason to keep off a device or a range.

    `devices` are layers of the binding (major:minor): a fault on the whole of one of
    them reaches `what`. `hit` says that the bound sectors themselves belong to it;
    None when that could not be found out, which counts as yes.
    """

    kind: GuardKind
    what: str = Field(description="the mount point, path or swap area that is there")
    via: str = Field(description="how it hangs together, for a person")
    devices: tuple[str, ...]
    hit: bool | None = True


class SpaceMap(_Frozen):
    """What the file system keeps in sectors of its device; `unknown` counts as metadata."""

    file_data: Ranges = ()
    metadata: Ranges = ()
    free: Ranges = ()
    unknown: Ranges = ()
    partial: bool = Field(description="the walk met a limit: more file data may exist")
    files: int = Field(default=0, description="regular files that were mapped")
    notes: tuple[str, ...] = ()


class Residency(_Frozen):
    """Copies of a byte range in the page cache, before and after an eviction.

    Counts are pages within the asked range (rounded outward to pages). None: the
    kernel cannot say (cachestat is new in 6.5).
    """

    total_pages: int
    cached_before: int
    cached_after: int
    dirty: int | None = None
    writeback: int | None = None
    widened: tuple[int, int] = Field(description="offset and length that were dropped, bytes")
    mapped_by: tuple[int, ...] = Field(default=(), description="pids that map the file")
    scan_complete: bool = True
    method: Literal["cachestat", "mincore"]
    note: str = ""


_DEVICE_FIELDS = ("kind", "size_sectors", "logical_block", "read_only", "diskseq", "part_start",
                  "disk", "dm_name", "dm_uuid", "table", "loop")  # fmt: skip
_FILE_FIELDS = ("path", "major", "minor", "inode", "generation", "offset", "length", "extents")


def differences(planned: BlockBinding, now: BlockBinding) -> tuple[str, ...]:
    """What makes a plan stale, a line each; empty when `planned` still holds.

    Left out on purpose: mount points, holders, size and times of a file, which change
    under a live database without moving a sector of the range.
    """
    out: list[str] = []
    before = {item.layer.dev: item for item in planned.layers}
    after = {item.layer.dev: item for item in now.layers}
    if [i.layer.dev for i in planned.layers] != [i.layer.dev for i in now.layers]:
        out.append(f"the stack was {' > '.join(before)} and is {' > '.join(after)}")
    for dev in before.keys() & after.keys():
        out.extend(_layer_differences(before[dev], after[dev]))
    out.extend(_file_differences(planned.file, now.file))
    return tuple(sorted(out))


def _layer_differences(old: LayerRanges, new: LayerRanges) -> list[str]:
    name = old.layer.name
    out = [
        f"{name}: {field} was {getattr(old.layer, field)!r} and is {getattr(new.layer, field)!r}"
        for field in _DEVICE_FIELDS
        if getattr(old.layer, field) != getattr(new.layer, field)
    ]
    if old.ranges != new.ranges:
        was, now = format_ranges(old.ranges, 4), format_ranges(new.ranges, 4)
        out.append(f"{name}: sectors were {was} and are {now}")
    return out


def _file_differences(old: FileIdentity | None, new: FileIdentity | None) -> list[str]:
    if old is None or new is None:
        return [] if old is new else ["the target is a file in one binding only"]
    return [
        f"{old.path}: {field} changed"
        for field in _FILE_FIELDS
        if getattr(old, field) != getattr(new, field)
    ]


def whole_range(layer: BlockLayer) -> Ranges:
    """All sectors of a device; empty for a device of size 0."""
    return (Range(start=0, length=layer.size_sectors),) if layer.size_sectors else ()
