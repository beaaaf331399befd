"""Judging what is over at once: a deleted pod leaves nothing armed, and may leave a mess."""

from __future__ import annotations

import pytest
from judging_kit import S, armed, clocks, ended, history, planned, samples, submission
from run_sim import item, plan_of

from controller.experiment import Experiment
from controller.metastable import Trigger, trigger_of
from controller.oracle import judge_fault
from controller.oracle_gone import gone
from controller.oracle_play import Pacing, control_plan
from controller.oracle_scene import Pace
from controller.oracle_spec import parse_oracle
from controller.records import FaultEnded
from nodeagent.model.errors import InvalidSpec

SPEC = parse_oracle({"hold": "30s", "cap": "300s", "require": {"type": "level", "probe": "orders"}})


@pytest.mark.parametrize(("health", "verdict"), [("pass", "pass"), ("fail", "fail")])
def test_what_it_left_is_judged(health: str, verdict: str) -> None:
    h = history([
        planned(), armed(60), ended(60, "done", "node"), *samples("orders", 0, 61),
        *samples("orders", 61, 80, "fail", reason="refused"),
        *samples("orders", 80, 200, health, reason=health), *clocks(0, 200),
        submission("mitigation", 100),
    ])  # fmt: skip
    found = judge_fault(h, h.injected()[0], {"repaired": SPEC}, {"orders": Pace(3 * S)})
    assert (found.verdict, found.ended_as, found.parts["gone"]) == (verdict, "done", "pass")
    assert found.repaired_ns is None, "nobody repaired it"


def test_a_trigger_that_is_over_at_once_is_verified_to_be_gone() -> None:
    record = ended(60, "done", "node")
    assert isinstance(record, FaultEnded)
    assert trigger_of([60 * S], [record], 1) == Trigger(60 * S, record.t_ns)
    h = history([planned(group="g", group_type="metastable"), armed(60), record])
    assert gone(h.injected()[0], None, 70 * S, 90 * S).verdict == "pass"


def test_there_is_no_negative_control_of_it() -> None:
    target = {"type": "pods", "selector": "app=x", "seed": "s"}
    plan = plan_of(item("a", 1, 5, node="cluster", kind="pod-kill", target=target))
    data = {"version": 1, "name": "x", "duration": "1m", "oracles": {"o": {"hold": "5s"}}}
    with pytest.raises(InvalidSpec, match="over at once"):
        control_plan(plan, Experiment.model_validate(data), Pacing(S))
