"""A fault that follows its workload is to hit the next pod as soon as that can be hit; pure."""

from __future__ import annotations

from controller.records import FaultMoved
from controller.run_ends import Ends
from controller.run_state import Action, Apply, ItemState, Life, Look, backoff

TRY_NS = 100_000_000
"""Between two looks for a new pod's cgroup: it is there before its first container."""
AGAIN_NS = 1_000_000_000
"""After a try that was begun and failed, as the node's journal has a line for each; and between
two at a node that does not answer."""
GIVE_UP_NS = 120_000_000_000


class Hunt(Ends):
    """Tries on the next pod. An agent takes an id once: each pod has a turn with its own."""

    def next_turn(self, state: ItemState) -> None:
        """The next pod, or the next try, has an id of its own."""
        state.item = state.item.model_copy(update={"turn": state.item.turn + 1})
        state.travel.fresh = True
        self.register(state)

    def say_moved(self, state: ItemState, *, armed: bool, mechanism: str = "") -> None:
        """On the record: where it is, or may be from now on."""
        item, travel = state.item, state.travel
        self.record(
            FaultMoved, state, armed=armed, turn=item.turn, agent_fault=self.id_of(item),
            pod=travel.pod, uid=travel.uid, containers=travel.containers, volume=travel.volume,
            zone=item.zone, target_name=item.target_name, target=item.target,
            mechanism=mechanism, why=travel.why,
        )  # fmt: skip

    def hunt(self, state: ItemState) -> None:
        """Its next pod is to be hit, for a while."""
        state.travel.hunting, state.travel.give_up_ns = True, self.now + GIVE_UP_NS
        state.tries = 0

    def seek(self, state: ItemState) -> list[Action]:
        """Another try to hit the next pod, or a look at what became of one."""
        travel = state.travel
        if state.life is not Life.MOVING or travel.asked:
            return []
        if self.doomed(state):
            if not state.maybe_there:
                return self.nowhere(state)
            travel.asked = True
            return [Look(state.item)]
        if not travel.hunting or self._capped(state):
            return []
        travel.asked = True
        look_first, state.maybe_there = state.maybe_there, True
        self.bring(state)
        end = state.end_ns
        margin = self.settings.hard_margin_ns
        return [Apply(state.item, self.settings.lease_ns, end, end, margin, look_first)]

    def _timer_seek(self, key: str) -> list[Action]:
        state = self.states[key]
        if state.travel.seek_ns is None or state.travel.seek_ns > self.now:
            return []
        state.travel.seek_ns = None
        return self.seek(state)

    def seek_later(self, state: ItemState, pause_ns: int) -> None:
        """Try again after a while; of several the last counts."""
        state.travel.seek_ns = self.now + pause_ns
        self.at(state.travel.seek_ns, "seek", state.id)

    def no_answer(self, state: ItemState) -> None:
        """Whether it is on the next pod is not known."""
        self.seek_later(state, backoff(state.tries))
        state.tries += 1

    def not_there(
        self, state: ItemState, why: str, *, used: bool = False, away: bool = False,
        hopeless: bool = False,
    ) -> list[Action]:  # fmt: skip
        """It is not on the next pod. used: its id is. away: its node could not be asked.
        hopeless: it will never be there."""
        travel = state.travel
        self.off(state)
        state.maybe_there = False
        if self.doomed(state):
            return self.nowhere(state)
        if hopeless or self.now >= travel.give_up_ns:
            travel.hunting = False
            self.event("not-hit", state.item.node, fault=state.id, pod=travel.pod, why=why)
            return []
        if used:
            self.next_turn(state)
            travel.fresh = False
            self.say_moved(state, armed=False)
        self.seek_later(state, AGAIN_NS if used or away else TRY_NS)
        return []

    def arrived(self, state: ItemState, mechanism: str) -> None:
        """The node of the next pod says that it is there."""
        travel = state.travel
        self.moving.pop(state.id, None)
        state.life, state.tries, state.maybe_there = Life.ARMED, 0, True
        travel.hunting, travel.asked, travel.seek_ns = False, False, None
        self.bring(state)
        self.say_moved(state, armed=True, mechanism=mechanism)

    def fault_nodes(self, but: ItemState | None = None) -> set[str]:
        """Nodes with faults, but one fault's."""
        there = (s for s in self.there() if s.item.role == "fault" and s.root is not but)
        return {state.item.node for state in there}

    def _capped(self, state: ItemState) -> bool:
        """Whether a cap on nodes keeps it from its next pod: for now, or for good."""
        most = self.settings.max_nodes
        if most is None or state.item.role != "fault":
            return False
        others = self.fault_nodes(state) | {state.item.node}
        if len(others) > most:
            why = f"caps.nodes: {len(others) - 1} have faults already"
            self.event("not-moved", state.item.node, fault=state.id, why=why)
            state.travel.doom = ("caps.nodes", "")
            self.seek_later(state, 0)
            return True
        if len(others | {old.item.node for old in state.travel.remnants}) > most:
            self.at(self.now, "retire", state.id)
            self.seek_later(state, TRY_NS)
            return True
        return False
