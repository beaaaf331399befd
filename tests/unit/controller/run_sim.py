"""Simulated nodes and a virtual clock: whole runs in milliseconds, with any failure on the way."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from controller.records import (
    FaultArmed,
    FaultDropped,
    FaultEnded,
    Record,
    RunEvent,
)
from controller.run_core import Core
from controller.run_exec import Effects
from controller.run_plan import PlanItem, RunPlan, sorted_items
from controller.run_results import Results
from controller.run_state import Action, Done, FaultView, NodeEvent, Settings
from nodeagent.model.errors import FaultError, Refused, UnknownFault, Unreachable

S = 1_000_000_000
MS = 1_000_000


@dataclass
class SimFault:
    lease_ns: int
    lease_until: int
    hard_end: int
    state: str = "armed"
    reason: str = ""


@dataclass
class SimNode:
    """A node that keeps leases by its own clock and counts how often each fault was armed."""

    clock: Callable[[], int]
    skew: int = 0
    """Nanoseconds by which its deadlines are late (or early)."""
    down: bool = False
    lose_replies: set[int] = field(default_factory=set)
    """Numbers of writes that take effect though their answers are lost."""
    break_writes: dict[int, FaultError] = field(default_factory=dict)
    refuse: FaultError | None = None
    faults: dict[str, SimFault] = field(default_factory=dict)
    armings: Counter[str] = field(default_factory=Counter)
    journal: list[NodeEvent] = field(default_factory=list)
    writes: int = 0
    calls: Counter[str] = field(default_factory=Counter)

    def _enter(self, name: str) -> None:
        self.calls[name] += 1
        self.expire()
        if self.down:
            raise Unreachable("no agent answers", "simulated")

    def expire(self) -> None:
        for name, fault in list(self.faults.items()):
            if fault.state == "armed" and min(fault.lease_until, fault.hard_end) + self.skew <= (
                self.clock()
            ):
                self.end(name, "expired")

    def end(self, name: str, reason: str) -> None:
        fault = self.faults[name]
        fault.state, fault.reason = "ended", reason
        self._event(name, "ended")

    def _event(self, name: str, what: str) -> None:
        self.journal.append(
            NodeEvent(len(self.journal) + 1, name, what, self.clock(), "2026-01-01T00:00:00Z", {})
        )

    def _view(self, name: str) -> FaultView:
        fault = self.faults[name]
        return FaultView(name, fault.state, fault.reason, "simulated")

    def _written(self) -> None:
        self.writes += 1
        if self.writes in self.lose_replies:
            raise Unreachable("the agent did not answer in time", "simulated")

    def _before_write(self) -> None:
        error = self.break_writes.get(self.writes + 1)
        if error is not None:
            self.writes += 1
            raise error

    def plan(self, request: Any) -> tuple[Any, str]:
        self._enter("plan")
        return SimpleNamespace(steps=()), "digest"

    def apply(self, request: Any, lease: Any, digest: str) -> FaultView:
        self._enter("apply")
        if request.id not in self.faults:
            self._before_write()
            if self.refuse is not None:
                raise self.refuse
            now = self.clock()
            lease_ns = int(lease.duration.total_seconds() * S)
            hard = now + int(lease.hard_end.total_seconds() * S)
            self.faults[request.id] = SimFault(lease_ns, now + lease_ns, hard)
            self.armings[request.id] += 1
            self._event(request.id, "armed")
            self._written()
        return self._view(request.id)

    def renew(self, fault_id: str) -> FaultView:
        self._enter("renew")
        fault = self._known(fault_id)
        if fault.state != "armed":
            raise Refused("it cannot be renewed", "it has ended")
        fault.lease_until = self.clock() + fault.lease_ns
        return self._view(fault_id)

    def revert(self, fault_id: str, remedy: str) -> FaultView:
        self._enter("revert")
        fault = self._known(fault_id)
        if fault.state == "armed":
            self._before_write()
            self.end(fault_id, "remedied" if remedy else "reverted")
            self._written()
        return self._view(fault_id)

    def fault(self, fault_id: str) -> FaultView:
        self._enter("fault")
        self._known(fault_id)
        return self._view(fault_id)

    def _known(self, fault_id: str) -> SimFault:
        if fault_id not in self.faults:
            raise UnknownFault(f"{fault_id} is not in the journal")
        return self.faults[fault_id]

    def events(self, after: int) -> list[NodeEvent]:
        self._enter("events")
        return [event for event in self.journal if event.seq > after]

    def clock_(self) -> tuple[int, int, int]:
        return self.clock(), 0, 0

    def close(self) -> None:
        pass


class _Port:
    """NodePort has a method `clock`, SimNode a field of that name."""

    def __init__(self, node: SimNode) -> None:
        self.node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self.node, name)

    def clock(self) -> tuple[int, int, int]:
        return self.node.clock_()


def item(slot: str, start: int, end: int, node: str = "a", **fields: Any) -> PlanItem:
    """A planned fault; times in seconds."""
    data = {
        "slot": slot,
        "name": slot,
        "node": node,
        "service": fields.pop("service", f"svc-{slot}"),
        "target_name": fields.pop("target_name", f"t-{slot}"),
        "kind": "sim",
        "target": {"type": "device", "device": "/dev/x"},
        "start_ns": int(start * S),
        "end_ns": int(end * S),
    }
    return PlanItem.model_validate({**data, **fields})


def plan_of(*items: PlanItem, end: int = 60) -> RunPlan:
    return RunPlan(experiment="sim", seed=1, end_ns=end * S, items=sorted_items(items))


@dataclass
class Drive:
    """Plays a core on simulated nodes in virtual time."""

    plan: RunPlan
    lease: int = 30
    late: int = 30
    latency: int = 5 * MS
    settings: dict[str, Any] = field(default_factory=dict)
    nodes: dict[str, SimNode] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    t: int = 0

    def __post_init__(self) -> None:
        for node in {i.node for i in self.plan.items}:
            self.nodes.setdefault(node, SimNode(lambda: self.t))
        self.fresh()

    def fresh(self) -> None:
        """A controller that knows nothing; nodes and records stay."""
        settings = Settings(
            **{
                "run": "r1",
                "lease_ns": self.lease * S,
                "late_ns": self.late * S,
                "settle_ns": (self.lease + 30) * S,
                **self.settings,
            }
        )
        self.core = Core(self.plan, settings, self.records.append, lambda: "2026-01-01T00:00:00Z")
        self.results = Results(self.core)
        ports = {name: _Port(node) for name, node in self.nodes.items()}
        self.effects = Effects("r1", ports, lambda: self.t, lambda done: None)
        self.flying: list[tuple[int, int, Done]] = []
        self.serial = itertools.count()

    def perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            done = self.effects.carry_out(action)
            heapq.heappush(self.flying, (self.t + self.latency, next(self.serial), done))

    def begin(self) -> Drive:
        self.perform(self.core.begin(self.t))
        return self

    def until(self, seconds: float) -> Drive:
        """Virtual time goes on to a moment, or to the end of the run."""
        goal = int(seconds * S)
        while not self.core.finished:
            due = self.core.next_due()
            flying = self.flying[0][0] if self.flying else None
            moments = [m for m in (due, flying) if m is not None]
            step = max(min(moments), self.t) if moments else goal
            if step > goal:
                break
            self.t = step
            if flying is not None and flying <= step:
                done = heapq.heappop(self.flying)[2]
                self.perform(self.results.done(self.t, done))
            self.perform(self.core.tick(self.t))
            if not moments:
                break
        self.t = max(self.t, goal) if not self.core.finished else self.t
        return self

    def run(self) -> Drive:
        return self.begin().until(100_000)

    # --- what came out -----------------------------------------------------------------------

    def of(self, cls: type[Record]) -> list[Any]:
        return [record for record in self.records if isinstance(record, cls)]

    def slot(self, fault: str) -> str:
        return self.core.states[fault].item.slot

    def ends(self) -> dict[str, str]:
        """slot -> reason, for ended and dropped; fails if one has two."""
        found: dict[str, str] = {}
        for record in (*self.of(FaultEnded), *self.of(FaultDropped)):
            slot = self.slot(record.fault)
            assert slot not in found, f"{slot} ended twice"
            found[slot] = record.reason
        return found

    def by(self) -> dict[str, str]:
        return {self.slot(r.fault): r.by for r in self.of(FaultEnded)}

    def armed(self) -> dict[str, int]:
        """slot -> when, in ns."""
        return {self.slot(r.fault): r.t_ns for r in self.of(FaultArmed)}

    def of_ended(self) -> list[FaultEnded]:
        return self.of(FaultEnded)

    def events(self) -> list[str]:
        return [r.name for r in self.of(RunEvent)]

    def armed_once(self) -> None:
        for node in self.nodes.values():
            assert all(n == 1 for n in node.armings.values()), node.armings
