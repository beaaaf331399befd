"""Faults that follow their workload from pod to pod, in the core; pure.

One fault is one state, one id in the record and one end, whatever pod it is on. What it still
is on a pod that it has left is a state of its own until its node says that nothing is left
there (`parent`); the fault ends after all of them.
"""

from __future__ import annotations

from dataclasses import replace

from controller.records import AgentEvent, FaultWaits
from controller.records_base import MOVED_AWAY
from controller.run_hunt import Hunt
from controller.run_state import (
    Action,
    ItemState,
    Life,
    Look,
    NodeEvent,
    Place,
)

DOUBT_NS = 10_000_000_000
"""After a file went: how long its pod may take to be seen going."""

GONE_WORDS = frozenset({"file-gone", "process-ended"})
"""Events of a node after which a fault ends as remedied, though its pod may only have gone."""


class Moves(Hunt):
    """What follows from a pod that goes or comes."""

    # --- what becomes of pods ----------------------------------------------------------------

    def move(self, state: ItemState, place: Place) -> list[Action]:
        """Another pod is to be hit. What is on the one before stays until that is gone."""
        travel = state.travel
        if state.life.final or state.life is Life.REVERTING or travel.doom or self.stopping:
            return []
        if state.life is Life.APPLYING:
            travel.next = place
            return []
        old = None
        if state.life is Life.ARMED or state.maybe_there:
            old = self._leave(state)
        elif not travel.fresh:
            self.next_turn(state)
        self._settle_on(state, place)
        if state.life is Life.WAITING:
            return []
        actions = self.retire(old, "cut") if old is not None and place.cut else []
        self.hunt(state)
        return [*actions, *self.seek(state)]

    def keep(self, state: ItemState, place: Place) -> list[Action]:
        """Another pod has the very same volume: what is armed there is in its way already."""
        if state.life is not Life.ARMED:
            return self.move(state, place)
        state.travel.come_to(place)
        state.item = state.item.model_copy(update={"target_name": place.target_name})
        self.say_moved(state, armed=True)
        return []

    def pod_gone(self, state: ItemState, uid: str, why: str) -> list[Action]:
        """A pod is no more, and nothing of the fault may stay there."""
        travel = state.travel
        if state.life is Life.APPLYING:
            travel.gone.append((uid, why))
            return []
        if uid and travel.uid == uid:
            return self._lost(state, why)
        return [a for old in travel.remnants if old.travel.uid == uid for a in self.retire(old)]

    def pod_leaving(self, state: ItemState, uid: str) -> list[Action]:
        """Its pod is being deleted or has completed; what is bound to it goes with it."""
        travel = state.travel
        if travel.uid != uid:
            return []
        travel.leaving = True
        return [] if travel.doubt_ns is None else self.vanish(state)

    def moved_away(self, state: ItemState, why: str) -> list[Action]:
        """The workload is where the fault does not follow it to."""
        if state.life is Life.WAITING:
            state.travel.absent = why
            return []
        if state.life.final or state.life is Life.REVERTING:
            return []
        self.event("moved-away", state.item.node, fault=state.id, why=why)
        state.travel.doom = (MOVED_AWAY, "")
        return self.take_back(state, MOVED_AWAY)

    def vanish(self, state: ItemState) -> list[Action]:
        """An armed fault ended with its pod: it waits for the next one."""
        return self._lost(state, "its target went with its pod")

    def _lost(self, state: ItemState, why: str) -> list[Action]:
        travel = state.travel
        if state.life is Life.WAITING:
            travel.absent = f"its pod is gone, and no other has taken its place: {why}"
            travel.uid = ""
            return []
        if state.life not in (Life.ARMED, Life.MOVING) or travel.doom:
            return []
        actions: list[Action] = []
        if state.life is Life.ARMED or state.maybe_there:
            actions = self.retire(self._leave(state))
        travel.uid, travel.hunting = "", False
        self.record(FaultWaits, state, turn=state.item.turn, why=why)
        return actions

    # --- turns -------------------------------------------------------------------------------

    def _leave(self, state: ItemState) -> ItemState:
        """What it is where it was goes on as a state of its own; the fault itself is nowhere."""
        there = Life.ARMED if state.life is Life.ARMED else Life.APPLYING
        old = self.remnant(replace(state, life=there))
        self.next_turn(state)
        state.life, state.maybe_there, state.remedy = Life.MOVING, False, ""
        state.travel.asked, state.travel.seek_ns = False, None
        state.travel.doubt_ns, state.travel.told, state.travel.target_gone = None, False, False
        self.moving[state.id] = state
        return old

    def remnant(self, there: ItemState) -> ItemState:
        """What a fault is, or may be, on a pod that it has left."""
        root = self.states[there.id]
        travel = replace(there.travel, remnants=[], gone=[], places=[])
        old = replace(there, id=f"{root.id}~{there.item.turn}", parent=root, travel=travel,
                      passes={}, tries=0)  # fmt: skip
        self.states[old.id] = old
        self.register(old)
        self.bring(old)
        self._open += 1
        root.travel.remnants.append(old)
        self.at(old.end_ns, "end", old.id)
        if old.life is Life.APPLYING and not travel.asked:
            self.retry(old)
        return old

    def _settle_on(self, state: ItemState, place: Place) -> None:
        """The pod that it is to hit from now on, on record before its node is asked."""
        update = place.__dict__.keys() & {"node", "zone", "target_name", "target"}
        state.item = state.item.model_copy(update={name: getattr(place, name) for name in update})
        state.travel.come_to(place)
        state.travel.absent, state.travel.fresh = "", False
        self.register(state)
        self.say_moved(state, armed=False)

    def catch_up(self, state: ItemState) -> list[Action]:
        """What happened to its pods before it was known to be armed at first."""
        travel = state.travel
        gone, place = travel.gone, travel.next
        travel.gone, travel.next = [], None
        actions = self.move(state, place) if place is not None else []
        for uid, why in gone:
            actions += self.pod_gone(state, uid, why)
        return actions

    def told(self, node: str, event: NodeEvent) -> None:
        """A node's own word on a fault of the run, on the record under the fault's first id."""
        state = self.on_agent[event.fault]
        now = self.has(state, event.fault)
        state.travel.target_gone |= now and event.name in GONE_WORDS
        state.travel.told |= now and event.name in ("remedied", "ended")
        first = state.root.id
        self.emit(
            AgentEvent(
                t_ns=self.now,
                wall=self.wall(),
                node=node,
                seq=event.seq,
                fault=first,
                agent_fault="" if event.fault == first else event.fault,
                name=event.name,
                node_ns=event.node_ns,
                node_wall=event.wall,
                data=event.data,
            )
        )

    def vanished(self, state: ItemState) -> bool | None:
        """Whether an armed fault ended with its pod, by no remedy; None: not known yet."""
        travel = state.travel
        if not travel.told:
            return None
        if not travel.target_gone:
            return False
        if travel.leaving:
            return True
        if travel.doubt_ns is None:
            travel.doubt_ns = self.now + DOUBT_NS
            self.at(travel.doubt_ns, "doubt", state.id)
        return None if self.now < travel.doubt_ns else False

    def _timer_doubt(self, key: str) -> list[Action]:
        state = self.states[key]
        due = state.travel.doubt_ns is not None and state.life is Life.ARMED
        return [Look(state.item)] if due else []

    def places(self, state: ItemState) -> list[tuple[str, str]]:
        """(node, id there) of all that a fault is on; no node for the pod that it waits for."""
        here = state.item.node if state.life is not Life.MOVING else ""
        old = [(o.item.node, self.id_of(o.item)) for o in list(state.travel.remnants)]
        return [(here, self.id_of(state.item)), *old]
