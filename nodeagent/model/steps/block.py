"""Steps on block devices: device-mapper tables, BPF on bios, the page cache above them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from nodeagent.model.process import CgroupScope
from nodeagent.model.ranges import Ranges, format_ranges, overlaps
from nodeagent.model.steps.base import StepBase


class ErrorSegment(BaseModel):
    """dm-error: every read and write fails with EIO, at once."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    target: Literal["error"] = "error"


class SplitDelaySegment(BaseModel):
    """dm-delay with split devices: one direction goes to a private dm-error device after
    `delay_ms`. Flushes pass in either case."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    target: Literal["split-delay"] = "split-delay"
    error_device: str = Field(description="name of the private dm-error device")
    delay_ms: int = Field(ge=0, le=600_000)
    fails: Literal["read", "write"] = "read"


class DustSegment(BaseModel):
    """dm-dust: listed blocks fail on read; a write heals a block."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    target: Literal["dust"] = "dust"
    block_size: int = Field(ge=512, description="bytes, a power of two")
    bad: Ranges = Field(description="sectors that fail on read until they are written")


class CorruptByte(BaseModel):
    """dm-flakey's corrupt_bio_byte: one byte of every matching bio is overwritten."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    nth: int = Field(ge=1, description="position in the bio, from 1")
    direction: Literal["r", "w"]
    value: int = Field(ge=0, le=255)


class FlakeySegment(BaseModel):
    """dm-flakey: `up_s` seconds of normal work, then `down_s` seconds of the features.

    Without any feature all I/O fails while it is down.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    target: Literal["flakey"] = "flakey"
    up_s: int = Field(ge=0)
    down_s: int = Field(ge=0)
    error_reads: bool = False
    error_writes: bool = False
    drop_writes: bool = False
    corrupt: CorruptByte | None = None
    random_read: int = Field(default=0, ge=0, le=1_000_000_000, description="of 1e9 bios")
    random_write: int = Field(default=0, ge=0, le=1_000_000_000, description="of 1e9 bios")


class DelaySegment(BaseModel):
    """dm-delay: reads, writes and flushes late by so many milliseconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    target: Literal["delay"] = "delay"
    read_ms: int = Field(ge=0)
    write_ms: int = Field(ge=0)
    flush_ms: int = Field(ge=0)


SegmentKind = Annotated[
    ErrorSegment | SplitDelaySegment | DustSegment | FlakeySegment | DelaySegment,
    Field(discriminator="target"),
]


class DmCreate(StepBase):
    """Create a private device-mapper device that nothing else uses."""

    op: Literal["dm_create"] = "dm_create"
    name: str
    uuid: str
    table: tuple[str, ...]

    def key(self) -> str:
        return f"dm-name:{self.name}"

    def summary(self) -> str:
        return f"dmsetup create {self.name} --table {'; '.join(self.table)!r}"


class DmOverlay(StepBase):
    """Replace parts of a live device-mapper table; the rest keeps its mapping.

    Several faults may overlay one device as long as their parts do not overlap: the
    live table is always the base table with all overlays of the journal on it.
    """

    composes: ClassVar[bool] = True

    op: Literal["dm_overlay"] = "dm_overlay"
    major: int
    minor: int
    name: str
    size: int = Field(gt=0, description="size of the device in sectors when it was planned")
    ranges: Ranges
    segment: SegmentKind

    def key(self) -> str:
        return f"block:{self.major}:{self.minor}"

    def summary(self) -> str:
        return (
            f"dmsetup load {self.name} (sectors {format_ranges(self.ranges, 4)} become "
            f"{self.segment.target}); "
            f"dmsetup resume --nolockfs --noflush {self.name}"
        )

    def overlaps(self, other: StepBase) -> bool:
        return isinstance(other, DmOverlay) and overlaps(self.ranges, other.ranges)


class BioFail(StepBase):
    """Fail bios on a block device by a BPF program on should_fail_bio (block/blk-core.c)."""

    ephemeral: ClassVar[bool] = True
    composes: ClassVar[bool] = True

    op: Literal["bio_fail"] = "bio_fail"
    major: int = Field(description="of the whole disk")
    minor: int
    name: str
    ranges: Ranges
    reads: bool = True
    writes: bool = False
    heal: bool = Field(default=False, description="a write clears the sectors that it covers")
    only: CgroupScope | None = Field(default=None, description="whose I/O; None: everybody's")

    def key(self) -> str:
        return f"bio-fail:{self.major}:{self.minor}"

    def summary(self) -> str:
        what = " and ".join(w for w, on in (("reads", self.reads), ("writes", self.writes)) if on)
        return (
            f"BPF fmod_ret/should_fail_bio: {what} of {len(self.ranges)} range(s) "
            f"of {self.name} return EIO" + (f" to cgroup {self.only.path}" if self.only else "")
        )

    def overlaps(self, other: StepBase) -> bool:
        return isinstance(other, BioFail) and overlaps(self.ranges, other.ranges)


WatchOp = Literal["failed", "reads", "writes"]


class BioWatch(StepBase):
    """Count and record bios of some sectors by tracing block_bio_queue and block_bio_complete.

    All are counted. `emit`: which become records: any that failed, reads and writes that
    went well. `sample`: with so many records, only counting goes on, and of those only
    the first is told to the fault's own rules; 0 for no such end.
    """

    ephemeral: ClassVar[bool] = True
    composes: ClassVar[bool] = True
    observes: ClassVar[bool] = True

    op: Literal["bio_watch"] = "bio_watch"
    major: int
    minor: int
    name: str
    ranges: Ranges
    emit: tuple[WatchOp, ...] = ("failed", "writes")
    sample: int = Field(default=0, ge=0)

    def key(self) -> str:
        return f"bio-watch:{self.major}:{self.minor}"

    def summary(self) -> str:
        return f"BPF tp_btf/block_bio_complete: watch {len(self.ranges)} range(s) of {self.name}"

    def overlaps(self, other: StepBase) -> bool:
        return False


class ReadCheck(StepBase):
    """Read some sectors with O_DIRECT and see that it ends as the fault promises.

    `at_least_ms`: the read takes so long. `byte`: what the nth byte of it is, from 1.
    `differs`: two reads of them are not the same.
    """

    ephemeral: ClassVar[bool] = True
    composes: ClassVar[bool] = True
    observes: ClassVar[bool] = True

    op: Literal["read_check"] = "read_check"
    major: int
    minor: int
    name: str
    sector: int = Field(ge=0)
    sectors: int = Field(gt=0)
    fails: bool = True
    at_least_ms: int = Field(default=0, ge=0)
    byte: tuple[int, int] | None = None
    differs: bool = False

    def key(self) -> str:
        return f"read-check:{self.major}:{self.minor}"

    def summary(self) -> str:
        size = self.sectors * 512
        ends = "fails with EIO" if self.fails else "reads well"
        if self.at_least_ms:
            ends = f"takes {self.at_least_ms} ms or more"
        elif self.byte is not None:
            ends = f"byte {self.byte[0]} is {self.byte[1]}"
        elif self.differs:
            ends = "reads differ"
        return (
            f"dd if={self.name} iflag=direct,skip_bytes skip={self.sector * 512} bs={size} "
            f"count=1: {ends}"
        )

    def overlaps(self, other: StepBase) -> bool:
        return False


class FileWatch(StepBase):
    """Tell when a file no longer lies on the sectors that it was mapped to (inotify, FIEMAP)."""

    ephemeral: ClassVar[bool] = True
    composes: ClassVar[bool] = True
    observes: ClassVar[bool] = True

    op: Literal["file_watch"] = "file_watch"
    path: str
    inode: int
    extents: tuple[tuple[int, int, int], ...] = Field(
        description="(offset in the file, offset on its device, length) in bytes"
    )

    def key(self) -> str:
        return f"file-watch:{self.path}"

    def summary(self) -> str:
        return f"inotify on {self.path}: the fault ends when the file leaves these sectors"

    def overlaps(self, other: StepBase) -> bool:
        return False


class CacheDrop(StepBase):
    """Write a file's byte ranges back and drop them from the page cache, and only them."""

    composes: ClassVar[bool] = True
    observes: ClassVar[bool] = True

    op: Literal["cache_drop"] = "cache_drop"
    path: str
    ranges: tuple[tuple[int, int], ...] = Field(description="(offset, length) in bytes")

    def key(self) -> str:
        return f"pagecache:{self.path}"

    def summary(self) -> str:
        total = sum(length for _, length in self.ranges)
        return f"fsync, then posix_fadvise(DONTNEED) on {total} bytes of {self.path}"

    def overlaps(self, other: StepBase) -> bool:
        return False
