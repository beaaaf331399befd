"""reboot and panic as data, and a fuse that can be put out."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from nodeagent.backends import machine
from nodeagent.backends.machine import DownBackend
from nodeagent.faults import kind_named
from nodeagent.model.errors import BackendError, InvalidSpec, Refused
from nodeagent.model.facts import Facts
from nodeagent.model.kind import Measured
from nodeagent.model.machine import MachineBinding
from nodeagent.model.plan import FaultRequest, Plan
from nodeagent.model.planner import make_plan, parse_request
from nodeagent.model.steps import Status
from nodeagent.model.steps.machine import NodeDown

NODE = Facts(
    node_id="n", kernel_release="6.12", arch="x86_64", boot_id="b", root=True, systemd=True,
    may_reboot=True,
)  # fmt: skip
BOUND = MachineBinding(target="the node", boot_id="b", panic_s=10, sysrq=True)


def plan(
    kind: str,
    spec: dict[str, Any],
    *known: str,
    binding: MachineBinding = BOUND,
    facts: Facts = NODE,
) -> Plan:
    found = kind_named(kind)
    request = FaultRequest.model_validate(
        {"id": "t-1", "kind": kind, "target": {"type": "node"}, "spec": spec, "acknowledge": known}
    )
    target, checked = parse_request(found, request)
    return make_plan(found, request, target, checked, binding, facts)


@pytest.mark.parametrize(
    ("kind", "spec", "summary"),
    [
        ("reboot", {}, "sleep 2; systemctl reboot"),
        (
            "reboot",
            {"how": "sudden", "after": "10s", "sync": True},
            "sleep 10; sync; echo b > /proc/sysrq-trigger",
        ),
        ("panic", {}, "sleep 2; echo c > /proc/sysrq-trigger"),
        (
            "panic",
            {"reboot_after": "5s"},
            "sleep 2; sysctl -w kernel.panic=5; echo c > /proc/sysrq-trigger",
        ),
    ],
)
def test_how_a_node_goes_down(kind: str, spec: dict[str, Any], summary: str) -> None:
    assert plan(kind, spec, kind).steps[0].summary() == summary


@pytest.mark.parametrize("kind", ["reboot", "panic"])
def test_only_with_its_name_and_only_where_the_agent_may(kind: str) -> None:
    with pytest.raises(Refused, match="and all that runs on"):
        plan(kind, {})
    with pytest.raises(Refused, match="without --allow-reboot"):
        plan(kind, {}, kind, facts=NODE.model_copy(update={"may_reboot": False}))


def test_a_node_that_would_stay_down_has_to_be_named_too() -> None:
    down = BOUND.model_copy(update={"panic_s": 0})
    with pytest.raises(Refused, match="stays down until somebody resets it"):
        plan("panic", {}, "panic", binding=down)
    assert plan("panic", {}, "panic", "stays-down", binding=down).guards == ("panic", "stays-down")
    assert plan("panic", {"reboot_after": "1s"}, "panic", binding=down).guards == ("panic",)
    kdump = down.model_copy(update={"crash_kernel": True})
    assert plan("panic", {}, "panic", binding=kdump).guards == ("panic",)


def test_without_systemd_only_a_sudden_one() -> None:
    bare = NODE.model_copy(update={"systemd": False})
    with pytest.raises(Refused, match="systemd does not run this node"):
        plan("reboot", {}, "reboot", facts=bare)
    assert plan("reboot", {"how": "sudden"}, "reboot", facts=bare).mechanism == "sysrq"


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("reboot", {"after": "100ms"}),
        ("reboot", {"after": "2h"}),
        ("reboot", {"sync": True}),
        ("panic", {"reboot_after": "1500ms"}),
        ("panic", {"reboot_after": "0s"}),
    ],
)
def test_what_makes_no_sense_is_refused(kind: str, spec: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec):
        plan(kind, spec, kind)


# --- the fuse ---------------------------------------------------------------------


@pytest.fixture
def acts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> threading.Event:
    acted = threading.Event()
    monkeypatch.setattr(machine, "MARKS", tmp_path / "run")
    monkeypatch.setattr(machine, "take_down", lambda step: acted.set())
    return acted


def test_a_revert_in_time_calls_it_off(acts: threading.Event) -> None:
    step, backend = NodeDown(how="orderly", delay_ms=300), DownBackend()
    prior = backend.observe("f", step, ())
    assert backend.status(step, prior, ()) is Status.PRIOR
    backend.apply("f", step, prior, ())
    backend.apply("f", step, prior, ())
    assert backend.status(step, prior, ()) is Status.OURS
    assert backend.measure("f", step, prior) == {"waiting": True, "failed": ""}
    backend.undo("f", step, prior, ())
    assert backend.status(step, prior, ()) is Status.PRIOR
    assert not acts.wait(0.6)


def test_a_node_that_goes_down_is_not_called_off_by_who_is_ended_first(
    acts: threading.Event,
) -> None:
    step, backend = NodeDown(how="orderly", delay_ms=1), DownBackend()
    prior = backend.observe("f-1", step, ())
    backend.apply("f-1", step, prior, ())
    assert acts.wait(10)
    for one in (backend, DownBackend()):  # the agent, and its guardian
        assert one.status(step, prior, ()) is Status.OURS
        with pytest.raises(BackendError, match="going down already"):
            one.undo("f-1", step, prior, ())
    assert backend.measure("f-1", step, prior) == {"waiting": False, "failed": ""}


def test_a_node_that_did_not_go_down_says_why(
    monkeypatch: pytest.MonkeyPatch, acts: threading.Event
) -> None:
    def fails(step: NodeDown) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(machine, "take_down", fails)
    step, backend = NodeDown(how="orderly", delay_ms=1), DownBackend()
    prior = backend.observe("f-1", step, ())
    backend.apply("f-1", step, prior, ())
    assert backend._fuse is not None
    backend._fuse._thread.join(10)
    data = backend.measure("f-1", step, prior)
    found = kind_named("reboot").evidence(None, (Measured(step, data),))
    assert not found.biting
    assert "Operation not permitted" in found.statements[0]
    backend.undo("f-1", step, prior, ())
    assert backend.status(step, prior, ()) is Status.PRIOR
