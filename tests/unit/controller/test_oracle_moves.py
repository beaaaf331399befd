"""Verdicts on faults that follow their workload: a pod that goes repairs nothing, a move may."""

from __future__ import annotations

from typing import Any

from judging_kit import (
    WALL,
    S,
    armed,
    clocks,
    ended,
    event,
    history,
    planned,
    sample,
    samples,
    submission,
)

from controller.oracle import FaultVerdict, judge_fault
from controller.oracle_history import History
from controller.oracle_scene import Pace
from controller.oracle_spec import OracleSpec, parse_oracle
from controller.records import AgentEvent, FaultLeft, FaultMoved, FaultWaits

GAPS = {name: Pace(3 * S) for name in ("orders", "hits")}
ORACLE = parse_oracle({"hold": "60s", "cap": "600s", "require": {"type": "level",
                                                                 "probe": "orders"}})  # fmt: skip
ROUTED = ORACLE.model_copy(update={"exposure": "hits"})


def moved(at: float, node: str, turn: int) -> FaultMoved:
    return FaultMoved(
        t_ns=int(at * S), wall=WALL, fault="x1", role="fault", node=node, armed=True, turn=turn,
        agent_fault=f"x1-{turn}", pod=f"shop/p{turn}", uid=f"u{turn}", target_name="t", target={},
    )  # fmt: skip


def waits(at: float) -> list[Any]:
    base: dict[str, Any] = {"t_ns": int(at * S), "wall": WALL, "fault": "x1", "role": "fault"}
    return [
        FaultLeft(**base, node="n1", turn=0, agent_fault="x1", reason="remedied"),
        FaultWaits(**base, node="n1", turn=1, why="the pod is gone"),
    ]


STEADY = [planned(), armed(60), *samples("orders", 0, 61), *samples("orders", 61, 100, "fail")]


def verdict(h: History, spec: OracleSpec = ORACLE) -> FaultVerdict:
    return judge_fault(h, h.injected()[0], {"repaired": spec}, GAPS)


def test_a_deleted_pod_whose_fault_waits_or_has_moved_repairs_nothing() -> None:
    healthy = [*samples("orders", 100, 300), submission("mitigation", 150)]
    for after in (waits(99), [*waits(99), moved(101, "n1", 1)]):
        found = verdict(history(*STEADY, *healthy, *clocks(0, 400), *after))
        assert found.verdict == "fail" and found.repaired_ns is None
        assert "still armed" in str(found.reasons)


def test_while_it_waits_nobody_can_say_that_nobody_is_exposed() -> None:
    unknown = [sample("hits", at, "unknown", reason="it waits") for at in range(61, 300)]
    healthy = [*samples("orders", 100, 300), submission("mitigation", 150)]
    h = history(*STEADY, *healthy, *clocks(0, 400), *waits(99), *unknown)
    assert verdict(h, ROUTED).verdict == "unknown"


def test_a_workload_that_went_where_the_fault_does_not_follow_was_routed_around() -> None:
    healthy = [*samples("orders", 100, 300), submission("mitigation", 150)]
    end = ended(100, "reverted", by="moved away")
    found = verdict(history(*STEADY, *healthy, *clocks(0, 400), end))
    assert (found.verdict, found.repaired_ns) == ("pass", 100 * S)
    late = [*samples("orders", 100, 300), submission("mitigation", 90)]
    assert verdict(history(*STEADY, *late, *clocks(0, 400), end)).verdict == "fail"
    by_run = ended(100, "reverted", by="stop")
    assert verdict(history(*STEADY, *healthy, *clocks(0, 400), by_run)).verdict == "fail"


def test_the_agent_that_must_live_is_the_one_where_the_fault_is() -> None:
    healthy = [*samples("orders", 100, 300), submission("mitigation", 150)]
    end = ended(140, "remedied", by="remedy moved").model_copy(
        update={"node": "n2", "agent_fault": "x1-1"})  # fmt: skip
    story = [*STEADY, *healthy, moved(100, "n2", 1), end]
    lost = event("node-lost", 120, "n1")
    there = history(*story, *clocks(0, 120), *clocks(0, 400, "n2"), lost)
    assert verdict(there).verdict == "pass"
    nobody = history(*story, *clocks(0, 400), *clocks(0, 120, "n2"), event("node-lost", 120, "n2"))
    assert verdict(nobody).verdict == "unknown"


def test_the_end_is_told_by_the_node_of_the_last_pod_alone() -> None:
    def told(at: int, node: str, agent_fault: str) -> AgentEvent:
        return AgentEvent(t_ns=at * S, wall=WALL, node=node, seq=at, fault="x1", name="ended",
                          agent_fault=agent_fault, node_ns=at * S, node_wall=WALL)  # fmt: skip

    end = ended(142, "remedied").model_copy(update={"node": "n2", "agent_fault": "x1-1"})
    words = [told(99, "n1", ""), moved(100, "n2", 1), told(140, "n2", "x1-1")]
    records: list[Any] = [*STEADY, *words, end, *clocks(0, 200), *clocks(0, 200, "n2")]
    (story,) = History.of(records, 0).injected()
    assert story.ended_ns == 140 * S
