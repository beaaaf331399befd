"""Keys and values of the BPF maps, as bpf/faultctl.bpf.h lays them out. Pure.

All structures are in the machine's byte order and have no padding of their own. Devices
are whole disks, sectors are 512-byte units of the whole disk, times are CLOCK_BOOTTIME.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any

from nodeagent.encode.blk_status import op_word, status_errno
from nodeagent.model.evidence import IoRecord

MAX_SLOTS = 64
ALWAYS_PPM = 1_000_000

_EVENT = struct.Struct("=5Q7I4B16s32s")
_CLASS = struct.Struct("=8Q")
_STATS_TAIL = struct.Struct("=3Q")
_SLOT = struct.Struct("=IIQQII")
_HEALTH = struct.Struct("=3Q")
_DISK = struct.Struct("=QQ")
EVENT_SIZE = _EVENT.size
STATS_SIZE = 3 * _CLASS.size + _STATS_TAIL.size
SLOT_SIZE = _SLOT.size
HEALTH_SIZE = _HEALTH.size


class Submitter(IntEnum):
    """Who submitted a bio (enum fc_class). Only the workload's count as hits."""

    WORKLOAD = 0
    UDEV = 1
    EXCLUDED = 2


class Emit(IntFlag):
    """Which completed bios become events (fc_emit_mask in bpf/bio_trace.bpf.c)."""

    READ_OK = 1
    WRITE_OK = 2
    OTHER_OK = 4
    READ_FAILED = 8
    WRITE_FAILED = 16
    OTHER_FAILED = 32
    ANY_SUBMITTER = 64
    FAILED = READ_FAILED | WRITE_FAILED | OTHER_FAILED


class FailFlag(IntFlag):
    """What a slot of bio_fail does (fc_fail_slot.flags in bpf/bio_fail.bpf.c)."""

    READS = 1
    WRITES = 2
    HEAL = 4
    EVENTS = 8


FLAG_WORDS = (
    "sync",
    "meta",
    "fua",
    "preflush",
    "readahead",
    "background",
    "nowait",
    "swap",
)

_PATHS = {
    "direct": ("blkdev_bio_end_io", "iomap_dio_bio_end_io", "dio_bio_end_"),
    "buffered": (
        "mpage_",
        "iomap_read_",
        "iomap_writepage",
        "iomap_finish",
        "ext4_end_bio",
        "xfs_end_bio",
        "end_swap_bio",
    ),
    "buffer-head": ("end_bio_bh_io_sync",),
    "waited": ("submit_bio_wait_endio",),
    "stacked": ("clone_endio", "crypt_endio", "dm_bio_end"),
}


def io_path(end_io: str) -> str:
    """How the I/O was made, by its completion function; empty when that says nothing.

    `waited` is submit_bio_wait: a small O_DIRECT read of a block device, or the kernel's own.
    """
    for path, prefixes in _PATHS.items():
        if end_io.startswith(prefixes):
            return path
    return ""


def kernel_dev(major: int, minor: int) -> int:
    """dev_t as the kernel holds it (MKDEV, include/linux/kdev_t.h)."""
    if not (0 <= major < 1 << 12 and 0 <= minor < 1 << 20):
        raise ValueError(f"{major}:{minor} is not a device number")
    return major << 20 | minor


def dev_text(dev: int) -> str:
    """`major:minor` of a kernel dev_t."""
    return f"{dev >> 20}:{dev & 0xFFFFF}"


@dataclass(frozen=True)
class BioEvent:
    """One bio that touched a slot's sectors (struct fc_bio_event)."""

    ts_ns: int
    queued_ns: int
    sector: int
    cgroup_id: int
    blkcg_id: int
    nr_sectors: int
    dev: int
    part_dev: int
    tgid: int
    pid: int
    flags: int
    slot: int
    op: int
    direction: int
    status: int
    submitter: Submitter
    comm: str
    end_io: str

    def flag_words(self) -> tuple[str, ...]:
        """The REQ_ flags, and the path (`direct`, `buffered`, ...) where it is known."""
        words = [word for bit, word in enumerate(FLAG_WORDS) if self.flags >> bit & 1]
        path = io_path(self.end_io)
        return (*words, path) if path else tuple(words)

    def record(self, kernel: tuple[int, int] = (6, 12)) -> IoRecord:
        """The evidence record of this bio."""
        return IoRecord(
            boottime_ns=self.ts_ns,
            device=dev_text(self.dev),
            sector=self.sector,
            sectors=self.nr_sectors,
            op=op_word(self.op),
            flags=self.flag_words(),
            status=status_errno(self.status, kernel),
            pid=self.tgid,
            comm=self.comm,
        )


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")


def unpack_event(data: bytes) -> BioEvent:
    """An event from the ring buffer. Raises ValueError on a wrong size."""
    if len(data) != EVENT_SIZE:
        raise ValueError(f"a bio event has {EVENT_SIZE} bytes, not {len(data)}")
    *numbers, submitter, comm, end_io = _EVENT.unpack(data)
    fields: list[Any] = [*numbers, Submitter(submitter), _text(comm), _text(end_io)]
    return BioEvent(*fields)


@dataclass(frozen=True)
class Counts:
    """Bios of one kind of submitter. Times are 0 when none failed."""

    reads_ok: int = 0
    writes_ok: int = 0
    others_ok: int = 0
    reads_failed: int = 0
    writes_failed: int = 0
    others_failed: int = 0
    first_failed_ns: int = 0
    last_failed_ns: int = 0

    @property
    def failed(self) -> int:
        """All failed bios."""
        return self.reads_failed + self.writes_failed + self.others_failed


@dataclass(frozen=True)
class SlotStats:
    """Counters of one slot (struct fc_stats)."""

    workload: Counts = Counts()
    udev: Counts = Counts()
    excluded: Counts = Counts()
    healed_sectors: int = 0
    draws: int = 0
    lost_events: int = 0
    missed: int = 0
    """Bios that passed unseen meanwhile, of whatever disk: not of the slot's own counters."""


def unpack_stats(data: bytes) -> SlotStats:
    """Counters of a slot. Raises ValueError on a wrong size."""
    if len(data) != STATS_SIZE:
        raise ValueError(f"slot statistics have {STATS_SIZE} bytes, not {len(data)}")
    workload, udev, excluded = (
        Counts(*_CLASS.unpack_from(data, n * _CLASS.size)) for n in range(3)
    )
    tail = _STATS_TAIL.unpack_from(data, 3 * _CLASS.size)
    return SlotStats(workload, udev, excluded, *tail)


@dataclass(frozen=True)
class FailSlot:
    """What one slot of bio_fail does (struct fc_fail_slot).

    rate_ppm: share of the matching bios that fail, in millionths, 1 to 1,000,000.
    cgroup_id: only bios from below this v2 cgroup, 0 for all; cgroup_level: its depth, the
    root is 0.
    """

    flags: FailFlag
    rate_ppm: int = ALWAYS_PPM
    seed: int = 0
    cgroup_id: int = 0
    cgroup_level: int = 0

    def pack(self) -> bytes:
        """The map's value. Raises ValueError for a rate out of range."""
        if not 0 < self.rate_ppm <= ALWAYS_PPM:
            raise ValueError(f"a rate of {self.rate_ppm} ppm is not in 1..{ALWAYS_PPM}")
        seed = self.seed & (1 << 64) - 1
        return _SLOT.pack(self.flags, self.rate_ppm, seed, self.cgroup_id, self.cgroup_level, 0)


@dataclass(frozen=True)
class DiskSlots:
    """Slots of one whole disk, as a mask (struct fc_disk).

    diskseq: differs for every disk that ever had the number; 0 when it is not known.
    """

    slots: int = 0
    diskseq: int = 0

    def pack(self) -> bytes:
        """The map's value."""
        return _DISK.pack(self.slots, self.diskseq)

    @classmethod
    def unpack(cls, data: bytes) -> DiskSlots:
        """Raises struct.error on a wrong size."""
        return cls(*_DISK.unpack(data))

    def joined(self, slot: int, diskseq: int) -> DiskSlots:
        """With one slot more. The others' disk is gone when this is another one."""
        return DiskSlots((self.slots if diskseq == self.diskseq else 0) | 1 << slot, diskseq)

    def without(self, slot: int) -> DiskSlots:
        """With one slot less."""
        return DiskSlots(self.slots & ~(1 << slot), self.diskseq)


@dataclass(frozen=True)
class TraceHealth:
    """Bios that the tracer could not follow (struct fc_health)."""

    inflight_full: int = 0
    mismatched: int = 0
    cut_short: int = 0


def unpack_health(data: bytes) -> TraceHealth:
    """Raises struct.error on a wrong size."""
    return TraceHealth(*_HEALTH.unpack(data))
