"""What the two block-layer programs share: slots, their sector indexes, their counters."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from nodeagent.backends.bpf_object import BpfObject, RingBuffer
from nodeagent.backends.libbpf import BPF_F_INNER_MAP, BpfMap, create_array
from nodeagent.bind.node import read_int
from nodeagent.crashpoint import crashpoint
from nodeagent.encode.bpf_maps import (
    MAX_SLOTS,
    STATS_SIZE,
    BioEvent,
    DiskSlots,
    SlotStats,
    kernel_dev,
    unpack_event,
    unpack_stats,
)
from nodeagent.encode.sector_index import ENTRY, SectorIndex, decode_index
from nodeagent.model.errors import Refused
from nodeagent.model.ranges import Range, Ranges, shift

SYS_DEV_BLOCK = Path("/sys/dev/block")
_PRESENT = struct.pack("=B", 1)


@dataclass(frozen=True)
class DiskRanges:
    """Sectors of a whole disk.

    dev: dev_t as the kernel holds it; diskseq: differs for every disk that ever had that number,
    0 when the kernel does not tell (Documentation/ABI/stable/sysfs-block).
    """

    dev: int
    ranges: Ranges
    diskseq: int = 0


def on_whole_disk(major: int, minor: int, ranges: tuple[Range, ...]) -> DiskRanges:
    """A partition's ranges as those of its disk; a disk's as they are.

    Raises OSError (ENOENT) when there is no such block device.
    """
    here = (SYS_DEV_BLOCK / f"{major}:{minor}").resolve(strict=True)
    disk = here.parent if (here / "partition").exists() else here
    seq = read_int(disk / "diskseq")
    if disk == here:
        return DiskRanges(kernel_dev(major, minor), ranges, seq)
    start = int((here / "start").read_text())
    number = (disk / "dev").read_text().strip()
    return DiskRanges(kernel_dev(*map(int, number.split(":"))), shift(ranges, start), seq)


def _key(number: int) -> bytes:
    return struct.pack("=I", number)


class BioSlots:
    """The maps that bio_trace and bio_fail have in common. Methods raise OSError."""

    def __init__(self, loaded: BpfObject, missed: Callable[[], int]) -> None:
        """missed: how many bios passed unseen since the object was loaded."""
        self._missed = missed
        self._missed_before: dict[int, int] = {}
        self._indexes = loaded.map("fc_indexes")
        self._disks = loaded.map("fc_disks")
        self._stats = loaded.map("fc_slot_stats")
        self._excluded = loaded.map("fc_excluded")
        self._ring = RingBuffer(loaded.map("fc_events"))
        self._held: dict[int, tuple[DiskRanges, BpfMap, int]] = {}
        self._latest = MAX_SLOTS - 1

    def free_slot(self) -> int:
        """A slot that is not in use, the one left longest. Raises Refused when all are.

        Not the lowest: a bio still under way for an ended watch counts in its old slot.
        """
        for offset in range(1, MAX_SLOTS + 1):
            slot = (self._latest + offset) % MAX_SLOTS
            if slot not in self._held:
                self._latest = slot
                return slot
        raise Refused(
            "no slot is free in the block-layer program",
            f"{MAX_SLOTS} faults or watches are armed on this node",
            "revert one first: faultctl ls",
        )

    def held(self) -> tuple[int, ...]:
        """Slots in use."""
        return tuple(sorted(self._held))

    def put(self, slot: int, disk: DiskRanges, index: SectorIndex) -> None:
        """Give a slot its sectors (swapped as a whole) and let the disk's bios come to it.

        The disk's mask comes last, so that a bio never meets a half-set slot. Of a disk that is
        gone, and whose number another one has, no bio comes any more.
        """
        if slot not in self._held:
            self._stats.update(_key(slot), bytes(STATS_SIZE))
            self._missed_before[slot] = self._missed()
        fresh = create_array("fc_index", ENTRY, len(index), BPF_F_INNER_MAP)
        try:
            fresh.write_all(index.encode())
            self._indexes.update(_key(slot), _key(fresh.fd))
            crashpoint("bpf:index")
            self._join(disk, slot)
        except OSError:
            os.close(fresh.fd)
            raise
        old = self._held.get(slot)
        self._held[slot] = (disk, fresh, len(index))
        if old is not None:
            if old[0].dev != disk.dev:
                self._leave(old[0], slot)
            os.close(old[1].fd)

    def drop(self, slot: int) -> bool:
        """Free a slot: no bio comes to it any more. Whether it was in use."""
        if slot not in self._held:
            return False
        disk, index, _ = self._held[slot]
        self._leave(disk, slot)
        crashpoint("bpf:unmask")
        self._indexes.delete(_key(slot))
        del self._held[slot]
        os.close(index.fd)
        return True

    def _of(self, disk: DiskRanges) -> DiskSlots:
        now = self._disks.lookup(_key(disk.dev))
        return DiskSlots.unpack(now) if now else DiskSlots()

    def _join(self, disk: DiskRanges, slot: int) -> None:
        joined = self._of(disk).joined(slot, disk.diskseq)
        self._disks.update(_key(disk.dev), joined.pack())

    def _leave(self, disk: DiskRanges, slot: int) -> None:
        left = self._of(disk).without(slot)
        if left.slots:
            self._disks.update(_key(disk.dev), left.pack())
        else:
            self._disks.delete(_key(disk.dev))

    def index(self, slot: int) -> SectorIndex:
        """What the kernel holds for a slot now (bits that writes cleared are gone).

        Raises KeyError when the slot is not in use.
        """
        _, index, entries = self._held[slot]
        return decode_index(index.read_all(entries))

    def stats(self, slot: int) -> SlotStats:
        """Counters since the slot was first put."""
        found = unpack_stats(self._stats.lookup(_key(slot)) or bytes(STATS_SIZE))
        return replace(found, missed=self._missed() - self._missed_before[slot])

    def exclude(self, tgid: int, on: bool = True) -> None:
        """Count a process' bios apart (or no longer), since they are not the workload's."""
        if on:
            self._excluded.update(_key(tgid), _PRESENT)
        else:
            self._excluded.delete(_key(tgid))

    def fileno(self) -> int:
        """Readable when there are events."""
        return self._ring.fileno()

    def events(self) -> list[BioEvent]:
        """Events that are there now; does not wait."""
        return [unpack_event(sample) for sample in self._ring.consume()]

    def close(self) -> None:
        """Free all slots and the ring buffer."""
        for slot in self.held():
            self.drop(slot)
        self._ring.close()
