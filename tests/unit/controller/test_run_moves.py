"""Faults that follow their workload, in the core: one id, one end, and nothing left anywhere."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_sim import MS, Drive, S, SimFault, SimNode, item, plan_of

from controller.records import FaultArmed, FaultEnded, FaultLeft, FaultMoved, FaultWaits
from controller.run_commands import command
from controller.run_plan import PlanItem
from controller.run_recover import restore
from controller.run_state import FaultView, ItemState, Life, NodeEvent, Place
from nodeagent.model.errors import BackendError, FaultError, InvalidSpec, Refused


class PodNode(SimNode):
    """A node with pods: a fault on one that has no cgroup yet is refused as it is planned."""

    closed: set[str]

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.closed = set()
        self.hits: dict[str, int] = {}

    def plan(self, request: Any) -> Any:
        found = super().plan(request)
        if request.target.get("device") in self.closed:
            raise Refused("the pod has no cgroup", "simulated")
        return found

    def apply(self, request: Any, lease: Any, digest: str) -> FaultView:
        try:
            return super().apply(request, lease, digest)
        except BackendError:
            # It was begun: the journal has its id for good.
            self.faults[request.id] = SimFault(0, 0, 0)
            self.end(request.id, "apply-failed")
            raise

    def say(self, name: str, what: str) -> None:
        self.journal.append(
            NodeEvent(len(self.journal) + 1, name, what, self.clock(), "2026-01-01T00:00:00Z", {})
        )

    def _view(self, name: str) -> FaultView:
        view = super()._view(name)
        hits = self.hits.get(name, 0)
        return FaultView(view.id, view.state, view.end_reason, "simulated", hits > 0, hits,
                         None, {"hits": hits})  # fmt: skip

    def armed(self) -> set[str]:
        self.expire()
        return {name for name, fault in self.faults.items() if fault.state == "armed"}


def fault(start: int = 1, end: int = 100, **more: Any) -> PlanItem:
    return item("f", start, end, "a", follow="move", remedies=("fixed",), **more)


class Trip:
    """One fault that follows, on three nodes."""

    def __init__(self, *others: PlanItem, first: PlanItem | None = None, **sets: Any) -> None:
        nodes: dict[str, SimNode] = {}
        self.drive = Drive(plan_of(first or fault(), *others, end=120), nodes=nodes, settings=sets)
        for name in "abc":
            self.drive.nodes[name] = PodNode(lambda: self.drive.t)
        self.drive.fresh()
        self.state.travel.uid, self.state.travel.pod = "u0", "shop/p0"

    @property
    def state(self) -> ItemState:
        return self.drive.core.states[self.first_id]

    @property
    def first_id(self) -> str:
        return next(s.id for s in self.drive.core.order if s.item.slot == "f")

    def node(self, name: str) -> PodNode:
        node = self.drive.nodes[name]
        assert isinstance(node, PodNode)
        return node

    def place(self, number: int, node: str, **more: Any) -> Place:
        target = {"type": "device", "device": f"/dev/p{number}"}
        return Place(node, "", f"t-f/p{number}", target, f"shop/p{number}", f"u{number}",
                     why="takes the place", **more)  # fmt: skip

    def move(self, number: int, node: str, **more: Any) -> None:
        core = self.drive.core
        core.now = self.drive.t
        self.drive.perform(core.move(self.state, self.place(number, node, **more)))

    def gone(self, number: int) -> None:
        core = self.drive.core
        core.now = self.drive.t
        self.drive.perform(core.pod_gone(self.state, f"u{number}", "the pod is gone"))

    def take_over(self, after_s: float = 0) -> None:
        drive = self.drive
        records: list[Any] = list(drive.records)
        drive.t += int(after_s * S)
        drive.fresh()
        drive.perform(restore(drive.core, records, records, drive.t))

    def armed(self) -> dict[str, int]:
        """node -> number of faults that are armed there."""
        found = {name: len(self.node(name).armed()) for name in "abc"}
        return {name: count for name, count in found.items() if count}

    def to(self, seconds: float) -> Trip:
        self.drive.until(seconds)
        return self

    def begin(self, seconds: float = 10) -> Trip:
        self.drive.begin()
        return self.to(seconds)

    def finished(self) -> FaultEnded:
        """Plays to the end; all that must hold then."""
        self.to(10_000)
        assert self.drive.core.finished
        assert self.armed() == {}
        self.drive.armed_once()
        ids = [i for name in "abc" for i in self.node(name).armings]
        assert len(ids) == len(set(ids)), "an id is used once anywhere"
        found = [e for e in self.drive.of(FaultEnded) if e.fault == self.first_id]
        (ended,) = found
        assert isinstance(ended, FaultEnded)
        assert not any(node.live for node in self.drive.core.nodes.values())
        return ended


def test_the_pod_goes_and_another_comes_and_it_is_one_fault() -> None:
    trip = Trip().begin()
    trip.gone(0)
    trip.to(12)
    assert trip.armed() == {} and trip.state.life is Life.MOVING
    trip.move(1, "b")
    trip.to(13)
    assert trip.armed() == {"b": 1}
    ended = trip.finished()
    assert (ended.reason, ended.by, ended.node) == ("reverted", "plan", "b")
    (armed,) = trip.drive.of(FaultArmed)
    assert armed.node == "a"
    moves = trip.drive.of(FaultMoved)
    assert [(m.armed, m.turn, m.node, m.pod) for m in moves] == [
        (False, 1, "b", "shop/p1"), (True, 1, "b", "shop/p1")]  # fmt: skip
    assert {m.fault for m in moves} == {trip.first_id}
    assert len(trip.drive.of(FaultWaits)) == len(trip.drive.of(FaultLeft)) == 1
    assert ended.t_ns == pytest.approx(100 * S, abs=50 * MS)


def test_the_replacement_first_and_both_are_hit_until_the_old_one_is_gone() -> None:
    trip = Trip().begin()
    trip.move(1, "b")
    trip.to(40)
    assert trip.armed() == {"a": 1, "b": 1}, "both leases are renewed"
    trip.gone(0)
    trip.to(41)
    assert trip.armed() == {"b": 1}
    assert trip.finished().by == "plan"
    assert trip.drive.of(FaultWaits) == [], "there was no moment without"


def test_it_is_tried_every_tenth_of_a_second_until_the_pod_has_a_cgroup() -> None:
    trip = Trip().begin()
    trip.node("b").closed = {"/dev/p1"}
    trip.gone(0)
    trip.move(1, "b")
    trip.to(13)
    tries = trip.node("b").calls["plan"]
    assert 20 <= tries <= 31 and trip.armed() == {}
    trip.node("b").closed = set()
    trip.to(13.2)
    assert trip.armed() == {"b": 1}
    assert len([m for m in trip.drive.of(FaultMoved) if not m.armed]) == 1, "one id, one line"
    trip.finished()


def test_what_was_begun_and_failed_is_tried_under_another_id_after_a_second() -> None:
    trip = Trip().begin()
    trip.node("b").break_writes = {1: BackendError("a container came", ""),
                                   2: BackendError("again", "")}  # fmt: skip
    trip.gone(0)
    trip.move(1, "b")
    trip.to(11.5)
    assert trip.armed() == {}
    trip.to(13)
    assert trip.armed() == {"b": 1}
    assert [m.turn for m in trip.drive.of(FaultMoved)] == [1, 2, 3, 3]
    trip.finished()


@pytest.mark.parametrize(
    ("error", "seconds"), [(InvalidSpec("no such volume"), 1), (Refused("no"), 120)]
)
def test_what_can_never_be_hit_is_given_up_and_the_fault_waits_on(
    error: FaultError, seconds: int
) -> None:
    trip = Trip(first=fault(1, 400))
    trip.drive.plan = plan_of(fault(1, 400), end=500)
    trip.drive.fresh()
    trip.state.travel.uid = "u0"
    trip.begin()
    trip.node("b").refuse = error
    trip.gone(0)
    trip.move(1, "b")
    trip.to(10 + seconds - 0.5 if seconds > 1 else 10.001)
    assert "not-hit" not in trip.drive.events()
    trip.to(10 + seconds + 1)
    assert trip.drive.events().count("not-hit") == 1
    assert trip.state.life is Life.MOVING
    trip.node("b").refuse = None
    trip.move(2, "b")
    trip.to(10 + seconds + 2)
    assert trip.armed() == {"b": 1}, "the next one is hit"
    assert trip.finished().by == "plan"


def test_an_answer_that_was_lost_is_asked_for_under_the_same_id() -> None:
    trip = Trip().begin()
    trip.node("b").lose_replies = {1}
    trip.gone(0)
    trip.move(1, "b")
    trip.to(20)
    assert trip.armed() == {"b": 1}
    assert [m.turn for m in trip.drive.of(FaultMoved)] == [1, 1]
    trip.finished()


def test_a_node_that_cannot_be_asked_is_given_up_and_holds_up_no_end() -> None:
    """The pod is on a node without an agent: nothing was sent, so nothing can be there."""
    trip = Trip()
    trip.node("b").down = True
    trip.begin()
    trip.gone(0)
    trip.move(1, "b")
    trip.to(90)
    assert trip.node("b").calls["plan"] in range(75, 85), "once a second"
    ended = trip.finished()
    assert (ended.reason, ended.by) == ("reverted", "plan")
    assert ended.t_ns < 101 * S


def test_the_next_pod_goes_too_while_its_answer_is_awaited() -> None:
    trip = Trip().begin()
    trip.gone(0)
    trip.move(1, "b")
    trip.gone(1)
    trip.move(2, "c")
    trip.to(12)
    assert trip.armed() == {"c": 1}
    trip.finished()


def test_the_planned_end_comes_while_it_waits() -> None:
    trip = Trip().begin()
    trip.gone(0)
    ended = trip.finished()
    assert (ended.reason, ended.by) == ("reverted", "plan")
    assert ended.t_ns == pytest.approx(100 * S, abs=50 * MS)
    assert ended.agent_fault not in trip.node("a").armings, "no node's word tells of this end"


@pytest.mark.parametrize("waits", [True, False])
def test_a_stop_ends_it_wherever_it_is(waits: bool) -> None:
    trip = Trip().begin()
    trip.gone(0)
    if not waits:
        trip.move(1, "b")
    trip.drive.perform(command(trip.drive.core, trip.drive.t, "stop")[1])
    trip.move(2, "c")
    ended = trip.finished()
    assert (ended.reason, ended.by) == ("reverted", "stop")
    assert trip.drive.t < 12 * S


def test_hits_of_all_pods_are_summed_and_told_one_by_one() -> None:
    trip = Trip().begin()
    trip.node("a").hits = {next(iter(trip.node("a").faults)): 3}
    trip.gone(0)
    trip.move(1, "b")
    trip.to(12)
    trip.node("b").hits = {next(iter(trip.node("b").faults)): 4}
    ended = trip.finished()
    assert ended.evidence["hits"] == 7
    assert [(p["node"], p["hits"], p["reason"]) for p in ended.evidence["places"]] == [
        ("a", 3, "reverted")]  # fmt: skip


# --- what a node calls a remedy ----------------------------------------------------------------


def end_on(trip: Trip, node: str, reason: str, *words: str) -> None:
    (name,) = trip.node(node).armed()
    for word in words:
        trip.node(node).say(name, word)
    trip.node(node).end(name, reason)


def test_a_real_remedy_ends_it() -> None:
    trip = Trip().begin()
    end_on(trip, "a", "remedied", "healed", "remedied")
    ended = trip.finished()
    assert (ended.reason, ended.by, ended.node) == ("remedied", "remedy", "a")
    assert ended.t_ns < 13 * S


def test_a_file_that_goes_with_its_pod_is_no_remedy() -> None:
    trip = Trip().begin()
    trip.drive.core.pod_leaving(trip.state, "u0")
    end_on(trip, "a", "remedied", "file-gone", "remedied")
    trip.to(15)
    assert trip.state.life is Life.MOVING
    trip.gone(0)
    trip.move(1, "b")
    trip.to(16)
    assert trip.armed() == {"b": 1}
    assert trip.finished().by == "plan"
    assert [left.reason for left in trip.drive.of(FaultLeft)] == ["remedied"]


@pytest.mark.parametrize("how", ["leaving", "gone", "moved"])
def test_a_pod_that_is_seen_going_after_its_file_takes_the_remedy_back(how: str) -> None:
    trip = Trip().begin()
    end_on(trip, "a", "remedied", "file-gone", "remedied")
    trip.to(15)
    assert trip.drive.of(FaultEnded) == []
    if how == "leaving":
        trip.drive.perform(trip.drive.core.pod_leaving(trip.state, "u0"))
    elif how == "gone":
        trip.gone(0)
    else:
        trip.move(1, "b")
    trip.to(30)
    assert trip.drive.of(FaultEnded) == []
    assert trip.finished().by == "plan"


def test_a_file_that_goes_while_its_pod_stays_is_a_remedy() -> None:
    trip = Trip().begin()
    end_on(trip, "a", "remedied", "file-gone", "remedied")
    ended = trip.finished()
    assert ended.reason == "remedied"
    assert 20 * S < ended.t_ns < 25 * S


@pytest.mark.parametrize("reason", ["agent-lost", "rebooted", "expired"])
def test_other_ends_on_the_node_end_it(reason: str) -> None:
    trip = Trip().begin()
    end_on(trip, "a", reason)
    assert trip.finished().reason == reason


@pytest.mark.parametrize("reason", ["agent-lost", "rebooted", "expired"])
def test_of_a_pod_that_goes_they_are_the_pods_end_only(reason: str) -> None:
    """A drained node is booted again: the workload's next pod is hit all the same."""
    trip = Trip().begin()
    trip.drive.core.pod_leaving(trip.state, "u0")
    end_on(trip, "a", reason)
    trip.to(15)
    assert trip.state.life is Life.MOVING
    assert [left.reason for left in trip.drive.of(FaultLeft)] == [reason]
    trip.move(1, "b")
    assert trip.finished().by == "plan"


def test_a_remedy_ends_what_is_left_on_earlier_pods_too() -> None:
    trip = Trip().begin()
    trip.move(1, "b")
    trip.to(12)
    trip.drive.core.now = trip.drive.t
    trip.drive.perform(trip.drive.core.take_back(trip.state, "remedy fixed", "fixed"))
    trip.to(13)
    assert trip.armed() == {}
    assert trip.finished().reason == "remedied"


def test_a_dead_node_with_an_earlier_pod_holds_up_the_end_no_longer_than_its_lease() -> None:
    trip = Trip().begin()
    trip.move(1, "b")
    trip.to(12)
    trip.node("a").down = True
    trip.gone(0)
    trip.to(20)
    trip.drive.core.now = trip.drive.t
    trip.drive.perform(trip.drive.core.take_back(trip.state, "remedy fixed", "fixed"))
    trip.to(12 + 60 + 15)
    (ended,) = trip.drive.of(FaultEnded)
    assert ended.reason == "remedied"
    assert [left.reason for left in trip.drive.of(FaultLeft)] == ["unconfirmed"]


# --- before it is armed, other pods, caps ------------------------------------------------------


def test_before_its_start_it_goes_with_the_workload() -> None:
    trip = Trip(first=fault(20)).begin()
    trip.gone(0)
    trip.move(1, "b")
    trip.to(19)
    assert trip.armed() == {}
    trip.to(21)
    assert trip.armed() == {"b": 1}
    assert [a.node for a in trip.drive.of(FaultArmed)] == ["b"]
    trip.take_over()
    trip.to(22)
    assert trip.armed() == {"b": 1}
    assert trip.finished().by == "plan"
    assert trip.drive.of(FaultLeft) == []


def test_without_a_pod_at_its_start_it_is_refused() -> None:
    trip = Trip(first=fault(20)).begin()
    trip.gone(0)
    trip.to(21)
    assert trip.drive.ends() == {"f": "refused"}


def test_a_pod_that_is_replaced_while_the_first_answer_is_awaited() -> None:
    trip = Trip().begin(1)
    trip.to(1.001)
    assert trip.state.life is Life.APPLYING
    trip.move(1, "b")
    trip.gone(0)
    trip.to(2)
    assert trip.armed() == {"b": 1}
    trip.finished()


def test_a_whole_group_is_one_at_the_first_arming_only() -> None:
    other = item("g", 1, 100, "c", whole="w", group="w", group_type="pods")
    trip = Trip(other, first=fault(whole="w", group="w", group_type="pods")).begin()
    trip.node("b").refuse = Refused("no")
    trip.gone(0)
    trip.move(1, "b")
    trip.to(30)
    assert trip.armed() == {"c": 1}
    assert "group-incomplete" not in trip.drive.events()
    trip.finished()


def test_a_move_keeps_the_cap_on_nodes() -> None:
    other = item("g", 1, 100, "c")
    trip = Trip(other, max_nodes=2).begin()
    trip.move(1, "b")
    trip.to(12)
    assert trip.armed() == {"b": 1, "c": 1}, "the old one makes room"
    assert trip.finished().by == "plan"


def test_what_would_go_over_the_cap_ends_and_says_so() -> None:
    others = [item("g", 1, 100, "a"), item("h", 1, 100, "c")]
    trip = Trip(*others, max_nodes=2).begin()
    trip.move(1, "b")
    trip.to(12)
    assert trip.armed() == {"a": 1, "c": 1}
    ended = next(e for e in trip.drive.of(FaultEnded) if e.fault == trip.first_id)
    assert (ended.reason, ended.by) == ("reverted", "caps.nodes")
    trip.finished()


def test_what_does_not_follow_elsewhere_ends_as_moved_away() -> None:
    trip = Trip().begin()
    trip.drive.perform(trip.drive.core.moved_away(trip.state, "it is on node b now"))
    ended = trip.finished()
    assert (ended.reason, ended.by) == ("reverted", "moved away")


def test_a_volume_that_stays_keeps_its_fault() -> None:
    trip = Trip().begin()
    trip.drive.perform(trip.drive.core.keep(trip.state, trip.place(1, "a")))
    trip.gone(0)
    trip.to(12)
    assert trip.armed() == {"a": 1}
    assert [(m.armed, m.turn, m.uid) for m in trip.drive.of(FaultMoved)] == [(True, 0, "u1")]
    trip.take_over()
    trip.to(14)
    assert trip.state.travel.uid == "u1" and trip.state.life is Life.ARMED
    assert trip.armed() == {"a": 1}
    trip.finished()
    assert sum(trip.node("a").armings.values()) == 1


# --- take-over, and every order ------------------------------------------------------------------


@pytest.mark.parametrize("at", [10.0, 10.002, 10.02, 10.5, 12.0])
@pytest.mark.parametrize("lost", [True, False])
def test_killed_at_each_point_of_a_move_it_is_taken_over_where_it_is(at: float, lost: bool) -> None:
    trip = Trip().begin()
    trip.node("b").lose_replies = {1} if lost else set()
    trip.gone(0)
    trip.to(10.001)
    trip.move(1, "b")
    trip.to(at)
    trip.take_over(1)
    trip.to(at + 8)
    assert trip.armed() == {"b": 1}
    assert trip.state.item.turn == 1
    assert trip.finished().by == "plan"


def test_a_take_over_while_it_waits_waits_on() -> None:
    trip = Trip().begin()
    trip.gone(0)
    trip.to(12)
    trip.take_over(5)
    trip.to(20)
    assert trip.armed() == {} and trip.state.life is Life.MOVING
    assert trip.drive.of(FaultEnded) == []
    trip.move(2, "c")
    trip.to(21)
    assert trip.armed() == {"c": 1}
    trip.finished()


STEPS = st.one_of(
    st.tuples(st.just("move"), st.sampled_from("abc"), st.booleans()),
    st.tuples(st.just("gone"), st.integers(0, 6)),
    st.tuples(st.just("leaving"), st.integers(0, 6)),
    st.tuples(st.just("file"), st.sampled_from("abc")),
    st.tuples(st.just("down"), st.sampled_from("abc"), st.booleans()),
    st.tuples(st.just("lose"), st.sampled_from("abc")),
    st.tuples(st.just("break"), st.sampled_from("abc")),
    st.tuples(st.just("closed"), st.sampled_from("abc"), st.booleans()),
    st.tuples(st.just("kill"), st.sampled_from([0, 0.01, 3, 50])),
    st.tuples(st.just("pause"), st.booleans()),
    st.tuples(st.just("remedy")),
    st.tuples(st.just("wait"), st.sampled_from([0.003, 0.006, 0.2, 1.5, 7, 40])),
)


class Orders:
    """Carries out steps in any order, and knows which pods may have the fault."""

    def __init__(self) -> None:
        self.trip, self.number, self.gone = Trip().begin(0.5), 0, set[int]()

    def step(self, name: str, *args: Any) -> None:
        getattr(self, f"_{name}")(*args)

    def _move(self, node: str, gone_first: bool) -> None:
        if gone_first:
            self._gone(self.number)
        self.number += 1
        self.trip.move(self.number, node)

    def _gone(self, number: int) -> None:
        if number <= self.number:
            self.gone.add(number)
            self.trip.gone(number)

    def _leaving(self, number: int) -> None:
        core = self.trip.drive.core
        core.now = self.trip.drive.t
        self.trip.drive.perform(core.pod_leaving(self.trip.state, f"u{number}"))

    def _file(self, node: str) -> None:
        for name in sorted(self.trip.node(node).armed())[:1]:
            for word in ("file-gone", "remedied"):
                self.trip.node(node).say(name, word)
            self.trip.node(node).end(name, "remedied")

    def _down(self, node: str, down: bool) -> None:
        self.trip.node(node).down = down

    def _lose(self, node: str) -> None:
        self.trip.node(node).lose_replies.add(self.trip.node(node).writes + 1)

    def _break(self, node: str) -> None:
        at = self.trip.node(node)
        at.break_writes[at.writes + 1] = BackendError("it went wrong", "")

    def _closed(self, node: str, closed: bool) -> None:
        every = {f"/dev/p{n}" for n in range(9)}
        self.trip.node(node).closed = every if closed else set()

    def _kill(self, after_s: float) -> None:
        self.trip.take_over(after_s)
        self.trip.state.travel.uid = self.trip.state.travel.uid or ""
        for number in sorted(self.gone):
            self.trip.gone(number)

    def _pause(self, on: bool) -> None:
        drive = self.trip.drive
        drive.perform(command(drive.core, drive.t, "pause" if on else "resume")[1])

    def _remedy(self) -> None:
        drive = self.trip.drive
        drive.core.now = drive.t
        drive.perform(drive.core.take_back(self.trip.state, "remedy fixed", "fixed"))

    def _wait(self, seconds: float) -> None:
        drive = self.trip.drive
        drive.until(drive.t / S + seconds)


def check_places(orders: Orders) -> None:
    """With all nodes up for a while: armed on the newest pod and on such as are not gone yet."""
    trip = orders.trip
    for name in "abc":
        node = trip.node(name)
        node.down, node.closed, node.break_writes = False, set(), {}
    trip.drive.until(trip.drive.t / S + 16)
    core, state = trip.drive.core, trip.state
    assert state.life is not Life.MOVING or not state.travel.hunting, "it was hit by now"
    root = {core.id_of(state.item)} if state.life is Life.ARMED else set()
    kept = {core.id_of(old.item) for old in state.travel.remnants
            if int(old.travel.uid[1:] or -1) not in orders.gone}  # fmt: skip
    armed = {i for name in "abc" for i in trip.node(name).armed()}
    assert armed <= root | kept, (armed, root, kept)
    assert len(root) + len(kept) <= orders.number + 1
    if state.travel.uid and state.life is Life.ARMED:
        assert int(state.travel.uid[1:]) not in orders.gone


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=14))
def test_whatever_the_order_it_has_one_end_and_is_nowhere_after_it(
    steps: list[tuple[Any, ...]],
) -> None:
    orders = Orders()
    orders.trip.to(5)
    for step in steps:
        if not orders.trip.drive.core.finished:
            orders.step(*step)
    drive = orders.trip.drive
    orders._pause(False)
    if not drive.core.finished:
        check_places(orders)
    orders.trip.finished()
