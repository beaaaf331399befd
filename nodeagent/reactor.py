"""What happens to armed faults by themselves: hits become evidence, writes heal, files go."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from nodeagent.clock import boottime_ns
from nodeagent.executor import Executor
from nodeagent.faults import kind_named
from nodeagent.journal import Journal
from nodeagent.model.errors import FaultError
from nodeagent.model.evidence import Evidence, FileEvent, IoRecord, NodeEvent, ProcessEvent
from nodeagent.model.record import EndReason, FaultRow, FaultState

NO_HITS_AFTER_NS = 30_000_000_000
FIRST_LOOK_NS = 200_000_000
LONGEST_PAUSE_NS = 5_000_000_000
QUEUE = 10_000


class Reactor:
    """Runs a kind's own rules on what its watches see, on a thread of its own.

    Events come from the threads of backends, so that a table reload never holds up a
    ring buffer. Says once when an armed fault was not hit for 30 seconds. Looks for the first
    hit of kinds that only count, at first often: it is seen after a twentieth of the time that
    it took to come, and after 5 seconds at most.
    """

    def __init__(
        self, executor: Executor, journal: Journal, evidence: Callable[[FaultRow], Evidence]
    ) -> None:
        self._executor = executor
        self._journal = journal
        self._evidence = evidence
        self._queue: deque[tuple[str, NodeEvent]] = deque()
        self._lost: Counter[str] = Counter()
        self._wake = threading.Condition()
        self._biting: set[str] = set()
        self._check_at: dict[str, int] = {}
        self._look_at: dict[str, tuple[int, int]] = {}
        """Fault id -> when it was armed, when to look next whether it was hit."""
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="reactor", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for it."""
        with self._wake:
            self._stop = True
            self._wake.notify_all()
        self._thread.join(timeout=10)

    def armed(self, fault_id: str) -> None:
        """A fault was armed: look after a while whether it was hit."""
        now, fault = boottime_ns(), self._journal.find_fault(fault_id)
        polled = fault is not None and kind_named(fault.kind).polled
        with self._wake:
            self._check_at[fault_id] = now + NO_HITS_AFTER_NS
            if polled:
                self._look_at[fault_id] = (now, now + FIRST_LOOK_NS)
            self._wake.notify_all()

    def on_event(self, fault_id: str, event: NodeEvent) -> None:
        """Take an event from a backend's thread. Of a flood of bios the latest are left out."""
        with self._wake:
            if len(self._queue) >= QUEUE and isinstance(event, IoRecord):
                self._lost[fault_id] += 1
            else:
                self._queue.append((fault_id, event))
            self._wake.notify_all()

    def _run(self) -> None:
        while True:
            item, looked, unhit = self._next()
            if self._stop:
                return
            for fault_id in looked:
                self._tried(self._look, fault_id)
            for fault_id in unhit:
                self._tried(self._say_unhit, fault_id)
            self._say_lost()
            if item is not None:
                self._tried(self._handle, *item)

    def _say_lost(self) -> None:
        with self._wake:
            if self._queue:
                return  # the flood goes on: it is said once
            lost, self._lost = self._lost, Counter()
        for fault_id, count in lost.items():
            with suppress(FaultError):
                self._journal.event(fault_id, "events-lost", {"count": count})

    def _tried(self, action: Callable[..., None], fault_id: str, *more: NodeEvent) -> None:
        try:
            action(fault_id, *more)
        except (FaultError, OSError) as exc:
            with suppress(FaultError):  # a full disk must not end the agent
                self._journal.event(fault_id, "reaction-failed", {"error": str(exc)})

    def _next(self) -> tuple[tuple[str, NodeEvent] | None, list[str], list[str]]:
        """An event, faults to look at for a first hit, and such that should have been hit."""
        with self._wake:
            if not self._queue and not self._stop:
                times = [*self._check_at.values(), *(at for _, at in self._look_at.values())]
                left = (min(times) - boottime_ns()) / 1e9 if times else None
                self._wake.wait(None if left is None else max(0.0, left))
            now = boottime_ns()
            due = [fault_id for fault_id, at in self._check_at.items() if at <= now]
            for fault_id in due:
                del self._check_at[fault_id]
            looked = [fault_id for fault_id, (_, at) in self._look_at.items() if at <= now]
            for fault_id in looked:
                since, _ = self._look_at[fault_id]
                pause = min(max((now - since) // 20, FIRST_LOOK_NS), LONGEST_PAUSE_NS)
                self._look_at[fault_id] = (since, now + pause)
            return (self._queue.popleft() if self._queue else None), looked, due

    def _look(self, fault_id: str) -> None:
        """Say that a fault bites when its counters do; nothing more is looked for then."""
        fault = self._journal.find_fault(fault_id)
        if fault is not None and fault.state is FaultState.ARMED:
            evidence = self._evidence(fault)
            if not evidence.biting:
                return
            self._bites(fault, evidence, {"first_hit_ns": evidence.first_hit_ns})
        with self._wake:
            self._look_at.pop(fault_id, None)

    def _say_unhit(self, fault_id: str) -> None:
        fault = self._journal.find_fault(fault_id)
        if fault is None or fault.state is not FaultState.ARMED:
            return
        evidence = self._evidence(fault)
        if evidence.counted and not evidence.hits:
            kind, _, _ = self._executor.kind_and_plan(fault)
            self._journal.event(fault_id, "no-hits", {"hint": kind.no_hits_hint})

    def _handle(self, fault_id: str, event: NodeEvent) -> None:
        fault = self._journal.find_fault(fault_id)
        if fault is None or fault.state is not FaultState.ARMED:
            return
        kind, spec, _ = self._executor.kind_and_plan(fault)
        if isinstance(event, FileEvent):
            self._journal.event(fault_id, f"file-{event.what}", {"path": event.path})
        elif isinstance(event, ProcessEvent):
            self._journal.event(fault_id, f"process-{event.what}", {"pid": event.pid})
        elif kind.hit(spec, event):
            self._first_hit(fault, event)
        steps = tuple(row.step for row in self._journal.steps(fault_id))
        reaction = kind.react(spec, steps, event)
        if reaction is None:
            return
        if reaction.replace is not None:
            index, step = reaction.replace
            self._executor.replace_step(fault_id, index, step)
            self._journal.event(fault_id, "healed", {"event": event.model_dump(mode="json")})
        if reaction.remedied:
            said = {"why": reaction.remedied, "act_ns": event.boottime_ns}
            self._journal.event(fault_id, "remedied", said)
            self._executor.revert(fault_id, EndReason.REMEDIED)

    def _first_hit(self, fault: FaultRow, record: IoRecord) -> None:
        if fault.id not in self._biting:
            self._bites(fault, self._evidence(fault), {"record": record.model_dump(mode="json")})

    def _bites(self, fault: FaultRow, evidence: Evidence, more: dict[str, Any]) -> None:
        self._biting.add(fault.id)
        with self._wake:
            self._check_at.pop(fault.id, None)
        self._journal.update_fault(fault.id, evidence=evidence.model_dump(mode="json"))
        self._journal.event(fault.id, "biting", more)
