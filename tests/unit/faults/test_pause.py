"""pause as data, and the turns of its pulse."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from cgroup_kit import NODE, VICTIM, plan

from nodeagent.backends.pulse import Pulse
from nodeagent.faults import kind_named
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.kind import Measured
from nodeagent.model.plan import FaultRequest, Plan
from nodeagent.model.planner import make_plan, parse_request
from nodeagent.model.process import PidScope, ProcessBinding

PROCESS = ProcessBinding(
    target="process 9 (db)", scope=PidScope(pid=9, start_ticks=5), comm="db", processes=1
)


def process_plan(spec: dict[str, Any], **more: Any) -> Plan:
    kind = kind_named("pause")
    request = FaultRequest.model_validate(
        {"id": "t-1", "kind": "pause", "target": {"type": "pid", "pid": 9}, "spec": spec, **more}
    )
    target, checked = parse_request(kind, request)
    return make_plan(kind, request, target, checked, PROCESS, NODE)


def test_a_cgroup_by_its_freezer_and_a_process_by_a_signal() -> None:
    made = plan("pause", {})
    assert made.mechanism == "cgroup-freezer"
    assert made.steps[0].summary() == "echo 1 > /sys/fs/cgroup/victim/cgroup.freeze"
    made = process_plan({"on": "2s", "off": "500ms"})
    assert made.mechanism == "sigstop"
    assert made.steps[0].model_dump()["on_ms"] == 2000
    assert made.steps[0].model_dump()["off_ms"] == 500
    assert "kill -STOP 9" in made.steps[0].summary()
    with pytest.raises(Refused, match="no freezer"):
        process_plan({}, mechanism="cgroup-freezer")


def test_what_stands_still_already_is_refused() -> None:
    with pytest.raises(Refused, match="frozen already"):
        plan("pause", {}, VICTIM.model_copy(update={"frozen": True}))


@pytest.mark.parametrize("spec", [{"on": "1s"}, {"off": "1s"}, {"on": "9ms", "off": "1s"}])
def test_turns_need_both_phases(spec: dict[str, str]) -> None:
    with pytest.raises(InvalidSpec):
        plan("pause", spec)


def test_evidence_counts_turns() -> None:
    step = plan("pause", {}).steps[0]
    found = kind_named("pause").evidence(None, (Measured(step, {"turns": 3, "paused": True}),))
    assert (found.hits, found.biting) == (3, True)
    assert not kind_named("pause").evidence(None, ()).biting


def test_a_pulse_alternates_and_is_silent_after_its_stop() -> None:
    seen: list[str] = []
    enough = threading.Event()

    def note(word: str) -> bool:
        seen.append(word)
        if len(seen) >= 5:
            enough.set()
        return True

    pulse = Pulse(lambda: note("on"), lambda: note("off"), (1, 1))
    assert enough.wait(10)
    pulse.stop()
    kept = list(seen)
    assert kept[:4] == ["off", "on", "off", "on"]
    assert pulse.turns == 1 + kept.count("on")
    assert not enough.wait(0) or seen == kept
    assert not pulse.running


@pytest.mark.parametrize("error", [None, OSError("gone")])
def test_a_pulse_ends_when_its_object_is_gone(error: OSError | None) -> None:
    called = threading.Event()

    def off() -> bool:
        called.set()
        if error is not None:
            raise error
        return False

    pulse = Pulse(lambda: True, off, (1, 1))
    assert called.wait(10)
    pulse._thread.join(10)
    assert not pulse.running
    pulse.stop()
