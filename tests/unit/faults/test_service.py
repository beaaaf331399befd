"""service as data: which mechanism does what, guards, evidence."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.faults import kind_named
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.facts import Facts
from nodeagent.model.kind import Measured
from nodeagent.model.plan import FaultRequest, Plan
from nodeagent.model.planner import make_plan, parse_request
from nodeagent.model.process import CgroupScope
from nodeagent.model.unit import UnitBinding

NODE = Facts(
    node_id="n", kernel_release="6.12", arch="x86_64", boot_id="b", root=True, systemd=True
)
WEB = UnitBinding(
    target="unit web.service",
    unit="web.service",
    scope=CgroupScope(id=9, level=2, path="/system.slice/web.service"),
    cpu_max="max 100000",
)


def plan(
    spec: dict[str, Any], binding: UnitBinding = WEB, facts: Facts = NODE, **more: Any
) -> Plan:
    kind = kind_named("service")
    request = FaultRequest.model_validate(
        {"id": "t-1", "kind": "service", "target": {"type": "unit", "unit": "web"}, **more}
        | {"spec": spec}
    )
    target, checked = parse_request(kind, request)
    return make_plan(kind, request, target, checked, binding, facts)


def with_(**values: Any) -> UnitBinding:
    return WEB.model_copy(update=values)


@pytest.mark.parametrize(
    ("spec", "mechanism", "summary"),
    [
        ({}, "systemctl", "systemctl stop web.service"),
        (
            {"action": "kill", "signal": "TERM", "every": "2s"},
            "systemctl",
            "systemctl kill --signal=TERM web.service, every 2000 ms",
        ),
        (
            {"action": "freeze"},
            "cgroup-freezer",
            "echo 1 > /sys/fs/cgroup/system.slice/web.service/cgroup.freeze",
        ),
        (
            {"action": "slow", "speed": "10%"},
            "cpu-max",
            "echo 10000 100000 > /sys/fs/cgroup/system.slice/web.service/cpu.max",
        ),
    ],
)
def test_each_action_by_its_mechanism(spec: dict[str, str], mechanism: str, summary: str) -> None:
    made = plan(spec)
    assert (made.mechanism, [step.summary() for step in made.steps]) == (mechanism, [summary])


def test_without_a_cpu_controller_it_is_slow_by_turns() -> None:
    made = plan({"action": "slow", "speed": "25%"}, with_(cpu_max=""))
    assert made.mechanism == "cgroup-freezer"
    assert made.steps[0].model_dump()["on_ms"] == 150
    assert made.steps[0].model_dump()["off_ms"] == 50
    assert "has not enabled the CPU controller" in made.rejected[1].reason


def test_a_tighter_limit_that_is_there_is_no_slowness() -> None:
    made = plan({"action": "slow", "speed": "50%"}, with_(cpu_max="20000 100000"))
    assert made.mechanism == "cgroup-freezer"
    assert plan({"action": "slow", "speed": "10%"}, with_(cpu_max="20000 100000")).mechanism == (
        "cpu-max"
    )


@pytest.mark.parametrize(
    "spec",
    [
        {"action": "stop", "every": "1s"},
        {"action": "freeze", "signal": "KILL"},
        {"action": "slow"},
        {"action": "kill", "every": "10ms"},
        {"action": "stop", "speed": "10%"},
        {"action": "slow", "speed": "0%"},
        {"action": "slow", "speed": "100%"},
        {"action": "kill", "signal": "STOP"},
    ],
)
def test_what_makes_no_sense_is_refused(spec: dict[str, str]) -> None:
    with pytest.raises(InvalidSpec):
        plan(spec)


def test_the_refusals_are_precise() -> None:
    with pytest.raises(Refused, match="systemd does not run this node"):
        plan({}, facts=NODE.model_copy(update={"systemd": False}))
    with pytest.raises(Refused, match="no process in a cgroup"):
        plan({"action": "freeze"}, with_(scope=None))
    with pytest.raises(Refused, match="frozen already"):
        plan({"action": "slow", "speed": "5%"}, with_(frozen=True))


def test_what_people_need_has_to_be_named() -> None:
    kubelet = with_(node_agents=("kubelet",), lifeline="people reach the node by it")
    with pytest.raises(Refused, match=r"kubelet.*people reach the node"):
        plan({}, kubelet)
    made = plan({}, kubelet, acknowledge=["node-agent", "lifeline"])
    assert made.guards == ("node-agent", "lifeline")


def test_a_unit_that_somebody_started_again_is_no_hit() -> None:
    evidence = kind_named("service").evidence
    step = plan({}).steps[0]
    found = evidence(None, (Measured(step, {"unit_state": "inactive", "with_it": ["web.socket"]}),))
    assert found.biting
    assert found.details["stopped_with_it"] == ["web.socket"]
    found = evidence(None, (Measured(step, {"unit_state": "active", "with_it": []}),))
    assert not found.biting
    assert "started again" in found.statements[0]
    data = {"unit_state": "failed", "sent": 3, "rounds": 5, "with_it": []}
    assert evidence(None, (Measured(step, data),)).counters == {
        "signals": 3, "down": 1, "rounds": 5,
    }  # fmt: skip
    assert not evidence(None, ()).biting
