"""An operator who repairs and says so at once loses nothing to a slow node or controller."""

from __future__ import annotations

import pytest
from judging_kit import WALL, S, armed, clocks, ended, planned, samples, submission

from controller.oracle import judge_run
from controller.oracle_history import History
from controller.oracle_spec import parse_oracle
from controller.records import AgentEvent, AnyRecord, ClockOffset

ORIGIN = 1000 * S
AHEAD = 5000 * S
"""How much more the node's CLOCK_BOOTTIME has counted."""


def told(name: str, node_at: float, heard_at: float, **data: object) -> AgentEvent:
    return AgentEvent(
        t_ns=int(heard_at * S),
        wall=WALL,
        node="n1",
        seq=int(node_at),
        fault="x1",
        name=name,
        node_ns=ORIGIN + AHEAD + int(node_at * S),
        node_wall=WALL,
        data=data,
    )


def node_clocks() -> list[ClockOffset]:
    found = []
    for clock in clocks(0, 100):
        node_ns = ORIGIN + clock.t_ns + AHEAD
        found.append(clock.model_copy(update={"node_ns": node_ns, "offset_ns": AHEAD}))
    return found


def story(*more: AnyRecord, by: str = "remedy") -> History:
    records: list[AnyRecord] = [planned(), armed(10), ended(26, "remedied", by), *node_clocks()]
    records += [submission("mitigation", 21), *samples("orders", 20, 60), *more]
    return History.of(records, ORIGIN)


def verdict(history: History) -> str:
    return judge_run(history, {"o": parse_oracle({"hold": "10s"})}, {}).verdict


def act(at: float) -> dict[str, object]:
    return {"why": "every bad sector was rewritten", "act_ns": ORIGIN + AHEAD + int(at * S)}


def test_a_repair_counts_from_the_act_by_which_the_node_saw_it() -> None:
    """Written at 20.5 s, said at 21 s, seen by the node at 23 s, heard of at 26 s."""
    history = story(told("remedied", 23, 26, **act(20.5)), told("ended", 24, 26))
    (fault,) = history.injected()
    assert fault.remedied_ns == int(20.5 * S)
    assert fault.ended_ns == 23 * S
    assert verdict(history) == "pass"


def test_an_act_after_the_word_is_no_repair_of_before() -> None:
    assert verdict(story(told("remedied", 23, 26, **act(22.5)))) == "fail"


@pytest.mark.parametrize("data", [{}, {"act_ns": None}, {"act_ns": "soon"}])
def test_without_the_time_of_the_act_the_node_end_counts(data: dict[str, object]) -> None:
    history = story(told("remedied", 23, 26, **data))
    (fault,) = history.injected()
    assert fault.remedied_ns == 23 * S
    assert verdict(history) == "fail"


def test_the_time_of_an_act_is_never_before_its_fault_nor_after_its_end() -> None:
    for at, expected in ((5.0, 10 * S), (40.0, 26 * S)):
        (fault,) = story(told("remedied", 23, 26, **act(at))).injected()
        assert fault.remedied_ns == expected


def test_a_fault_that_ended_otherwise_has_no_act() -> None:
    records: list[AnyRecord] = [planned(), armed(10), ended(26, "expired"), *node_clocks()]
    history = History.of([*records, told("remedied", 23, 26, **act(20))], ORIGIN)
    assert history.injected()[0].remedied_ns is None
