"""What a run knows of its faults and nodes, and how changes of it become records; pure."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from controller.records import (
    FaultArmed,
    FaultBiting,
    FaultDropped,
    FaultEnded,
    Record,
    RunEvent,
)
from controller.run_plan import PlanItem, RunPlan, fault_id
from controller.run_state import ItemState, Life, NodeState, Settings, backoff

Emit = Callable[[Record], None]


class Ledger:
    """States of all planned faults and their nodes, timers, and the one way to close a fault."""

    def __init__(
        self, plan: RunPlan, settings: Settings, emit: Emit, wall: Callable[[], str]
    ) -> None:
        self.plan = plan
        self.settings = settings
        self.states: dict[str, ItemState] = {}
        for item in plan.items:
            state = ItemState(item, fault_id(settings.run, item.slot), end_ns=item.end_ns)
            self.states[state.id] = state
        self.order = list(self.states.values())
        self.on_agent = dict(self.states)
        """By the id on its node: one that has moved has others than its first."""
        self.moving: dict[str, ItemState] = {}
        """Faults that follow and may be on no node just now."""
        self.nodes = {item.node: NodeState(item.node) for item in plan.items}
        of_node: dict[str, set[str]] = {name: set() for name in self.nodes}
        for state in self.order:
            of_node[state.item.node].add(state.id)
        self._ids_of = {name: frozenset(ids) for name, ids in of_node.items()}
        self.shift_ns = 0
        self.paused_at: int | None = None
        self.quiet_until = 0
        """No noise before this moment: an oracle measures."""
        self.stopping = ""
        self.started = False
        self.took_over = False
        self.now = 0
        self.emit = emit
        self.wall = wall
        self._next_start = 0
        self._next_prepare = 0
        self._timers: list[tuple[int, int, str, str]] = []
        self._serial = itertools.count()
        self._open = len(self.order)
        self.broken: dict[str, str] = {}
        """Faults that are armed whole or not at all, of which one was not: why."""

    # --- what it says about itself ------------------------------------------------------

    @property
    def end_ns(self) -> int:
        """The planned end of the run, pauses included."""
        return self.plan.end_ns + self.shift_ns

    @property
    def finished(self) -> bool:
        """Whether every fault ended or was dropped, and the time of the run is over."""
        over = bool(self.stopping) or self.now >= self.end_ns
        return self.started and over and self._open == 0

    def id_of(self, item: PlanItem) -> str:
        """Its fault's id on its node."""
        return fault_id(self.settings.run, item.agent_slot)

    def has(self, state: ItemState, agent_id: str) -> bool:
        """Whether a fault has this id on a node now, and not that of an earlier turn."""
        return self.id_of(state.item) == agent_id

    def ids_of(self, node: str) -> frozenset[str]:
        """The ids of all faults that are planned for a node, or have moved there."""
        return self._ids_of[node]

    def register(self, state: ItemState) -> None:
        """It has another id or node than it was planned with."""
        found, name = self.id_of(state.item), state.item.node
        self.on_agent[found] = state
        if name not in self.nodes:
            self.nodes[name] = NodeState(name)
            self.event("node-joined", name)
        self._ids_of[name] = self._ids_of.get(name, frozenset()) | {found}

    def there(self) -> Iterator[ItemState]:
        """All that is, or may be, on a node."""
        for node in self.nodes.values():
            yield from node.live.values()

    def live(self) -> Iterator[ItemState]:
        """Faults and noise that are, or may be, on a node, or wait for their next pod."""
        yield from (s for s in self.there() if s.parent is None and s.life is not Life.MOVING)
        yield from self.moving.values()

    # --- timers ------------------------------------------------------------------------------

    def at(self, moment: int, what: str, key: str) -> None:
        """Wake at a moment to do `what` with `key`."""
        heapq.heappush(self._timers, (moment, next(self._serial), what, key))

    def bring(self, state: ItemState) -> None:
        """It is, or may be, on its node: which is looked after from now on."""
        node = self.nodes[state.item.node]
        node.live[self.id_of(state.item)] = state
        self._watch(node, self.now + self.settings.poll_ns)

    def measure(self, name: str, until: int) -> None:
        """An oracle measures: a node's agent is heard now, and until that moment."""
        node = self.nodes[name]
        if until > node.measured_until:
            node.measured_until = until
            self._watch(node, self.now)

    def _watch(self, node: NodeState, first: int) -> None:
        if not node.watched:
            node.watched = True
            self.at(first, "tend", node.name)

    def retry(self, state: ItemState) -> None:
        """Try again later, ever more slowly."""
        self.at(self.now + backoff(state.tries), "retry", state.id)
        state.tries += 1

    # --- words for the record ---------------------------------------------------------------------

    def event(self, name: str, node: str | None = None, **data: Any) -> None:
        """Something that happened to the run."""
        self.emit(RunEvent(t_ns=self.now, wall=self.wall(), name=name, node=node, data=data))

    def record(self, cls: type[Record], state: ItemState, **fields: Any) -> None:
        """A record about a fault."""
        item = state.item
        self.emit(
            cls.model_validate(
                {
                    "t_ns": self.now,
                    "wall": self.wall(),
                    "fault": state.root.id,
                    "role": item.role,
                    "node": item.node,
                    **fields,
                }
            )
        )

    def armed(self, state: ItemState, mechanism: str, sent_ns: int, taken_over: bool) -> None:
        """The node says that the fault is there."""
        state.life, state.armed_ns, state.sent_ns = Life.ARMED, self.now, sent_ns
        state.tries = 0
        self.bring(state)
        start = state.item.start_ns + self.shift_ns
        self.record(
            FaultArmed,
            state,
            mechanism=mechanism,
            start_ns=start,
            sent_ns=sent_ns,
            taken_over=taken_over,
            turn=state.item.turn,
        )
        self.at(state.end_ns, "end", state.id)

    def biting(self, state: ItemState, hits: int, node_ns: int | None) -> None:
        """First evidence."""
        if not state.root.biting:
            state.root.biting = True
            self.record(FaultBiting, state, hits=hits, node_ns=node_ns)

    def drop(self, state: ItemState, reason: str, detail: str) -> None:
        """It was never injected. Once only."""
        if not state.life.final:
            self.close(state, Life.DROPPED)
            self.record(FaultDropped, state, reason=reason, detail=detail)
            self.lacks(state, f"{reason}, {detail}" if detail else reason)
            if state.item.role == "noise":
                self.event("noise-missing", state.item.node, slot=state.item.slot, why=reason)

    def finish(self, state: ItemState, reason: str, **fields: Any) -> None:
        """Nothing of it is left. Once only."""
        if not state.life.final:
            self.close(state, Life.ENDED)
            self.record(FaultEnded, state, reason=reason, by=state.why or "node", **fields)
            if reason == "apply-failed":
                self.lacks(state, reason)

    def lacks(self, state: ItemState, why: str) -> None:
        """It was not armed: those that are armed with it or not at all are taken back."""
        whole = state.item.whole if state.parent is None else ""
        if whole and whole not in self.broken and not self.stopping:
            self.broken[whole] = f"{state.item.slot} was not armed ({why})"
            self.at(self.now, "lacking", whole)

    def unwhole(self, state: ItemState) -> str:
        """Why a fault may not live: another that belongs to it was not armed; else empty."""
        return self.broken.get(state.item.whole, "") if state.item.whole else ""

    def close(self, state: ItemState, life: Life) -> None:
        """It is over; without a record."""
        state.life = life
        self._open -= 1
        self.moving.pop(state.id, None)
        self.off(state)

    def off(self, state: ItemState) -> None:
        """It is on no node."""
        self.nodes[state.item.node].live.pop(self.id_of(state.item), None)
