"""kill as data, and its rounds against real processes of this test."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import Any

import pytest
from cgroup_kit import NODE, VICTIM, plan

from nodeagent.backends.signals import KillBackend
from nodeagent.bind.node import Node
from nodeagent.bind.process import start_ticks
from nodeagent.faults import kind_named
from nodeagent.faults.kill import NUMBERS
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.kind import Measured
from nodeagent.model.plan import FaultRequest, Plan
from nodeagent.model.planner import make_plan, parse_request
from nodeagent.model.process import PidScope, ProcessBinding
from nodeagent.model.steps import Status
from nodeagent.model.steps.process import ProcessKill


def process_plan(spec: dict[str, Any]) -> Plan:
    kind = kind_named("kill")
    request = FaultRequest.model_validate(
        {"id": "t-1", "kind": "kill", "target": {"type": "pid", "pid": 9}, "spec": spec}
    )
    target, checked = parse_request(kind, request)
    binding = ProcessBinding(
        target="process 9 (db)", scope=PidScope(pid=9, start_ticks=5), comm="db", processes=1
    )
    return make_plan(kind, request, target, checked, binding, NODE)


def test_signals_have_the_systems_numbers() -> None:
    assert {name: signal.Signals[f"SIG{name}"].value for name in NUMBERS} == NUMBERS


def test_what_is_planned() -> None:
    step = plan("kill", {"every": "30s", "whom": "one", "seed": 4}).steps[0]
    assert step.ephemeral
    assert "kill -KILL" in step.summary()
    assert "every 30000 ms" in step.summary()
    assert process_plan({"signal": "TERM", "every": "1s"}).steps[0].model_dump()["number"] == 15


@pytest.mark.parametrize("spec", [{"signal": "STOP"}, {"signal": "9"}, {"every": "99ms"}])
def test_no_spec(spec: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec):
        plan("kill", spec)


def test_refusals() -> None:
    with pytest.raises(Refused, match="dies once"):
        process_plan({"every": "1s"})
    with pytest.raises(Refused, match="one already"):
        process_plan({"whom": "one"})
    frozen = VICTIM.model_copy(update={"frozen": True})
    with pytest.raises(Refused, match="only KILL"):
        plan("kill", {"signal": "TERM"}, frozen)
    assert plan("kill", {}, frozen).steps
    with pytest.raises(Refused, match="guard rail"):
        plan("kill", {}, VICTIM.model_copy(update={"node_agents": ("containerd",)}))


def _step(child: subprocess.Popen[bytes], off: int = 0, **more: Any) -> ProcessKill:
    scope = PidScope(pid=child.pid, start_ticks=start_ticks(Node(), child.pid) + off)
    return ProcessKill(scope=scope, **({"number": 9, "name": "KILL"} | more))


def test_a_process_dies_of_it_once() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        step, backend = _step(child), KillBackend()
        prior = backend.observe("t", step, ())
        backend.apply("t", step, prior, ())
        assert child.wait(10) == -signal.SIGKILL
        assert backend.status(step, prior, ()) is Status.OURS
        data = backend.measure("t", step, prior)
        assert (data["sent"], data["processes"]) == (1, 0)
        assert "KILL to sleep" in data["last"][0]
        backend.undo("t", step, prior, ())
        assert backend.status(step, prior, ()) is Status.PRIOR
        assert kind_named("kill").evidence(None, (Measured(step, data),)).hits == 1


def test_a_later_process_with_the_same_pid_is_not_met() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        step, backend = _step(child, off=1), KillBackend()
        with pytest.raises(Refused, match="nothing to kill"):
            backend.observe("t", step, ())
        backend.apply("t", step, {}, ())
        assert child.poll() is None
        backend.undo("t", step, {}, ())
        child.kill()


def test_rounds_go_on_until_the_undo() -> None:
    with subprocess.Popen(["sh", "-c", "trap : USR1; while :; do sleep 0.01; done"]) as child:
        time.sleep(0.3)
        step, backend = _step(child, number=10, name="USR1", every_ms=20), KillBackend()
        backend.apply("t", step, {}, ())
        end = time.monotonic() + 20
        while backend.measure("t", step, {})["sent"] < 3:
            assert time.monotonic() < end
            time.sleep(0.01)
        killer = backend._killers[step.key()]
        backend.undo("t", step, {}, ())
        sent = killer.sent
        time.sleep(0.1)
        assert killer.sent == sent
        assert child.poll() is None
        child.kill()
