"""Sectors of a live disk that fail, by BPF on should_fail_bio (block/blk-core.c).

One BioFailer serves the whole agent, each fault has a slot. The program
(bpf/bio_fail.bpf.c) stays loaded and is attached only while a slot is armed; all faults end
with this process, whatever ends it.
"""

from __future__ import annotations

import os
import struct
import threading
from dataclasses import dataclass
from pathlib import Path

from nodeagent.backends.bio_slots import BioSlots, on_whole_disk
from nodeagent.backends.bpf_object import BTF_VMLINUX, BpfLink, BpfObject
from nodeagent.backends.libbpf import VerifierRejected
from nodeagent.crashpoint import crashpoint
from nodeagent.encode.bpf_maps import (
    ALWAYS_PPM,
    BioEvent,
    FailFlag,
    FailSlot,
    SlotStats,
)
from nodeagent.encode.btf import enumerator
from nodeagent.encode.sector_index import LONG_SECTORS, SectorIndex, build_index
from nodeagent.model.errors import FaultError, InvalidSpec, Refused
from nodeagent.model.process import CgroupScope
from nodeagent.model.ranges import MAX_SECTOR, Ranges

_PROGRAM = "fc_should_fail_bio"


@dataclass(frozen=True)
class FailSpec:
    """Which bios of a disk fail.

    major, minor: a disk, dm device or partition; ranges: sectors relative to it.
    reads, writes: what fails. heal: a write makes the sectors good that it covers; not with
    writes. rate_ppm: share of the matching bios that fail, in millionths; the draws depend
    on the seed alone. scope: only bios of tasks in this cgroup, or charged to it.
    events: report each failed and each healing bio.
    """

    major: int
    minor: int
    ranges: Ranges
    reads: bool = True
    writes: bool = False
    heal: bool = False
    rate_ppm: int = ALWAYS_PPM
    seed: int = 0
    scope: CgroupScope | None = None
    events: bool = True

    def slot(self) -> FailSlot:
        """The program's parameters. Raises InvalidSpec for what excludes itself."""
        if not self.ranges or not (self.reads or self.writes):
            raise InvalidSpec("nothing would fail", "no sectors, or neither reads nor writes")
        if self.heal and self.writes:
            raise InvalidSpec(
                "a write that fails cannot heal", "heal and writes exclude each other"
            )
        flags = FailFlag(0)
        for flag, on in (
            (FailFlag.READS, self.reads),
            (FailFlag.WRITES, self.writes),
            (FailFlag.HEAL, self.heal),
            (FailFlag.EVENTS, self.events),
        ):
            flags |= flag if on else FailFlag(0)
        scope = (self.scope.id, self.scope.level) if self.scope else (0, 0)
        try:
            slot = FailSlot(flags, self.rate_ppm, self.seed, *scope)
            slot.pack()
        except ValueError as exc:
            raise InvalidSpec("the rate is out of range", str(exc)) from exc
        return slot

    def index(self, ranges: Ranges) -> SectorIndex:
        """Their index; where writes heal, all of it in bits. Raises InvalidSpec."""
        return build_index(ranges, MAX_SECTOR if self.heal else LONG_SECTORS)


def _remapped_mask() -> bytes:
    """1 << BIO_REMAPPED of this kernel. Raises Refused."""
    bit = enumerator(BTF_VMLINUX.read_bytes(), "BIO_REMAPPED")
    if bit is None or not 0 <= bit < 16:
        raise Refused(
            "sectors cannot be failed by BPF", "this kernel's BTF has no BIO_REMAPPED", ""
        )
    return struct.pack("=I", 1 << bit)


class BioFailer:
    """Fails bios of chosen sectors. All methods are safe from any thread.

    Raises Refused where the node cannot: no libbpf1, no BTF, no rights, object not built,
    no error-injection point.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._object = BpfObject("bio_fail", path)
        self._object.preset(".rodata.fc", _remapped_mask())
        try:
            self._object.load()
        except VerifierRejected as exc:
            self._object.close()
            raise _no_injection_point(exc) from exc
        self._slots = BioSlots(self._object, self.recursion_misses)
        self._params = self._object.map("fc_fail_slots")
        self._link: BpfLink | None = None
        self._slots.exclude(os.getpid())

    def arm(self, spec: FailSpec) -> int:
        """Let the sectors fail from now on; gives the slot. Takes effect before it returns.

        Raises InvalidSpec, Refused (no slot free), OSError (no such device).
        """
        slot_value, on_disk = spec.slot(), on_whole_disk(spec.major, spec.minor, spec.ranges)
        index = spec.index(on_disk.ranges)
        with self._lock:
            slot = self._slots.free_slot()
            self._params.update(struct.pack("=I", slot), slot_value.pack())
            self._slots.put(slot, on_disk, index)
            try:
                crashpoint("bpf:slot")
                if self._link is None:
                    self._link = self._object.attach(_PROGRAM)
            except BaseException:
                self._slots.drop(slot)
                raise
            return slot

    def disarm(self, slot: int) -> SlotStats:
        """End a fault; its last counters. Raises KeyError when the slot is not armed."""
        with self._lock:
            if not self._slots.drop(slot):
                raise KeyError(slot)
            if not self._slots.held() and self._link is not None:
                self._link.close()
                self._link = None
            return self._slots.stats(slot)

    def armed(self) -> tuple[int, ...]:
        """Slots that the kernel holds with a disk's bios coming to them."""
        with self._lock:
            return self._slots.held() if self._link is not None else ()

    def still_bad(self, slot: int) -> Ranges:
        """Sectors of the whole disk that still fail, read back from the kernel.

        Raises KeyError when the slot is not armed.
        """
        with self._lock:
            return self._slots.index(slot).ranges()

    def stats(self, slot: int) -> SlotStats:
        """Counters of an armed slot. `ok` counts writes that healed. Raises KeyError."""
        with self._lock:
            if slot not in self._slots.held():
                raise KeyError(slot)
            return self._slots.stats(slot)

    def exclude(self, tgid: int, on: bool = True) -> None:
        """Count a process' bios apart; they fail all the same. The agent is from the start."""
        self._slots.exclude(tgid, on)

    def fileno(self) -> int:
        """Readable when there are events: wait on it, do not poll."""
        return self._slots.fileno()

    def events(self) -> list[BioEvent]:
        """Events that are there now; does not wait. A healing write has status 0."""
        with self._lock:
            return self._slots.events()

    def recursion_misses(self) -> int:
        """Bios that passed unseen because the program was active on that CPU already."""
        return self._object.recursion_misses(_PROGRAM)

    def close(self) -> None:
        """Disarm all and unload; harmless when done already."""
        with self._lock:
            if self._link is not None:
                self._link.close()
                self._link = None
            self._slots.close()
            self._object.close()


def _no_injection_point(exc: VerifierRejected) -> FaultError:
    if "should_fail_bio" in exc.log and (
        "not modifiable" in exc.log or "failed to find kernel BTF type" in exc.log
    ):
        return Refused(
            "sectors cannot be failed by BPF on this kernel",
            "should_fail_bio is no error-injection point here (CONFIG_FUNCTION_ERROR_INJECTION)",
            "a device-mapper rung serves a prepared volume: faultctl volume prepare",
        )
    return exc
