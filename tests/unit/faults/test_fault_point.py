"""fault-point's plans as data: what is written, in which order, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.faults import kind_named
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.evidence import IoRecord, ProcessEvent
from nodeagent.model.facts import Facts
from nodeagent.model.kind import Measured
from nodeagent.model.plan import FaultRequest, Plan
from nodeagent.model.planner import make_plan, parse_request
from nodeagent.model.process import PidScope, ProcessBinding
from nodeagent.model.steps.fault_point import FaultPointSet, FunctionFail, TaskFlag

POINTS = ("failslab", "fail_page_alloc", "fail_make_request", "fail_futex", "fail_function")
FACTS = Facts(
    node_id="n0", kernel_release="6.12.0", arch="x86_64", boot_id="b0", root=True,
    fault_points=(*POINTS, "fail-nth"),
)  # fmt: skip
BINDING = ProcessBinding(
    target="process 7 (x)", scope=PidScope(pid=7, start_ticks=9), comm="x", processes=1
)


def plan(spec: dict[str, Any], facts: Facts = FACTS, binding: ProcessBinding = BINDING) -> Plan:
    kind = kind_named("fault-point")
    target = {"type": "pid", "pid": 7}
    request = FaultRequest.model_validate(
        {"id": "f-1", "kind": kind.name, "target": target, "spec": spec}
    )
    return make_plan(kind, request, *parse_request(kind, request), binding, facts)


def test_nothing_fails_before_the_last_knob_is_written() -> None:
    flag, knobs = plan({"point": "failslab", "probability": 5, "times": 3}).steps
    assert flag == TaskFlag(file="make-it-fail", value=1, scope=PidScope(pid=7, start_ticks=9))
    assert isinstance(knobs, FaultPointSet)
    assert knobs.knobs[0] == ("task-filter", "Y")
    assert knobs.knobs[-1] == ("probability", "5")
    assert dict(knobs.knobs)["times"] == "3"
    assert dict(knobs.knobs)["ignore-gfp-wait"] == "N"


@pytest.mark.parametrize(
    ("spec", "own"),
    [
        ({"point": "failslab", "atomic": True}, {"ignore-gfp-wait": "Y"}),
        ({"point": "fail_page_alloc", "min_order": 2}, {"min-order": "2", "ignore-gfp-wait": "N"}),
        ({"point": "fail_futex"}, {"ignore-private": "N"}),
        ({"point": "fail_make_request", "on_device": "8:0"}, {}),
    ],
)
def test_each_point_has_its_own_knobs(spec: dict[str, Any], own: dict[str, str]) -> None:
    knobs = plan(spec).steps[-1]
    assert isinstance(knobs, FaultPointSet)
    general = {"task-filter", "verbose", "space", "interval", "times", "probability"}
    found = {name: value for name, value in knobs.knobs if name not in general}
    assert own.items() <= found.items()
    assert {name for name, _ in knobs.knobs} >= general


def test_a_function_and_the_nth_chance() -> None:
    spec = {"point": "fail_function", "function": "__x64_sys_read", "errno": "EIO"}
    _, function, _ = plan(spec).steps
    assert function == FunctionFail(function="__x64_sys_read", value=-5)
    *points, flag = plan({"point": "nth", "nth": 3}).steps
    assert flag.key() == "fail-nth:7:9"
    assert [step.key() for step in points] == [f"fault-point:{name}" for name in POINTS]
    for step in points:
        assert isinstance(step, FaultPointSet)
        knobs = dict(step.knobs)
        assert knobs.pop("times") == "-1"  # else a failure would count it down
        assert knobs == ({"ignore-gfp-wait": "N"} if step.point in POINTS[:2] else {})


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"point": "nth"}, "nth needs --nth"),
        ({"point": "fail_function", "function": "x"}, "needs --errno"),
        ({"point": "fail_make_request"}, "needs --on-device"),
        ({"point": "failslab", "on_device": "8:0"}, "takes no --on-device"),
        ({"point": "failslab", "errno": "EIO"}, "takes no --errno"),
        ({"point": "fail_futex", "atomic": True}, "nothing to do with --atomic"),
        ({"point": "failslab", "probability": 0}, "greater than or equal to 1"),
        ({"point": "failslab", "probability": 101}, "less than or equal to 100"),
        ({"point": "fail_function", "function": "../x", "errno": "EIO"}, "pattern"),
        ({"point": "fail_function", "function": "x", "errno": "EWHAT"}, "unknown errno"),
    ],
)
def test_bad_input(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        plan(spec)


def test_a_kernel_without_is_refused_by_name() -> None:
    stock = FACTS.model_copy(update={"fault_points": ()})
    for spec, words in (
        ({"point": "fail_futex"}, "CONFIG_FAIL_FUTEX"),
        ({"point": "nth", "nth": 1}, "CONFIG_FAULT_INJECTION"),
    ):
        with pytest.raises(Refused, match=words):
            plan(spec, stock)
    with pytest.raises(Refused, match="debugfs mounted on /sys/kernel/debug"):
        plan({"point": "failslab"}, stock)
    kubelet = BINDING.model_copy(update={"node_agents": ("kubelet (7)",)})
    with pytest.raises(Refused, match="guard rail"):
        plan({}, binding=kubelet)


@pytest.mark.parametrize("mode", ["integrity", "confidentiality"])
@pytest.mark.parametrize("spec", [{"point": "failslab"}, {"point": "nth", "nth": 1}])
def test_lockdown_keeps_the_knobs_shut(mode: str, spec: dict[str, Any]) -> None:
    locked = FACTS.model_copy(update={"lockdown": mode})
    with pytest.raises(Refused, match=f"lockdown is in {mode} mode"):
        plan(spec, locked)


def test_what_the_kernel_counted_is_the_evidence() -> None:
    kind = kind_named("fault-point")
    found = plan({"times": 10})
    data = ({"tasks": 4}, {"hits": 3})
    measured = tuple(map(Measured, found.steps, data))
    evidence = kind.evidence(kind.spec.model_validate({}), measured)
    assert (evidence.counted, evidence.hits) == (True, 3)
    assert "threads that were marked: 4" in evidence.statements
    ended = ProcessEvent(boottime_ns=1, pid=7, what="ended")
    reaction = kind.react(None, found.steps, ended)
    assert reaction is not None and reaction.remedied == "process 7 has ended"
    record = IoRecord(boottime_ns=1, device="8:0", sector=0, sectors=1, op="read", status=5)
    assert kind.react(None, found.steps, record) is None
