"""What the answers of nodes mean for a run; pure.

A request without an answer may have arrived. So nothing is concluded from silence: the
node is asked again, under the same id, until it says what it has.
"""

from __future__ import annotations

from controller.records import AgentEvent, ClockOffset
from controller.run_core import Core
from controller.run_state import (
    Action,
    Apply,
    Done,
    FaultView,
    ItemState,
    Life,
    Look,
    NodeState,
    Prepare,
    Revert,
    Tend,
    TooLate,
    backoff,
)
from nodeagent.model.errors import FaultError, StalePlan, UnknownFault, Unreachable

CLOCK_EVERY_NS = 60_000_000_000
MAX_REPLANS = 3


class Results:
    """Reads results for a core."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._clock_at: dict[str, int] = {}

    def done(self, now: int, done: Done) -> list[Action]:
        """An action came back, with an answer or without."""
        core = self._core
        core.now = max(core.now, now)
        action = done.action
        if isinstance(action, Tend):
            self._reached(core.nodes[action.node], done)
            return self._tended(action, done)
        self._reached(core.nodes[action.item.node], done)
        if isinstance(action, Prepare):
            return []
        state = core.states[core.id_of(action.item)]
        if state.life.final:
            return []
        if isinstance(action, Apply):
            return self._applied(state, done)
        if isinstance(action, Revert):
            return self._reverted(state, done)
        return self._looked(state, done)

    def last_tend(self, node: NodeState) -> Tend:
        """Fetches what a node has still to say; renews nothing."""
        return Tend(node.name, (), self._core.ids_of(node.name), node.after)

    # --- nodes -----------------------------------------------------------------------------

    def _reached(self, node: NodeState, done: Done) -> None:
        core = self._core
        if isinstance(done.error, Unreachable):
            if node.lost_since is None:
                node.lost_since = core.now
                core.event("node-lost", node.name, error=str(done.error))
        elif node.lost_since is not None:
            core.event("node-back", node.name, lost_ns=core.now - node.lost_since)
            node.lost_since = None
        last = self._clock_at.get(node.name)
        wanted = isinstance(done.action, Tend) and done.action.measured
        wanted = wanted or last is None or core.now - last >= CLOCK_EVERY_NS
        if done.clock is not None and wanted:
            self._clock_at[node.name] = core.now
            offset, error = done.clock
            core.emit(
                ClockOffset(
                    t_ns=core.now,
                    wall=core.wall(),
                    node=node.name,
                    node_ns=done.node_ns,
                    offset_ns=offset,
                    error_ns=error,
                )
            )

    def _tended(self, action: Tend, done: Done) -> list[Action]:
        core = self._core
        node = core.nodes[action.node]
        node.tending = False
        pause = core.settings.poll_ns if node.lost_since is None else backoff(2)
        core.at(core.now + pause, "tend", node.name)
        for event in done.events:
            node.after = max(node.after, event.seq)
            if event.fault in action.ids:
                core.emit(
                    AgentEvent(
                        t_ns=core.now,
                        wall=core.wall(),
                        node=node.name,
                        seq=event.seq,
                        fault=event.fault,
                        name=event.name,
                        node_ns=event.node_ns,
                        node_wall=event.wall,
                        data=event.data,
                    )
                )
        actions: list[Action] = []
        for view in done.views:
            state = core.states.get(view.id)
            if state is not None and not state.life.final:
                actions += self.seen(state, view, done.sent_ns)
        return actions

    # --- one fault ----------------------------------------------------------------------------

    def _applied(self, state: ItemState, done: Done) -> list[Action]:
        core, error = self._core, done.error
        if error is None:
            return self.seen(state, done.views[0], done.sent_ns)
        state.last_error = str(error)
        if isinstance(error, Unreachable):
            core.retry(state)
            return []
        if isinstance(error, StalePlan) and state.tries < MAX_REPLANS and not core.stopping:
            core.retry(state)
            return []
        if isinstance(error, TooLate):
            over = state.end_ns <= core.now
            core.drop(state, "expired-before-start" if over else "late", _one_line(error))
            return []
        if error.code == "backend":
            # It was begun and taken back; the node's journal has how that went.
            return [Look(state.item)]
        core.drop(state, "refused", _one_line(error))
        return []

    def _reverted(self, state: ItemState, done: Done) -> list[Action]:
        core, error = self._core, done.error
        if error is None:
            return self.seen(state, done.views[0], done.sent_ns)
        if isinstance(error, UnknownFault):
            core.finish(state, "unconfirmed", error=str(error))
            return []
        if not isinstance(error, Unreachable) and str(error) != state.last_error:
            core.event("revert-failed", state.item.node, fault=state.id, error=_one_line(error))
        state.last_error = str(error)
        core.retry(state)
        return []

    def _looked(self, state: ItemState, done: Done) -> list[Action]:
        core = self._core
        if done.error is not None:
            state.last_error = str(done.error)
            core.retry(state)
            return []
        if done.views:
            return self.seen(state, done.views[0], done.sent_ns)
        if state.life is not Life.APPLYING:
            core.finish(state, "unconfirmed", error="the node's journal does not know it")
        elif core.unwhole(state) and not core.stopping and state.end_ns > core.now:
            if state.last_error:
                core.drop(state, "unreachable", state.last_error)
            else:
                core.drop(state, "group", core.unwhole(state))
        elif core.stopping or state.end_ns <= core.now:
            if state.last_error:
                core.drop(state, "unreachable", state.last_error)
            elif core.stopping and state.end_ns > core.now:
                core.drop(state, "stopped", f"the run ended: {core.stopping}")
            else:
                core.drop(state, "expired-before-start", "no controller was there to start it")
        else:
            return core.start_again(state)
        return []

    def seen(self, state: ItemState, view: FaultView, sent_ns: int) -> list[Action]:
        """The node says what it has of a fault."""
        core = self._core
        if view.state == "ended":
            return self._ended(state, view)
        if view.state != "armed":
            core.retry(state)
            return []
        if state.life in (Life.APPLYING, Life.WAITING):
            core.armed(state, view.mechanism, sent_ns, core.took_over and state.sent_ns is None)
        if view.biting:
            core.biting(state, view.hits, view.first_hit_ns)
        if state.life is Life.REVERTING:
            core.retry(state)
        elif core.stopping:
            return core.take_back(state, core.stopping)
        elif state.end_ns <= core.now:
            return core.take_back(state, "plan")
        elif core.unwhole(state):
            return core.take_back(state, "group")
        elif core.unwelcome(state):
            return core.take_back(state, "oracle-window")
        return []

    def _ended(self, state: ItemState, view: FaultView) -> list[Action]:
        core = self._core
        if state.armed_ns is None and view.end_reason != "apply-failed":
            # It lived and ended before anybody heard of it.
            core.armed(state, view.mechanism, state.sent_ns or core.now, core.took_over)
        if view.biting:
            core.biting(state, view.hits, view.first_hit_ns)
        others: list[Action] = []
        if view.end_reason == "remedied":
            state.why = f"remedy {state.remedy}" if state.remedy else "remedy"
            others = core.take_back(
                state, state.why, state.remedy or "the common cause was remedied"
            )
        elif view.end_reason == "expired" and state.end_ns <= core.now + core.settings.skew_ns:
            state.why = "plan"
        elif view.end_reason != "reverted":
            state.why = "node"
        core.finish(state, view.end_reason or "unconfirmed", evidence=view.evidence)
        return others


def _one_line(error: FaultError) -> str:
    return " ".join(str(error).split())
