"""The interpreter of a plan: a pure state machine with time as an argument.

In: moments, results of actions, commands, samples. Out: actions, and records through
`emit`. No clock, thread or socket, so that every order of events can be tested as data.
All times are nanoseconds from the origin of the run, and the machine never goes back.

Ends: a fault's end is fixed when it is planned. A late start shortens its life, and one
with nothing left is dropped. A pause moves all later starts and ends by its own length,
in one addition, so that nothing is caught up however long it was.
"""

from __future__ import annotations

import heapq

from controller.run_moves import Moves
from controller.run_state import (
    Action,
    Apply,
    ItemState,
    Life,
    Look,
    Prepare,
    Revert,
    Tend,
)


class Core(Moves):
    """One run's state. Every method returns the actions that follow."""

    # --- time ------------------------------------------------------------------------------

    def next_due(self) -> int | None:
        """The next moment at which `tick` has something to do; None waits for results."""
        due = [self._timers[0][0]] if self._timers else []
        if self.paused_at is None and not self.stopping:
            lead = self.settings.prepare_ns
            if self._next_prepare < len(self.order):
                due.append(self.order[self._next_prepare].item.start_ns + self.shift_ns - lead)
            if self._next_start < len(self.order):
                due.append(self.order[self._next_start].item.start_ns + self.shift_ns)
            if self.now < self.end_ns:
                due.append(self.end_ns)
        return min(due) if due else None

    def next_start(self) -> int | None:
        """When the next fault or noise starts, None after the last."""
        if self._next_start >= len(self.order):
            return None
        return self.order[self._next_start].item.start_ns + self.shift_ns

    def begin(self, now: int) -> list[Action]:
        """The timeline starts."""
        self.now = now
        self.started = True
        self.event("started", seed=self.plan.seed)
        return self.tick(now)

    def tick(self, now: int) -> list[Action]:
        """Everything that is due."""
        self.now = max(self.now, now)
        actions: list[Action] = []
        if self.paused_at is None and not self.stopping:
            actions += self._due_starts()
        while self._timers and self._timers[0][0] <= self.now:
            _, _, what, key = heapq.heappop(self._timers)
            actions += getattr(self, f"_timer_{what}")(key)
        if self.now >= self.end_ns and not self.stopping and self.paused_at is None:
            actions += self._run_over()
        return actions

    def _due_starts(self) -> list[Action]:
        actions: list[Action] = []
        moment = self.now - self.shift_ns
        while self._next_start < len(self.order):
            state = self.order[self._next_start]
            if state.item.start_ns > moment:
                break
            self._next_start += 1
            if state.life is Life.WAITING:
                actions += self._start(state)
        ahead = moment + self.settings.prepare_ns
        self._next_prepare = max(self._next_prepare, self._next_start)
        while self._next_prepare < len(self.order):
            state = self.order[self._next_prepare]
            if state.item.start_ns > ahead:
                break
            self._next_prepare += 1
            actions.append(Prepare(state.item))
        return actions

    def _start(self, state: ItemState) -> list[Action]:
        start = state.item.start_ns + self.shift_ns
        state.end_ns = state.item.end_ns + self.shift_ns
        late = self.now - start
        if state.travel.absent:
            self.drop(state, "refused", state.travel.absent)
        elif state.end_ns <= self.now:
            self.drop(state, "expired-before-start", "its planned end has passed")
        elif late > self.settings.late_ns:
            self.drop(state, "late", f"by {late // 1_000_000} ms")
        elif self.unwelcome(state):
            self.drop(state, "limit", "an oracle measures")
        elif self.unwhole(state):
            self.drop(state, "group", self.unwhole(state))
        else:
            reached = self._over_cap(state)
            if reached:
                self.drop(state, "limit", reached)
            else:
                return [self._apply(state)]
        return []

    def start_again(self, state: ItemState) -> list[Action]:
        """The node has never heard of it, and there is time left: inject it after all."""
        late = self.now - (state.item.start_ns + self.shift_ns)
        if late > self.settings.late_ns:
            self.drop(state, "late", f"by {late // 1_000_000} ms")
            return []
        return [self._apply(state)]

    def _over_cap(self, state: ItemState) -> str:
        if state.item.role != "fault":
            return ""
        live = [s for s in self.live() if s.item.role == "fault"]
        most = self.settings.max_faults
        if most is not None and len(live) >= most:
            return f"caps.faults: {len(live)} are live already"
        most = self.settings.max_nodes
        nodes = self.fault_nodes() if most is not None else set()
        if most is not None and state.item.node not in nodes and len(nodes) >= most:
            return f"caps.nodes: {len(nodes)} have faults already"
        return ""

    def _apply(self, state: ItemState) -> Apply:
        look_first = state.maybe_there
        state.life = Life.APPLYING
        state.maybe_there = True
        self.bring(state)
        start = state.item.start_ns + self.shift_ns
        last = min(state.end_ns, start + self.settings.late_ns + 1)
        margin = self.settings.hard_margin_ns
        return Apply(state.item, self.settings.lease_ns, state.end_ns, last, margin, look_first)

    def unwelcome(self, state: ItemState) -> bool:
        """Whether it is noise while an oracle measures."""
        return state.item.role == "noise" and self.now < self.quiet_until

    def skip_to(self, moment: int) -> None:
        """Starts up to this moment of the plan are somebody else's business already."""
        while (
            self._next_start < len(self.order)
            and self.order[self._next_start].item.start_ns <= moment
        ):
            self._next_start += 1
        self._next_prepare = max(self._next_prepare, self._next_start)

    # --- timers ------------------------------------------------------------------------------

    def _timer_end(self, key: str) -> list[Action]:
        state = self.states[key]
        if state.end_ns <= self.now:
            return self.take_back(state, "plan")
        return []

    def _timer_retry(self, key: str) -> list[Action]:
        """Another try at what did not work; past the end of a fault only at its way back."""
        state = self.states[key]
        if state.parent is not None and state.life is Life.APPLYING:
            return [Look(state.item)]
        if state.life is Life.APPLYING:
            late = self.now - (state.item.start_ns + self.shift_ns) > self.settings.late_ns
            if late:
                self.lacks(state, "its node did not answer in time")
            if state.end_ns <= self.now or self.stopping or self.unwhole(state):
                state.why = state.why or (self.stopping or self._lacking(state) or "plan")
                return [Look(state.item)]
            # Too late to send it; what was sent in time may have arrived unheard.
            return [Look(state.item) if late else self._apply(state)]
        if state.life is Life.REVERTING:
            return [Revert(state.item, state.remedy)]
        if state.life is Life.ARMED:
            return [Look(state.item)]
        return []

    def _lacking(self, state: ItemState) -> str:
        return "group" if self.unwhole(state) else ""

    def _timer_lacking(self, key: str) -> list[Action]:
        """One of a whole was not armed: take the others back, the youngest first. Those whose
        answer is awaited follow when it comes."""
        if self.stopping:
            return []
        self.event("group-incomplete", group=key, why=self.broken[key])
        actions: list[Action] = []
        members = [s for s in self.order if s.item.whole == key]
        for state in sorted(members, key=lambda s: s.armed_ns or 0, reverse=True):
            actions += self.take_back(state, "group")
        return actions

    def _timer_tend(self, key: str) -> list[Action]:
        """Renew and poll a node; one call at a time, however slow the node is."""
        node = self.nodes[key]
        if node.tending:
            return []
        measured = self.now < node.measured_until
        if not node.live and not measured:
            node.watched = False
            return []
        node.tending = True
        renew: tuple[str, ...] = ()
        if self.now - node.renewed_ns >= self.settings.renew_ns or node.lost_since is not None:
            node.renewed_ns = self.now
            renew = tuple(i for i, s in node.live.items() if s.life is Life.ARMED)
        return [Tend(key, renew, self.ids_of(key), node.after, measured)]

    def _timer_settle(self, key: str) -> list[Action]:
        """The run has waited long enough for nodes that do not answer."""
        for state in list(self.there()):
            where = f"{state.item.node} did not answer; its lease ends it"
            if state.armed_ns is None and not state.maybe_there:
                self.drop(state, "unreachable", where)
            else:
                self.finish(state, "unconfirmed", error=state.last_error or where)
        return []

    # --- ends ----------------------------------------------------------------------------------

    def _run_over(self) -> list[Action]:
        self.stopping = "end"
        self.event("timeline-over")
        return self._wind_up()

    def stop(self, now: int, why: str) -> list[Action]:
        """End the run now: nothing starts any more, everything is taken back."""
        self.now = max(self.now, now)
        self.stopping = why
        self.paused_at = None
        self.event("stopping", why=why)
        return self._wind_up()

    def _wind_up(self) -> list[Action]:
        word = "guard" if self.stopping.startswith("guard") else "stopped"
        for state in self.order:
            if state.life is Life.WAITING:
                self.drop(state, word, f"the run ended: {self.stopping}")
        self.at(self.now + self.settings.settle_ns, "settle", "")
        actions: list[Action] = []
        # The youngest first, as a node reverts its own.
        there = [*self.there(), *(s for s in self.moving.values() if not s.maybe_there)]
        for state in sorted(there, key=lambda s: s.armed_ns or 0, reverse=True):
            actions += self.take_back(state, self.stopping)
        return actions
