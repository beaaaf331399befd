"""Faults on several pods: armed all or not at all, whatever node says no, is away, or forgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_sim import Drive, S, SimFault, SimNode, item, plan_of

from controller.run_plan import PlanItem
from controller.run_recover import restore
from controller.run_state import FaultView
from nodeagent.model.errors import BackendError, Conflict, Unreachable

WHOLE = "f/pods"


def members(start: int = 10, end: int = 200) -> list[PlanItem]:
    return [
        item(f"f/{node}", start, end, node, group=WHOLE, group_type="pods", whole=WHOLE)
        for node in "abc"
    ]


def drive_of(*others: PlanItem) -> Drive:
    return Drive(plan_of(*members(), *others, end=300), lease=60)


def live(drive: Drive) -> set[str]:
    """Nodes that have the fault now."""
    for node in drive.nodes.values():
        node.expire()
    return {
        state.item.node
        for state in drive.core.order
        if state.item.whole
        for known in [drive.nodes[state.item.node].faults.get(state.id)]
        if known is not None and known.state == "armed"
    }


def take_over(drive: Drive, gone_s: float) -> None:
    records = list(drive.records)
    drive.t += int(gone_s * S)
    drive.fresh()
    drive.perform(restore(drive.core, records, records, drive.t))


def test_all_are_armed_at_once_and_end_together() -> None:
    drive = drive_of().run()
    assert set(drive.ends().values()) == {"reverted"} and set(drive.by().values()) == {"plan"}
    assert len(set(drive.armed().values())) == 1
    assert "group-incomplete" not in drive.events()


@pytest.mark.parametrize("refusing", ["a", "b", "c", "ab"])
def test_one_that_is_refused_takes_the_others_back(refusing: str) -> None:
    drive = drive_of(item("other", 1, 250, "a"))
    drive.begin().until(9)
    for node in refusing:
        drive.nodes[node].refuse = Conflict("another fault holds it", "why")
    drive.until(12)
    assert live(drive) == set()
    ends, by = drive.ends(), drive.by()
    for node in "abc":
        if node in refusing:
            assert ends[f"f/{node}"] == "refused"
        elif ends[f"f/{node}"] == "reverted":
            assert by[f"f/{node}"] == "group"
        else:
            assert ends[f"f/{node}"] == "group"
    drive.until(1000)
    assert drive.ends()["other"] == "reverted", "what does not belong to it goes on"


def test_a_node_that_is_away_is_waited_for_as_long_as_a_start_may_be_late() -> None:
    drive = drive_of()
    drive.nodes["b"].down = True
    drive.begin().until(25)
    assert live(drive) == {"a", "c"}, "its answer may only be lost: nothing is concluded yet"
    drive.nodes["b"].down = False
    drive.until(45)
    assert live(drive) == {"a", "b", "c"}
    drive.until(1000)
    assert set(drive.ends().values()) == {"reverted"}


def test_a_node_that_stays_away_too_long_takes_the_others_back() -> None:
    drive = drive_of()
    drive.nodes["b"].down = True
    drive.begin().until(60)
    drive.nodes["b"].down = False
    drive.until(80)
    assert live(drive) == set()
    assert drive.ends() == {"f/a": "reverted", "f/b": "unreachable", "f/c": "reverted"}
    assert set(drive.by().values()) == {"group"}


def test_an_answer_that_was_lost_is_an_armed_fault_and_the_group_is_whole() -> None:
    drive = drive_of()
    drive.nodes["b"].lose_replies = {1}
    drive.begin().until(30)
    assert live(drive) == {"a", "b", "c"}
    drive.armed_once()


def test_an_answer_that_comes_after_the_group_broke_is_taken_back_too() -> None:
    drive = drive_of()
    drive.nodes["a"].refuse = Conflict("no", "why")
    drive.nodes["c"].lose_replies = {1}
    drive.begin().until(30)
    assert live(drive) == set()
    assert drive.ends()["f/a"] == "refused"
    assert drive.by()["f/c"] == "group"
    drive.armed_once()


def test_a_member_that_ends_by_itself_ends_no_other() -> None:
    """An operator who replaces one pod of three has repaired one."""
    drive = drive_of().begin().until(30)
    state = next(s for s in drive.core.order if s.item.node == "b")
    drive.nodes["b"].end(state.id, "remedied")
    drive.until(60)
    assert live(drive) == {"a", "c"}
    drive.until(1000)
    assert drive.ends() == {"f/a": "reverted", "f/b": "remedied", "f/c": "reverted"}


def test_a_take_over_knows_that_the_group_is_broken() -> None:
    """The controller dies between the refusal's record and the way back of the others."""
    for failing in (False, True):
        drive = drive_of()
        if failing:
            drive.nodes["b"] = Failing(lambda drive=drive: drive.t)  # type: ignore[misc]
            drive.fresh()
        else:
            drive.nodes["b"].refuse = Conflict("no", "why")
        drive.core._timer_lacking = lambda key: []  # type: ignore[method-assign]
        drive.begin().until(10.02)
        assert "f/b" in drive.ends()
        assert "a" in live(drive)
        take_over(drive, 1)
        drive.until(40)
        assert live(drive) == set()
        drive.armed_once()


class Failing(SimNode):
    """The kernel says no in the middle of an arming; the node took it back."""

    def apply(self, request: Any, lease: Any, digest: str) -> FaultView:
        self.faults[request.id] = SimFault(0, 0, 0, "ended", "apply-failed")
        raise BackendError("the kernel said no", "why")


def test_one_that_fails_in_the_kernel_takes_the_others_back() -> None:
    drive = drive_of()
    drive.nodes["b"] = Failing(lambda: drive.t)
    drive.fresh()
    drive.begin().until(20)
    assert live(drive) == set()
    assert drive.ends() == {"f/a": "reverted", "f/b": "apply-failed", "f/c": "reverted"}


def test_a_limit_that_keeps_one_out_keeps_all_out() -> None:
    """The node that could take its part, as it has a fault already, is not touched."""
    drive = drive_of(item("other", 1, 250, "b"))
    drive.settings = {"max_nodes": 1}
    drive.fresh()
    drive.begin().until(20)
    assert live(drive) == set()
    assert drive.ends() == {"f/a": "limit", "f/b": "group", "f/c": "group"}
    assert sum(drive.nodes["b"].armings.values()) == 1


def test_what_was_not_sent_before_a_crash_is_dropped_with_those_that_were() -> None:
    drive = drive_of()
    drive.nodes["c"].break_writes = {1: Unreachable("gone")}
    drive.begin().until(10.001)
    take_over(drive, 35)
    drive.until(60)
    assert live(drive) in (set(), {"a", "b", "c"})
    drive.until(1000)
    assert len(drive.ends()) == 3


@dataclass(frozen=True)
class Trouble:
    """What is wrong with one node; seconds."""

    refuses: bool
    away_until: int
    lost: frozenset[int]


TROUBLE = st.builds(
    Trouble,
    st.booleans(),
    st.integers(0, 80),
    st.frozensets(st.integers(1, 4), max_size=2),
)


@settings(max_examples=200, deadline=None)
@given(
    troubles=st.lists(TROUBLE, min_size=3, max_size=3),
    crashes=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 200)), max_size=3),
)
def test_all_or_none_once_every_node_answers(
    troubles: list[Trouble], crashes: list[tuple[int, int]]
) -> None:
    drive = drive_of()
    for node, trouble in zip("abc", troubles, strict=True):
        drive.nodes[node].refuse = Conflict("no", "why") if trouble.refuses else None
        drive.nodes[node].lose_replies = set(trouble.lost)
    drive.begin()
    moments = sorted({0, *(t.away_until for t in troubles)})
    waits = list(crashes)
    for moment in [*moments, 150]:
        while drive.t < moment * S:
            wait, gone = waits.pop(0) if waits else (10**6, 0)
            drive.until(min(moment, drive.t / S + wait / 10))
            if drive.t < moment * S and not drive.core.finished:
                take_over(drive, min(gone / 10, moment - drive.t / S))
        for node, trouble in zip("abc", troubles, strict=True):
            drive.nodes[node].down = drive.t < trouble.away_until * S
    assert live(drive) in (set(), {"a", "b", "c"})
    drive.until(100_000)
    assert drive.core.finished and len(drive.ends()) == 3
    drive.armed_once()
    assert live(drive) == set()
