"""The step that watches sectors: hits, records and the kernel's own lines about them.

One tracer serves the agent; it is loaded with the first watch, and a thread waits on its
ring buffer, so that nothing wakes up while nothing is hit.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from select import epoll
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Runtime
from nodeagent.backends.bio_trace import BioTracer, kernel_release
from nodeagent.encode.bpf_maps import BioEvent, Counts, Emit, SlotStats
from nodeagent.kmsg import MAX_LINES, KernelLog, about_device
from nodeagent.model.evidence import IoRecord, NodeEvent
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.block import BioWatch

MAX_RECORDS = 64
FIRST_RECORDS = 16

OnEvent = Callable[[str, NodeEvent], None]


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backends of this module."""
    return {BioWatch: BioWatchBackend(runtime.on_event)}


@dataclass
class Seen:
    """What came of one watch: the first records and the latest ones."""

    first: list[IoRecord] = field(default_factory=list)
    latest: deque[IoRecord] = field(
        default_factory=lambda: deque(maxlen=MAX_RECORDS - FIRST_RECORDS)
    )
    log: list[str] = field(default_factory=list)

    def add(self, record: IoRecord) -> None:
        """Keep a record, if it is among the first or the latest."""
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


class BioWatchBackend:
    """Watches of all faults on one tracer."""

    def __init__(self, on_event: OnEvent | None) -> None:
        self._tell = on_event
        self._lock = threading.Lock()
        self._tracer: BioTracer | None = None
        self._loop: EventLoop | None = None
        self._log: KernelLog | None = None
        self._watches: dict[str, int] = {}
        self._steps: dict[int, tuple[str, BioWatch]] = {}
        self._seen: dict[int, Seen] = {}

    def observe(self, fault_id: str, step: BioWatch, peers: Sequence[Peer]) -> Prior:
        """Load the tracer, so that a refusal comes before anything is changed."""
        self._ready()
        return {}

    def _ready(self) -> BioTracer:
        with self._lock:
            if self._tracer is None:
                self._tracer = BioTracer()
                self._loop = EventLoop("bio-trace", self._tracer, self._on_event)
                self._log = KernelLog()
            return self._tracer

    def status(self, step: BioWatch, prior: Prior, peers: Sequence[Peer]) -> Status:
        """OURS while the watch is there."""
        with self._lock:
            held = any(known == step for _, known in self._steps.values())
        return Status.OURS if held else Status.PRIOR

    def apply(self, fault_id: str, step: BioWatch, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        """Add the watch."""
        tracer = self._ready()
        with self._lock:
            if fault_id in self._watches:
                return {}
            watch = tracer.add_watch(
                step.major, step.minor, step.ranges, Emit.FAILED | Emit.WRITE_OK
            )
            self._watches[fault_id] = watch
            self._steps[watch] = (fault_id, step)
            self._seen[watch] = Seen()
        return {"watch": watch}

    def undo(self, fault_id: str, step: BioWatch, prior: Prior, peers: Sequence[Peer]) -> None:
        """Remove the watch."""
        with self._lock:
            watch = self._watches.pop(fault_id, None)
            if watch is None or self._tracer is None:
                return
            self._tracer.remove_watch(watch)
            self._steps.pop(watch, None)
            self._seen.pop(watch, None)

    def measure(self, fault_id: str, step: BioWatch, prior: Prior) -> dict[str, Any]:
        """Counters, records, and kernel log lines about the device."""
        with self._lock:
            watch = self._watches.get(fault_id)
            if watch is None or self._tracer is None:
                return {}
            stats = self._tracer.stats(watch)
            self._read_log()
            seen = self._seen[watch]
            return {
                "counters": counters(stats),
                **times(stats),
                "lost": stats.lost_events,
                "recursion_misses": self._tracer.recursion_misses(),
                "records": seen.records(),
                "kernel_log": list(seen.log),
            }

    def _read_log(self) -> None:
        if self._log is None:
            return
        for line in self._log.read_new():
            for watch, (_, step) in self._steps.items():
                log = self._seen[watch].log
                if len(log) < MAX_LINES and about_device(line, kernel_names(step)):
                    log.append(line)

    def _on_event(self, event: BioEvent) -> None:
        record = event.record(kernel_release())
        with self._lock:
            known = self._steps.get(event.slot)
            if known is None:
                return
            self._seen[event.slot].add(record)
        if self._tell is not None:
            self._tell(known[0], record)


def kernel_names(step: BioWatch) -> list[str]:
    """How the kernel log calls the device."""
    link = Path(f"/sys/dev/block/{step.major}:{step.minor}")
    names = [link.resolve().name] if link.exists() else []
    return [*names, Path(step.name).name]
