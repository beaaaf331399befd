"""Steps on bios by BPF: watches, and sectors that fail; their hits, records, log lines.

One program of each serves the agent; it is loaded with the first step, and a thread waits
on its ring buffer, so that nothing wakes up while nothing is hit.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from select import epoll
from typing import Any, Protocol

from nodeagent.backends import Outcome, Peer, Prior, Runtime
from nodeagent.backends.bio_fail import BioFailer, FailSpec
from nodeagent.backends.bio_trace import BioTracer, kernel_release
from nodeagent.encode.bpf_maps import BioEvent, Counts, Emit, SlotStats
from nodeagent.kmsg import MAX_LINES, KernelLog, about_device
from nodeagent.model.evidence import IoRecord, NodeEvent
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.block import BioFail, BioWatch

MAX_RECORDS = 64
FIRST_RECORDS = 16

OnEvent = Callable[[str, NodeEvent], None]
BioStep = BioWatch | BioFail


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backends of this module."""
    return {
        BioWatch: BioWatchBackend(runtime.on_event),
        BioFail: BioFailBackend(runtime.on_event),
    }


@dataclass
class Seen:
    """What came of one watch: the first records and the latest ones."""

    first: list[IoRecord] = field(default_factory=list)
    latest: deque[IoRecord] = field(
        default_factory=lambda: deque(maxlen=MAX_RECORDS - FIRST_RECORDS)
    )
    log: list[str] = field(default_factory=list)
    count: int = 0
    took: dict[str, list[int]] = field(default_factory=dict)
    """Of each operation that went well: how many, and the least and the most nanoseconds."""

    def add(self, record: IoRecord, took_ns: int) -> None:
        """Keep a record, if it is among the first or the latest."""
        self.count += 1
        if not record.status and record.sectors:
            seen = self.took.setdefault(record.op, [0, took_ns, took_ns])
            seen[:] = seen[0] + 1, min(seen[1], took_ns), max(seen[2], took_ns)
        if len(self.first) < FIRST_RECORDS:
            self.first.append(record)
        else:
            self.latest.append(record)

    def records(self) -> list[dict[str, Any]]:
        """All kept records as data."""
        return [r.model_dump(mode="json") for r in (*self.first, *self.latest)]


def counters(stats: SlotStats) -> dict[str, int]:
    """Counters of a slot by name; only non-zero ones of udev and the agent itself."""
    found = _counts("", stats.workload)
    for prefix, counts in (("udev_", stats.udev), ("agent_", stats.excluded)):
        total = counts.reads_failed + counts.writes_failed
        if total:
            found[f"{prefix}hits"] = total
    return found


def _counts(prefix: str, counts: Counts) -> dict[str, int]:
    return {
        f"{prefix}reads_ok": counts.reads_ok,
        f"{prefix}reads_failed": counts.reads_failed,
        f"{prefix}writes_ok": counts.writes_ok,
        f"{prefix}writes_failed": counts.writes_failed,
    }


def times(stats: SlotStats) -> dict[str, int]:
    """First and last time of a hit, CLOCK_BOOTTIME in nanoseconds, where there was one."""
    found = {"first_ns": stats.workload.first_failed_ns, "last_ns": stats.workload.last_failed_ns}
    return {name: value for name, value in found.items() if value}


class EventLoop:
    """One thread that waits on a ring buffer's descriptor and hands its events on."""

    def __init__(self, name: str, source: Any, handle: Callable[[BioEvent], None]) -> None:
        self._source = source
        self._handle = handle
        self._poll = epoll()
        self._poll.register(source.fileno())
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._poll.poll()
            for event in self._source.events():
                self._handle(event)


class Source(Protocol):
    """What BioTracer and BioFailer have in common."""

    def stats(self, slot: int) -> SlotStats: ...
    def fileno(self) -> int: ...
    def events(self) -> list[BioEvent]: ...


class BioBackend(ABC):
    """Steps that hold one slot each of a block-layer program, and what came of them.

    The program is loaded with the first step; a subclass says how a slot is taken and
    given back.
    """

    def __init__(self, tell: OnEvent | None) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._source: Source | None = None
        self._loop: EventLoop | None = None
        self._log: KernelLog | None = None
        self._unread: list[str] = []
        """Why the kernel's log is no part of the evidence."""
        self._slots: dict[str, int] = {}
        self._steps: dict[int, tuple[str, BioStep]] = {}
        self._seen: dict[int, Seen] = {}

    @abstractmethod
    def _load(self) -> Source:
        """Load the program."""

    @abstractmethod
    def _take(self, source: Any, step: Any) -> int:
        """A slot for a step; it works when this returns."""

    @abstractmethod
    def _give_back(self, source: Any, slot: int) -> None:
        """End what a slot does."""

    def observe(self, fault_id: str, step: Any, peers: Sequence[Peer]) -> Prior:
        """Load the program, so that a refusal comes before anything is changed."""
        self._ready()
        return {"fault": fault_id}

    def _ready(self) -> Source:
        with self._lock:
            if self._source is None:
                self._source = self._load()
                self._loop = EventLoop(type(self).__name__, self._source, self._on_bio)
                self._open_log()
            return self._source

    def _open_log(self) -> None:
        """A container that is not privileged may not open it (its device filter)."""
        try:
            self._log = KernelLog()
        except OSError as exc:
            self._unread = [f"the kernel's log is not read: /dev/kmsg: {exc.strerror}"]

    def status(self, step: Any, prior: Prior, peers: Sequence[Peer]) -> Status:
        """OURS while a slot is held for it; another fault may have the same step."""
        with self._lock:
            held = (prior["fault"], step) in self._steps.values()
        return Status.OURS if held else Status.PRIOR

    def apply(self, fault_id: str, step: Any, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        """Take a slot. For one that is held, the kernel has changed by itself: keep up with it."""
        source = self._ready()
        with self._lock:
            slot = self._slots.get(fault_id)
            if slot is None:
                slot = self._slots[fault_id] = self._take(source, step)
                self._seen[slot] = Seen()
            self._steps[slot] = (fault_id, step)
        return {"slot": slot}

    def undo(self, fault_id: str, step: Any, prior: Prior, peers: Sequence[Peer]) -> None:
        """Give the slot back."""
        with self._lock:
            slot = self._slots.get(fault_id)
            if slot is None or self._source is None:
                return
            self._give_back(self._source, slot)  # when it fails, the next attempt finds it
            del self._slots[fault_id]
            self._steps.pop(slot, None)
            self._seen.pop(slot, None)

    def measure(self, fault_id: str, step: Any, prior: Prior) -> dict[str, Any]:
        """Counters, records, and kernel log lines about the device."""
        with self._lock:
            slot = self._slots.get(fault_id)
            if slot is None or self._source is None:
                return {}
            stats = self._source.stats(slot)
            self._read_log()
            seen = self._seen[slot]
            return {
                "counters": counters(stats),
                **times(stats),
                "lost": stats.lost_events,
                "missed": stats.missed,
                "records": seen.records(),
                "took": {op: list(numbers) for op, numbers in seen.took.items()},
                "kernel_log": list(seen.log),
                "statements": list(self._unread),
            }

    def _read_log(self) -> None:
        if self._log is None:
            return
        for line in self._log.read_new():
            for slot, (_, step) in self._steps.items():
                log = self._seen[slot].log
                if len(log) < MAX_LINES and about_device(line, kernel_names(step)):
                    log.append(line)

    def _on_bio(self, event: BioEvent) -> None:
        record = event.record(kernel_release())
        with self._lock:
            known = self._steps.get(event.slot)
            if known is None:
                return
            seen = self._seen[event.slot]
            seen.add(record, event.ts_ns - event.queued_ns)
            told = self._is_told(event.slot, known[1], seen.count)
        if told and self._tell is not None:
            self._tell(known[0], record)

    def _is_told(self, slot: int, step: Any, count: int) -> bool:
        """Whether the fault's rules hear of the record with this number, from 1."""
        return True


EMIT = {"failed": Emit.FAILED, "reads": Emit.READ_OK, "writes": Emit.WRITE_OK}


class BioWatchBackend(BioBackend):
    """Watches: what a step asks for becomes records, all of it or the first ones."""

    def _load(self) -> BioTracer:
        return BioTracer()

    def _take(self, source: BioTracer, step: BioWatch) -> int:
        emit = Emit(0)
        for word in step.emit:
            emit |= EMIT[word]
        return source.add_watch(step.major, step.minor, step.ranges, emit)

    def _is_told(self, slot: int, step: BioWatch, count: int) -> bool:
        """With the sample full, the program only counts: a busy device costs no more."""
        if step.sample and count >= step.sample and isinstance(self._source, BioTracer):
            self._source.set_emit(slot, Emit(0))
        return count == 1 or not step.sample

    def _give_back(self, source: BioTracer, slot: int) -> None:
        source.remove_watch(slot)


class BioFailBackend(BioBackend):
    """Sectors that fail by BPF; the program counts and reports its own hits."""

    def _load(self) -> BioFailer:
        return BioFailer()

    def _take(self, source: BioFailer, step: BioFail) -> int:
        return source.arm(
            FailSpec(
                major=step.major,
                minor=step.minor,
                ranges=step.ranges,
                reads=step.reads,
                writes=step.writes,
                heal=step.heal,
                scope=step.only,
            )
        )

    def _give_back(self, source: BioFailer, slot: int) -> None:
        source.disarm(slot)


def kernel_names(step: BioStep) -> list[str]:
    """How the kernel log calls the device."""
    link = Path(f"/sys/dev/block/{step.major}:{step.minor}")
    names = [link.resolve().name] if link.exists() else []
    return [*names, Path(step.name).name]
