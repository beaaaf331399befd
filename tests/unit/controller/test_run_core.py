"""The run's core on simulated nodes: every fault ends exactly once, for a stated reason."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_sim import MS, Drive, S, SimFault, SimNode, item, plan_of
from test_bundle import HEADER

from controller.experiment import GuardEntry, RemedyEntry
from controller.guards import Watch
from controller.recorder import Recorder
from controller.run import AT_ONCE, Runner
from controller.run_commands import COMMANDS, command
from controller.run_recover import restore
from controller.run_state import Apply
from nodeagent.model.errors import Conflict, FaultError, StalePlan, Unreachable


def test_faults_start_and_end_when_planned() -> None:
    drive = Drive(plan_of(item("f1", 1, 11), item("f2", 5, 20, node="b"))).run()
    assert drive.ends() == {"f1": "reverted", "f2": "reverted"}
    assert drive.by() == {"f1": "plan", "f2": "plan"}
    assert {k: v // MS for k, v in drive.armed().items()} == {"f1": 1005, "f2": 5005}
    drive.armed_once()


def test_nothing_happens_before_the_first_planned_instant() -> None:
    """CASES 129: no side effect before the first scheduled instant."""
    drive = Drive(plan_of(item("f1", 3600, 3700), end=4000)).begin().until(3599.9)
    assert drive.nodes["a"].writes == 0
    drive.until(3601)
    assert drive.nodes["a"].writes == 1


def test_permanent_error_is_never_retried() -> None:
    """CASES 131: an input error is final, at once, without a side effect."""
    drive = Drive(plan_of(item("f1", 1, 50)))
    drive.nodes["a"].refuse = Conflict("another fault holds it", "why")
    drive.begin().until(3)
    assert drive.ends() == {"f1": "refused"}
    assert drive.nodes["a"].calls["apply"] == 1
    assert drive.nodes["a"].faults == {}


def test_expired_before_start_when_nothing_is_left_of_its_life() -> None:
    """CASES 134: remaining time at or below zero injects nothing."""
    drive = Drive(plan_of(item("f1", 1, 2)))
    drive.begin().until(0.5)
    drive.t = 3 * S  # the controller slept
    drive.until(10)
    assert drive.ends() == {"f1": "expired-before-start"}
    assert drive.nodes["a"].armings == {}


def test_apply_that_outlasts_the_life_is_reverted_at_once() -> None:
    """CASES 134: duration 1 s, agent needs 2 s."""
    drive = Drive(plan_of(item("f1", 1, 2)), latency=2 * S).run()
    assert drive.ends() == {"f1": "reverted"}
    drive.armed_once()


@pytest.mark.parametrize("skew_ms", range(-3000, 3001, 500))
def test_expiry_on_the_node_near_the_end_is_the_planned_end(skew_ms: int) -> None:
    """CASES 135: for every skew of up to 3 s the fault ends by plan."""
    drive = Drive(plan_of(item("f1", 1, 20)), settings={"hard_margin_ns": 0})
    drive.nodes["a"].skew = skew_ms * MS
    drive.run()
    assert drive.by() == {"f1": "plan"}
    assert drive.ends()["f1"] in ("reverted", "expired")


def test_expiry_long_before_the_end_is_the_nodes_doing() -> None:
    drive = Drive(plan_of(item("f1", 1, 50))).begin().until(10)
    drive.nodes["a"].end(next(iter(drive.nodes["a"].faults)), "expired")
    drive.until(1000)
    assert drive.ends() == {"f1": "expired"}
    assert drive.by() == {"f1": "node"}


@pytest.mark.parametrize("lost", range(1, 7))
@pytest.mark.parametrize(
    "error", [None, Unreachable("gone"), FaultError("500"), StalePlan("changed")]
)
def test_exactly_one_fault_a_slot_whatever_answer_is_lost(
    lost: int, error: FaultError | None
) -> None:
    """CASES 130: a lost answer or an error at the k-th write never makes a second fault."""
    drive = Drive(plan_of(item("f1", 1, 10), item("f2", 2, 12), item("f3", 3, 14)))
    if error is None:
        drive.nodes["a"].lose_replies = {lost}
    else:
        drive.nodes["a"].break_writes = {lost: error}
    drive.run()
    drive.armed_once()
    assert len(drive.ends()) == 3
    assert all(f.state == "ended" for f in drive.nodes["a"].faults.values())


def test_lost_link_in_the_middle_expires_by_lease_and_is_known_when_it_is_back() -> None:
    drive = Drive(plan_of(item("f1", 1, 200), end=300), lease=20).begin().until(10)
    drive.nodes["a"].down = True
    drive.until(60)
    assert "node-lost" in drive.events()
    drive.nodes["a"].down = False
    drive.until(1000)
    assert drive.ends() == {"f1": "expired"}
    assert "node-back" in drive.events()
    drive.armed_once()


def test_short_loss_is_survived() -> None:
    drive = Drive(plan_of(item("f1", 1, 100), end=120), lease=30).begin().until(20)
    drive.nodes["a"].down = True
    drive.until(30)
    drive.nodes["a"].down = False
    drive.until(1000)
    assert drive.ends() == {"f1": "reverted"}
    assert drive.by() == {"f1": "plan"}


def test_node_that_never_comes_back_is_unconfirmed_and_the_run_ends() -> None:
    drive = Drive(plan_of(item("f1", 1, 50)), lease=20).begin().until(10)
    drive.nodes["a"].down = True
    drive.until(10_000)
    assert drive.core.finished
    assert drive.ends() == {"f1": "unconfirmed"}


def test_one_lost_node_holds_up_no_other() -> None:
    """CASES 29 of the schedule: others go on as planned."""
    drive = Drive(plan_of(item("f1", 1, 50), item("f2", 20, 30, node="b"))).begin().until(10)
    drive.nodes["a"].down = True
    drive.until(10_000)
    assert drive.ends()["f2"] == "reverted"
    assert drive.armed()["f2"] == 20 * S + 5 * MS


@pytest.mark.parametrize("pause_s", [1, 86_400, 400 * 86_400])
def test_resume_after_any_pause_starts_in_time_without_a_burst(pause_s: int) -> None:
    """CASES 127: 1 s, 1 day, 400 days; the next start comes within one period."""
    period, count = 180, 20
    plan = plan_of(
        *(item(f"f{n:02d}", n * period + 10, n * period + 100) for n in range(count)),
        end=period * count,
    )
    drive = Drive(plan).begin().until(200)
    assert command(drive.core, drive.t, "pause")[0] == "ok"
    drive.until(200 + pause_s)
    before = len(drive.armed())
    code, actions = command(drive.core, drive.t, "resume")
    drive.perform(actions)
    assert code == "ok"
    drive.until(200 + pause_s + period)
    assert len(drive.armed()) - before <= 1 + 1
    drive.until(10**10)
    starts = sorted(drive.armed().values())
    assert min(b - a for a, b in pairwise(starts)) >= (period - 1) * S
    assert set(drive.ends().values()) == {"reverted"}
    drive.armed_once()


@pytest.mark.parametrize("order", list(product(COMMANDS, repeat=4)))
@pytest.mark.parametrize("when", [None, 5.0, 59.0])
def test_all_command_orders_of_length_four_end_clean(
    order: tuple[str, ...], when: float | None
) -> None:
    """CASES 138: commands that make no sense are no-ops with a code, in any order."""
    drive = Drive(plan_of(item("f1", 1, 30), item("f2", 40, 50)))
    if when is not None:
        drive.begin().until(when)
    codes = []
    for name in order:
        code, actions = command(drive.core, drive.t, name)  # type: ignore[arg-type]
        drive.perform(actions)
        codes.append(code)
        drive.until(drive.t / S + 1)
    if when is None and "stop" not in order:
        assert set(codes) == {"not-started"}
        return
    code, actions = command(drive.core, drive.t, "stop")
    drive.perform(actions)
    drive.until(10_000)
    assert drive.core.finished
    assert len(drive.ends()) == 2
    drive.armed_once()
    assert all(f.state == "ended" for f in drive.nodes["a"].faults.values())
    for name in COMMANDS:
        before = len(drive.records)
        assert command(drive.core, drive.t, name) == ("ended", [])
        assert len(drive.records) == before


def test_stop_reverts_all_and_drops_the_rest() -> None:
    drive = Drive(plan_of(item("f1", 1, 50), item("f2", 2, 50), item("f3", 40, 50)))
    drive.begin().until(10)
    drive.perform(drive.core.stop(drive.t, "stop"))
    drive.until(20)
    assert drive.core.finished
    assert drive.ends() == {"f1": "reverted", "f2": "reverted", "f3": "stopped"}
    assert drive.by() == {"f1": "stop", "f2": "stop"}


def test_revert_error_is_retried_until_it_works() -> None:
    """CASES 43: a failed revert is never swallowed."""
    drive = Drive(plan_of(item("f1", 1, 10)))
    drive.nodes["a"].break_writes = {n: FaultError("busy") for n in range(2, 6)}
    drive.run()
    assert drive.ends() == {"f1": "reverted"}
    assert "revert-failed" in drive.events()


def test_late_start_is_dropped_beyond_the_limit_and_played_within_it() -> None:
    drive = Drive(plan_of(item("f1", 10, 100), item("f2", 50, 100), end=120), late=30)
    drive.begin().until(5)
    drive.t = 60 * S
    drive.until(1000)
    assert drive.ends() == {"f1": "late", "f2": "reverted"}


def test_a_node_that_is_back_after_the_limit_gets_no_start_any_more() -> None:
    """A start that got no answer is tried again, and a try is a start like any other."""
    drive = Drive(plan_of(item("f1", 10, 200), item("f2", 10, 200, "b"), end=250), late=30)
    drive.nodes["a"].down = drive.nodes["b"].down = True
    drive.begin().until(35)
    drive.nodes["a"].down = False
    drive.until(60)
    drive.nodes["b"].down = False
    drive.until(1000)
    assert drive.ends() == {"f1": "reverted", "f2": "late"}
    assert drive.nodes["b"].armings == {}


def test_what_arrived_in_time_lives_though_its_answer_comes_after_the_limit() -> None:
    drive = Drive(plan_of(item("f1", 10, 200), end=250), late=30)
    drive.nodes["a"].lose_replies = {1}
    drive.begin().until(10)
    drive.nodes["a"].down = True
    drive.until(60)
    drive.nodes["a"].down = False
    drive.nodes["a"].faults = {
        name: SimFault(fault.lease_ns, 300 * S, 300 * S)
        for name, fault in drive.nodes["a"].faults.items()
    }
    drive.until(1000)
    assert drive.ends() == {"f1": "reverted"}
    drive.armed_once()


def test_a_start_that_waits_for_its_turn_on_the_node_is_no_later_than_the_limit() -> None:
    drive = Drive(plan_of(item("f1", 10, 100), end=120), late=30)
    drive.begin().until(5)
    drive.t = 35 * S
    (start,) = [one for one in drive.core.tick(drive.t) if isinstance(one, Apply)]
    assert start.not_after <= 40 * S + 1


# --- guards, remedies ---------------------------------------------------------------------------


def _watch(drive: Drive, **remedies: RemedyEntry) -> Watch:
    guard = GuardEntry(probe="alive", failures=3)
    return Watch(drive.core, {"g": guard}, remedies)


def test_guard_ends_the_run_after_failures_in_a_row_and_not_before() -> None:
    drive = Drive(plan_of(item("f1", 1, 50))).begin().until(5)
    watch = _watch(drive)
    for verdict in ("fail", "fail", "pass", "fail", "fail", "unknown"):
        drive.perform(watch.sample(drive.t, "alive", verdict))  # type: ignore[arg-type]
    assert not drive.core.stopping
    drive.perform(watch.sample(drive.t, "alive", "fail"))
    drive.until(100)
    assert drive.by() == {"f1": "guard g"}


def test_remedy_ends_a_fault_as_remedied_only_when_its_probe_begins_to_pass() -> None:
    drive = Drive(plan_of(item("f1", 1, 50, remedies=("moved",)), item("f2", 1, 50)))
    drive.begin().until(5)
    watch = _watch(drive, moved=RemedyEntry(probe="marker", passes=2))
    for _ in range(5):
        drive.perform(watch.sample(drive.t, "marker", "pass"))
    assert not drive.of_ended()
    for verdict in ("fail", "pass", "pass"):
        drive.perform(watch.sample(drive.t, "marker", verdict))  # type: ignore[arg-type]
    drive.until(100)
    assert drive.ends() == {"f1": "remedied", "f2": "reverted"}
    assert drive.by()["f1"] == "remedy moved"


def test_correlated_faults_are_remedied_together() -> None:
    group = {"group": "g", "group_type": "correlated"}
    drive = Drive(plan_of(item("f1", 1, 50, **group), item("f2", 1, 50, node="b", **group)))
    drive.begin().until(5)
    drive.nodes["a"].end(drive.core.order[0].id, "remedied")
    drive.until(100)
    assert drive.ends() == {"f1": "remedied", "f2": "remedied"}


def test_remedied_expired_and_reverted_are_three_words() -> None:
    drive = Drive(plan_of(item("f1", 1, 50), item("f2", 1, 50), item("f3", 1, 50)))
    drive.begin().until(5)
    node = drive.nodes["a"]
    node.end(drive.core.order[0].id, "remedied")
    node.end(drive.core.order[1].id, "expired")
    drive.until(100)
    assert drive.ends() == {"f1": "remedied", "f2": "expired", "f3": "reverted"}


# --- take-over -------------------------------------------------------------------------------


def _crash_and_take_over(drive: Drive, gone_s: float) -> None:
    """The controller dies at once; what was on its way to nodes is done, what came back is lost."""
    records = list(drive.records)
    drive.t += int(gone_s * S)
    drive.fresh()
    drive.perform(restore(drive.core, records, records, drive.t))


@settings(max_examples=200, deadline=None)
@given(
    crashes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 600)), min_size=1, max_size=4),
    spans=st.lists(
        st.tuples(st.integers(0, 90), st.integers(1, 60), st.sampled_from("abc")),
        min_size=1,
        max_size=12,
    ),
    lost=st.sets(st.integers(1, 20), max_size=4),
)
def test_crashes_at_any_moment_never_inject_twice_and_end_all_once(
    crashes: list[tuple[int, int]], spans: list[tuple[int, int, str]], lost: set[int]
) -> None:
    items = [
        item(f"f{n}", start, start + life, node) for n, (start, life, node) in enumerate(spans)
    ]
    drive = Drive(plan_of(*items, end=160), lease=20)
    for node in drive.nodes.values():
        node.lose_replies = set(lost)
    drive.begin()
    for wait, gone in crashes:
        drive.until(drive.t / S + wait / 10)
        if not drive.core.finished:
            _crash_and_take_over(drive, gone / 10)
    drive.until(100_000)
    assert drive.core.finished
    assert len(drive.ends()) == len(items)
    drive.armed_once()
    for node in drive.nodes.values():
        node.expire()
        assert all(f.state == "ended" for f in node.faults.values())


def test_take_over_keeps_an_armed_fault_and_its_planned_end() -> None:
    drive = Drive(plan_of(item("f1", 1, 100), end=120), lease=60).begin().until(10)
    _crash_and_take_over(drive, 5)
    drive.until(10_000)
    assert drive.by() == {"f1": "plan"}
    assert drive.of_ended()[0].t_ns // S == 100
    drive.armed_once()


def test_take_over_after_a_pause_keeps_the_shift() -> None:
    drive = Drive(plan_of(item("f1", 50, 60), end=70)).begin().until(10)
    command(drive.core, drive.t, "pause")
    drive.until(110)
    drive.perform(command(drive.core, drive.t, "resume")[1])
    drive.until(120)
    _crash_and_take_over(drive, 1)
    drive.until(10_000)
    assert drive.armed()["f1"] // S == 150


def test_take_over_of_a_paused_run_stays_paused() -> None:
    drive = Drive(plan_of(item("f1", 50, 60), end=70)).begin().until(10)
    command(drive.core, drive.t, "pause")
    _crash_and_take_over(drive, 100)
    drive.until(1000)
    assert not drive.armed()
    drive.perform(command(drive.core, drive.t, "resume")[1])
    drive.until(10_000)
    assert drive.ends() == {"f1": "reverted"}


# --- caps, memory -------------------------------------------------------------------------------


def test_caps_hold_at_run_time_and_say_so() -> None:
    drive = Drive(
        plan_of(item("f1", 1, 50), item("f2", 2, 50, node="b"), item("f3", 3, 50)),
        settings={"max_nodes": 1, "max_faults": 2},
    ).run()
    assert drive.ends() == {"f1": "reverted", "f2": "limit", "f3": "reverted"}


def test_skipped_slots_do_not_pile_up_in_memory() -> None:
    """CASES 169: 10,000 slots that are all skipped leave one record each and nothing else."""
    items = [item(f"f{n:05d}", n + 1, n + 2) for n in range(10_000)]
    drive = Drive(plan_of(*items, end=10_001), late=0)
    drive.begin()
    drive.t = 20_000 * S
    drive.until(20_001)
    assert set(drive.ends().values()) == {"expired-before-start"}
    assert not list(drive.core.live())
    assert len(drive.core._timers) < 10


def test_open_calls_grow_with_nodes_not_with_faults() -> None:
    """CASES 170: the number of calls that look after 200 faults on one node is that of one."""

    def polls(faults: int) -> int:
        plan = plan_of(*(item(f"f{n:03d}", 1, 50) for n in range(faults)))
        drive = Drive(plan).run()
        return drive.nodes["a"].calls["events"]

    assert polls(200) <= polls(1) + 2


def test_noise_that_cannot_start_is_reported_as_missing() -> None:
    """CASES 137: the result says that noise was missing."""
    drive = Drive(plan_of(item("n1", 1, 10, role="noise")))
    drive.nodes["a"] = SimNode(lambda: drive.t, refuse=Conflict("no"))
    drive.fresh()
    drive.run()
    assert "noise-missing" in drive.events()


def test_no_result_is_lost_however_many_come_at_once(tmp_path: Path) -> None:
    """The loop takes what comes in by portions; each is handled, in order."""
    drive = Drive(plan_of(item("f1", 1, 2)))
    recorder = Recorder.create(tmp_path / "run", HEADER, b"", drive.plan)
    runner = Runner(drive.core, recorder, Watch(drive.core, {}, {}), 0)
    seen: list[str] = []
    runner._handle = seen.append  # type: ignore[assignment,method-assign,arg-type]
    wanted = [str(n) for n in range(5 * AT_ONCE)]
    for word in wanted:
        runner.interrupt(word)
    while len(seen) < len(wanted):
        before = len(seen)
        runner._take(0)
        assert len(seen) > before
    recorder.close()
    assert seen == wanted
