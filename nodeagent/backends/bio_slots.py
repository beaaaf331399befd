"""What the two block-layer programs share: slots, their sector indexes, their counters."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from nodeagent.backends.bpf_object import BpfObject, RingBuffer
from nodeagent.backends.libbpf import BPF_F_INNER_MAP, BpfMap, create_array
from nodeagent.crashpoint import crashpoint
from nodeagent.encode.bpf_maps import (
    MAX_SLOTS,
    STATS_SIZE,
    BioEvent,
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
    """Sectors of a whole disk (dev: dev_t as the kernel holds it)."""

    dev: int
    ranges: Ranges


def on_whole_disk(major: int, minor: int, ranges: tuple[Range, ...]) -> DiskRanges:
    """A partition's ranges as those of its disk; a disk's as they are.

    Raises OSError (ENOENT) when there is no such block device.
    """
    here = (SYS_DEV_BLOCK / f"{major}:{minor}").resolve(strict=True)
    if not (here / "partition").exists():
        return DiskRanges(kernel_dev(major, minor), ranges)
    start = int((here / "start").read_text())
    disk = (here.parent / "dev").read_text().strip()
    return DiskRanges(kernel_dev(*map(int, disk.split(":"))), shift(ranges, start))


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
        self._held: dict[int, tuple[int, BpfMap, int]] = {}
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

    def put(self, slot: int, dev: int, index: SectorIndex) -> None:
        """Give a slot its sectors (swapped as a whole) and let the disk's bios come to it.

        The disk's mask comes last, so that a bio never meets a half-set slot.
        """
        if slot not in self._held:
            self._stats.update(_key(slot), bytes(STATS_SIZE))
            self._missed_before[slot] = self._missed()
        fresh = create_array("fc_index", ENTRY, len(index), BPF_F_INNER_MAP)
        try:
            fresh.write_all(index.encode())
            self._indexes.update(_key(slot), _key(fresh.fd))
            crashpoint("bpf:index")
            self._mask(dev, 1 << slot, 0)
        except OSError:
            os.close(fresh.fd)
            raise
        old = self._held.get(slot)
        self._held[slot] = (dev, fresh, len(index))
        if old is not None:
            if old[0] != dev:
                self._mask(old[0], 0, 1 << slot)
            os.close(old[1].fd)

    def drop(self, slot: int) -> bool:
        """Free a slot: no bio comes to it any more. Whether it was in use."""
        if slot not in self._held:
            return False
        dev, index, _ = self._held[slot]
        self._mask(dev, 0, 1 << slot)
        crashpoint("bpf:unmask")
        self._indexes.delete(_key(slot))
        del self._held[slot]
        os.close(index.fd)
        return True

    def _mask(self, dev: int, set_bits: int, clear_bits: int) -> None:
        key = _key(dev)
        now = self._disks.lookup(key)
        mask = ((int.from_bytes(now, sys.byteorder) if now else 0) | set_bits) & ~clear_bits
        if mask:
            self._disks.update(key, mask.to_bytes(8, sys.byteorder))
        else:
            self._disks.delete(key)

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
