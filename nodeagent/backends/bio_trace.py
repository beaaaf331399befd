"""Evidence from the block layer: watches on sectors, their counters and events.

One BioTracer serves the whole agent. Its programs (bpf/bio_trace.bpf.c) stay loaded and
are attached only while there is a watch; everything ends with this process.
"""

from __future__ import annotations

import os
import platform
import struct
import threading
from collections.abc import Sequence
from pathlib import Path

from nodeagent.backends.bio_slots import BioSlots, on_whole_disk
from nodeagent.backends.bpf_object import BpfLink, BpfObject
from nodeagent.encode.bpf_maps import (
    HEALTH_SIZE,
    BioEvent,
    Emit,
    SlotStats,
    TraceHealth,
    unpack_health,
)
from nodeagent.encode.sector_index import build_index
from nodeagent.model.ranges import Range

# Ends first: no bio may be remembered whose end is not seen.
_PROGRAMS = ("fc_bio_complete", "fc_rq_complete", "fc_bio_split", "fc_bio_queue")


def kernel_release() -> tuple[int, int]:
    """(major, minor) of the running kernel."""
    major, minor = platform.release().split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)


class BioTracer:
    """Counts and reports bios of watched sectors. All methods are safe from any thread.

    Raises Refused where the node cannot (no libbpf1, no BTF, no rights, object not built).
    """

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._object = BpfObject("bio_trace", path)
        self._object.load()
        self._slots = BioSlots(self._object, self._unseen)
        self._emit = self._object.map("fc_emit_mask")
        self._inflight = self._object.map("fc_inflight_bios")
        self._globals = self._object.map(".bss")  # fc_following
        self._health = self._object.map("fc_trace_health")
        self._links: list[BpfLink] = []
        self._slots.exclude(os.getpid())

    def add_watch(
        self, major: int, minor: int, ranges: Sequence[Range], emit: Emit = Emit.FAILED
    ) -> int:
        """Watch sectors of a disk, dm device or partition (relative to it); gives a watch id.

        emit: which completions become events; all are counted. Takes effect before it
        returns. Raises Refused when 64 watches are there, OSError for a device that is not.
        """
        on_disk = on_whole_disk(major, minor, tuple(ranges))
        index = build_index(on_disk.ranges, long_sectors=0)
        with self._lock:
            watch = self._slots.free_slot()
            self._emit.update(struct.pack("=I", watch), struct.pack("=I", emit))
            self._slots.put(watch, on_disk, index)
            try:
                self._attach()
            except BaseException:
                self._slots.drop(watch)
                raise
            return watch

    def change_watch(self, watch: int, major: int, minor: int, ranges: Sequence[Range]) -> None:
        """Give a watch other sectors; its counters go on. Raises KeyError for an unknown one."""
        on_disk = on_whole_disk(major, minor, tuple(ranges))
        index = build_index(on_disk.ranges, long_sectors=0)
        with self._lock:
            if watch not in self._slots.held():
                raise KeyError(watch)
            self._slots.put(watch, on_disk, index)

    def set_emit(self, watch: int, emit: Emit) -> None:
        """Change which completions of a watch become events. Raises KeyError if unknown."""
        with self._lock:
            if watch not in self._slots.held():
                raise KeyError(watch)
            self._emit.update(struct.pack("=I", watch), struct.pack("=I", emit))

    def remove_watch(self, watch: int) -> SlotStats:
        """End a watch; its last counters. Raises KeyError for an unknown one.

        Bios under way at this moment are not counted any more.
        """
        with self._lock:
            if watch not in self._slots.held():
                raise KeyError(watch)
            self._slots.drop(watch)
            if not self._slots.held():
                self._detach()
            return self._slots.stats(watch)

    def watches(self) -> tuple[int, ...]:
        """Ids of the watches."""
        with self._lock:
            return self._slots.held()

    def stats(self, watch: int) -> SlotStats:
        """Counters of a watch. Raises KeyError for an unknown one."""
        with self._lock:
            if watch not in self._slots.held():
                raise KeyError(watch)
            return self._slots.stats(watch)

    def exclude(self, tgid: int, on: bool = True) -> None:
        """Count a process' bios apart: the agent itself is from the start."""
        self._slots.exclude(tgid, on)

    def fileno(self) -> int:
        """Readable when there are events: wait on it, do not poll."""
        return self._slots.fileno()

    def events(self) -> list[BioEvent]:
        """Events that are there now; does not wait. BioEvent.slot is the watch id."""
        with self._lock:
            return self._slots.events()

    def health(self) -> TraceHealth:
        """Watched bios that could not be followed, which no counter holds."""
        value = self._health.lookup(struct.pack("=I", 0))
        return unpack_health(value or bytes(HEALTH_SIZE))

    def _unseen(self) -> int:
        """All bios that no counter holds."""
        lost = self.health()
        return self.recursion_misses() + lost.inflight_full + lost.mismatched + lost.cut_short

    def recursion_misses(self) -> int:
        """Bios missed because the program was active on that CPU already."""
        return sum(self._object.recursion_misses(name) for name in _PROGRAMS)

    def close(self) -> None:
        """Detach and unload; harmless when done already."""
        with self._lock:
            self._detach()
            self._slots.close()
            self._object.close()

    def _attach(self) -> None:
        if self._links:
            return
        for key in list(self._inflight.keys()):
            self._inflight.delete(key)
        self._globals.update(struct.pack("=I", 0), bytes(self._globals.value_size))
        try:
            for name in _PROGRAMS:
                self._links.append(self._object.attach(name))
        except BaseException:
            self._detach()
            raise

    def _detach(self) -> None:
        while self._links:
            self._links.pop().close()
