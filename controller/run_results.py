"""What the answers of nodes mean for a run; pure.

A request without an answer may have arrived. So nothing is concluded from silence: the
node is asked again, under the same id, until it says what it has.
"""

from __future__ import annotations

from controller.records import ClockOffset
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
from nodeagent.model.errors import FaultError, InvalidSpec, StalePlan, UnknownFault, Unreachable

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
        state = core.on_agent[core.id_of(action.item)]
        if state.life.final or not core.has(state, core.id_of(action.item)):
            return []
        if state.life is Life.MOVING:
            return self._arriving(state, done)
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
                core.told(node.name, event)
        actions: list[Action] = []
        for view in done.views:
            state = core.on_agent.get(view.id)
            if state is not None and not state.life.final and core.has(state, view.id):
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
        if state.life is not Life.APPLYING:
            return [Look(state.item)]
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

    def _arriving(self, state: ItemState, done: Done) -> list[Action]:
        """What came of a try to hit the next pod, or of a look at it."""
        core, error = self._core, done.error
        state.travel.asked = False
        if error is None and done.views:
            return self.seen(state, done.views[0], done.sent_ns)
        if error is None:
            return core.not_there(state, "its node has never heard of it")
        state.last_error = _one_line(error)
        if isinstance(error, Unreachable) and not done.unsent:
            core.no_answer(state)
            return []
        hopeless = isinstance(error, InvalidSpec)
        used = not done.unsent and error.code == "backend"
        away = isinstance(error, Unreachable)
        return core.not_there(state, state.last_error, used=used, away=away, hopeless=hopeless)

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
        elif state.parent is not None or core.stopping or state.end_ns <= core.now:
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
        if state.life is Life.MOVING:
            undecided = self._landing(state, view)
            if undecided is not None:
                return undecided
        if view.state == "ended":
            return self._ended(state, view)
        if view.state != "armed":
            core.retry(state)
            return []
        if state.parent is not None and state.life is Life.APPLYING:
            state.life = Life.ARMED
        elif state.life in (Life.APPLYING, Life.WAITING):
            core.armed(state, view.mechanism, sent_ns, core.took_over and state.sent_ns is None)
        if view.biting:
            core.biting(state, view.hits, view.first_hit_ns)
        if state.life is Life.REVERTING:
            core.retry(state)
            return []
        unwanted = self._unwanted(state)
        return core.take_back(state, *unwanted) if unwanted else core.catch_up(state)

    def _landing(self, state: ItemState, view: FaultView) -> list[Action] | None:
        """The node of the next pod has it; None: it is, or was, armed there."""
        core = self._core
        if view.state not in ("ended", "armed"):
            core.no_answer(state)
            return []
        if view.state == "ended" and state.travel.asked:
            return []  # the answer decides
        if view.end_reason == "apply-failed":
            return core.not_there(state, "it could not be applied", used=True)
        core.arrived(state, view.mechanism)
        return None

    def _unwanted(self, state: ItemState) -> tuple[str, str] | None:
        """Why an armed fault has to end now, and by which remedy."""
        core = self._core
        if core.stopping:
            return core.stopping, ""
        if state.travel.doom:
            return state.travel.doom
        if state.end_ns <= core.now:
            return "plan", ""
        if core.unwhole(state):
            return "group", ""
        return ("oracle-window", "") if core.unwelcome(state) else None

    def _ended(self, state: ItemState, view: FaultView) -> list[Action]:
        core = self._core
        if state.armed_ns is None and view.end_reason != "apply-failed":
            # It lived and ended before anybody heard of it.
            core.armed(state, view.mechanism, state.sent_ns or core.now, core.took_over)
        if view.biting:
            core.biting(state, view.hits, view.first_hit_ns)
        others: list[Action] = []
        reason = view.end_reason or "unconfirmed"
        if state.item.follow and state.parent is None:
            reason = self._followed(state, reason)
            if reason in ("", "vanished"):
                return core.vanish(state) if reason else []
        if state.parent is not None:
            state.why = state.why or "node"
        elif reason == "remedied":
            state.why = f"remedy {state.remedy}" if state.remedy else "remedy"
            others = core.take_back(
                state, state.why, state.remedy or "the common cause was remedied"
            )
        elif reason == "expired" and state.end_ns <= core.now + core.settings.skew_ns:
            state.why = "plan"
        elif reason != "reverted":
            state.why = "node"
        core.finish(state, reason, evidence=view.evidence)
        return others

    def _followed(self, state: ItemState, reason: str) -> str:
        """What the end of a fault that follows comes to: vanished, if it ended with its pod; empty,
        as long as that is not known."""
        travel = state.travel
        if reason in ("expired", "agent-lost", "rebooted"):
            # Of a pod that goes: a drained node is booted again, say. The next pod is hit.
            over = state.life is not Life.ARMED or state.end_ns <= self._core.now
            return "vanished" if travel.leaving and not over else reason
        if state.remedy or reason != "remedied":
            return reason
        if state.life is not Life.ARMED:
            return "reverted" if travel.leaving else "remedied"
        found = self._core.vanished(state)
        return {True: "vanished", False: "remedied", None: ""}[found]


def _one_line(error: FaultError) -> str:
    return " ".join(str(error).split())
