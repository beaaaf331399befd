"""How a fault is taken back and ends, and all that is left of it on earlier pods; pure."""

from __future__ import annotations

from typing import Any

from controller.records import FaultLeft
from controller.run_ledger import Ledger
from controller.run_state import Action, ItemState, Life, Revert


class Ends(Ledger):
    """The ways back. A fault that has moved ends after all that it still is on earlier pods."""

    def take_back(self, state: ItemState, why: str, remedy: str = "") -> list[Action]:
        """Begin the revert of a fault, and of all that are correlated with it."""
        group = [state]
        if state.item.group_type == "correlated" and remedy:
            group += [
                other
                for other in [*self.there(), *self.moving.values()]
                if other.item.group == state.item.group and other is not state
            ]
        actions: list[Action] = []
        for member in group:
            actions += self._taken(member, why, remedy)
        return actions

    def _taken(self, state: ItemState, why: str, remedy: str) -> list[Action]:
        if state.life is Life.MOVING:
            state.travel.doom = state.travel.doom or (why, remedy)
            # Where it may be just now, its node's answer decides.
            return [] if state.maybe_there else self.nowhere(state)
        if state.life is not Life.ARMED:
            return []
        state.life, state.why, state.remedy, state.tries = Life.REVERTING, why, remedy, 0
        return [Revert(state.item, remedy)]

    def doomed(self, state: ItemState) -> bool:
        """Whether it has to end where its next pod would be hit."""
        return bool(state.travel.doom or self.stopping or state.end_ns <= self.now)

    def nowhere(self, state: ItemState) -> list[Action]:
        """It has to end, and waits for a pod: nothing is left to take back but on earlier ones."""
        state.why, remedy = state.travel.doom or (self.stopping or "plan", "")
        self.finish(state, "remedied" if remedy else "reverted")
        return []

    def retire(self, old: ItemState, why: str = "its pod is gone") -> list[Action]:
        """Nothing of the fault may stay on a pod that it has left."""
        if old.life.final:
            return []
        old.end_ns = min(old.end_ns, self.now)
        self.at(self.now + self.settings.settle_ns, "forsake", old.id)
        return self.take_back(old, why)

    def _timer_retire(self, key: str) -> list[Action]:
        why = "it has moved"
        return [a for old in list(self.states[key].travel.remnants) for a in self.retire(old, why)]

    def _timer_forsake(self, key: str) -> list[Action]:
        """Its node has not answered for longer than its lease."""
        old = self.states[key]
        self.finish(old, "unconfirmed", error=old.last_error or "its lease ends it")
        return []

    def finish(self, state: ItemState, reason: str, **fields: Any) -> None:
        """Nothing of it is left; of one that has moved, not before all of it is gone."""
        if state.life.final or state.travel.ending is not None:
            return
        if state.parent is not None:
            self._left(state, state.parent, reason, fields)
        elif state.travel.remnants:
            self.off(state)
            self.moving.pop(state.id, None)
            state.life, state.travel.ending = Life.REVERTING, (reason, fields)
            self.at(self.now, "retire", state.id)
        else:
            super().finish(state, reason, **self._summed(state, fields))

    def drop(self, state: ItemState, reason: str, detail: str) -> None:
        """It was never injected. On a pod that it has left already, that is no news."""
        if state.parent is None:
            super().drop(state, reason, detail)
        elif not state.life.final:
            self._over(state, state.parent)

    def _left(
        self, old: ItemState, root: ItemState, reason: str, fields: dict[str, Any]
    ) -> None:  # fmt: skip
        found = self.id_of(old.item)
        self.record(FaultLeft, old, turn=old.item.turn, agent_fault=found, reason=reason,
                    by=old.why or "node", **fields)  # fmt: skip
        hits = int(fields.get("evidence", {}).get("hits", 0))
        place = {"node": old.item.node, "pod": old.travel.pod, "reason": reason}
        root.travel.places.append({"turn": old.item.turn, **place, "hits": hits})
        if reason == "unconfirmed" and root.travel.ending and root.travel.ending[0] == "reverted":
            root.travel.ending = ("unconfirmed", {**root.travel.ending[1], **fields})
        self._over(old, root)

    def _over(self, old: ItemState, root: ItemState) -> None:
        self.close(old, Life.ENDED)
        travel = root.travel
        travel.remnants = [one for one in travel.remnants if one is not old]
        if travel.ending is not None and not travel.remnants:
            (reason, fields), travel.ending = travel.ending, None
            self.finish(root, reason, **fields)

    def _summed(self, state: ItemState, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of an end: hits of all pods together, and where they were."""
        if not state.item.turn:
            return fields
        last = dict(fields.get("evidence", {}))
        places = state.travel.places
        hits = int(last.get("hits", 0)) + sum(place["hits"] for place in places)
        evidence = {**last, "hits": hits, "places": places}
        return {**fields, "evidence": evidence, "agent_fault": self.id_of(state.item)}
