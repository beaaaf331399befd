"""The agent at a bad moment: it stops, loses its guardian or a caller while faults are applied."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from agent_kit import NoWard, served, small_node
from core_kit import FakeKernel, HoldLink, SetValue, request

from controller.client import AgentAddress, AgentClient
from nodeagent import doctor
from nodeagent.agent import Agent, AgentConfig
from nodeagent.backends import Residue
from nodeagent.doctor import examine
from nodeagent.model.errors import BackendError, FaultError, Refused, UnknownFault, Unreachable
from nodeagent.model.plan import Lease
from nodeagent.model.steps import StepBase

LEASE = Lease()
FIRST, SECOND = SetValue(name="a", value="x"), SetValue(name="b", value="x")


class Gate:
    """Holds up one operation of the kernel until it is opened."""

    def __init__(self, kernel: FakeKernel, what: str) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        real = kernel.step

        def step(name: str) -> None:
            if name == what:
                self.reached.set()
                assert self.open.wait(20)
            real(name)

        kernel.step = step  # type: ignore[method-assign]


class Told(threading.Thread):
    """A call on a thread of its own, and what came of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.answer: Any = None
        self.error: FaultError | None = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._call()
        except FaultError as exc:
            self.error = exc

    def end(self) -> Any:
        self.join(20)
        assert not self.is_alive()
        return self.answer


def apply(agent: Agent, fault_id: str, *steps: Any) -> Any:
    asked = request(fault_id, *steps)
    return agent.apply(asked, LEASE, agent.plan(asked).digest)


def test_nothing_is_armed_behind_the_back_of_an_agent_that_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its guardian ends with it: whatever came later would stay for good."""
    with small_node(monkeypatch) as (home, kernel):
        agent = Agent(AgentConfig(state_dir=home / "state", modprobe=False))
        assert agent.start() == []
        before = kernel.fingerprint()
        apply(agent, "f-1", FIRST, HoldLink(name="l"))
        gate = Gate(kernel, "undo:a")
        closing = Told(agent.close)
        assert gate.reached.wait(20)
        late = Told(lambda: apply(agent, "f-2", SECOND))
        monkeypatch.setattr(NoWard, "stop", lambda self: late.join(20))
        time.sleep(0.3)  # it waits for its turn by now
        gate.open.set()
        assert closing.end() == []
        late.end()
        assert isinstance(late.error, Refused)
        assert "is stopping" in late.error.why
        assert kernel.fingerprint() == before


def test_what_is_being_applied_when_an_agent_stops_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with small_node(monkeypatch) as (home, kernel):
        agent = Agent(AgentConfig(state_dir=home / "state", modprobe=False))
        assert agent.start() == []
        before = kernel.fingerprint()
        gate = Gate(kernel, "observe:a")  # not in the journal yet
        under_way = Told(lambda: apply(agent, "f-1", FIRST))
        assert gate.reached.wait(20)
        closing = Told(agent.close)
        time.sleep(0.3)
        assert closing.is_alive()
        gate.open.set()
        assert closing.end() == []
        under_way.end()
        assert kernel.fingerprint() == before


def test_nothing_is_armed_after_the_guardian_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that waits for its turn was let in while there was one."""
    with served(monkeypatch) as node:
        before = node.kernel.fingerprint()
        gate = Gate(node.kernel, "apply:a")
        first = Told(lambda: apply(node.agent, "f-1", FIRST))
        assert gate.reached.wait(20)
        second = Told(lambda: apply(node.agent, "f-2", SECOND))
        time.sleep(0.3)
        node.agent.ward.pid = None  # type: ignore[misc]
        lost = Told(lambda: node.agent._guardian_lost("it does not start"))
        time.sleep(0.3)
        gate.open.set()
        for one in (first, second, lost):
            one.end()
        assert isinstance(second.error, Refused)
        assert node.kernel.fingerprint() == before
        assert node.client.faults(active_only=True) == []


def test_an_apply_that_nobody_waits_for_any_more_is_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its caller was told that there is no such fault, and would never take it back."""
    with served(monkeypatch) as node:
        gate = Gate(node.kernel, "apply:a")
        first = Told(lambda: apply(node.agent, "f-1", FIRST))
        assert gate.reached.wait(20)
        asked = request("f-2", SECOND)
        _, digest = node.client.plan(asked)
        with (
            AgentClient(AgentAddress(node.url), lambda seconds: 0.5) as hasty,
            pytest.raises(Unreachable, match="in time"),
        ):
            hasty.apply(asked, LEASE, digest)
        revert = Told(lambda: node.client.revert("f-2"))
        time.sleep(0.3)
        assert revert.is_alive()  # it may still come
        gate.open.set()
        assert first.end().state == "armed"
        revert.end()
        assert isinstance(revert.error, UnknownFault)
        with node.agent.executor.mutation():  # all that waited has had its turn
            assert node.agent.journal.find_fault("f-2") is None
        assert node.kernel.get("b") == "b0"


def test_who_is_patient_waits_for_an_answer_that_others_give_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with served(monkeypatch) as node:
        facts = node.agent.facts

        def late() -> object:
            time.sleep(1.0)
            return facts()

        monkeypatch.setattr(node.agent, "facts", late)
        for patience, answered in ((1.0, False), (50.0, True)):
            address = AgentAddress(node.url, patience=patience)
            with AgentClient(address, lambda seconds: seconds / 20) as client:
                if answered:
                    assert client.describe()
                else:
                    with pytest.raises(Unreachable, match="in time"):
                        client.describe()


def test_evidence_that_cannot_be_made_keeps_no_fault_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong with it: a counter that is no number, a bug."""
    with served(monkeypatch) as node:
        before = node.kernel.fingerprint()
        for fault_id, error in (("f-1", ValueError("no number")), ("f-2", KeyError("hits"))):
            apply(node.agent, fault_id, FIRST)
            node.kernel.fail["measure:a"] = [error]
            _, already, _ = node.agent.revert(fault_id)
            assert not already
            assert node.kernel.fingerprint() == before
            assert [e.type for e in node.agent.journal.events(fault_id=fault_id)][-3:] == [
                "evidence-lost",
                "reverting",
                "ended",
            ]


def no_events(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise BackendError("the journal cannot be written", "database or disk is full")

    monkeypatch.setattr(agent.journal, "event", full)


def test_a_full_disk_keeps_no_fault_that_an_operator_has_repaired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with served(monkeypatch) as node:
        before = node.kernel.fingerprint()
        apply(node.agent, "f-1", FIRST)
        no_events(node.agent, monkeypatch)
        fault, _, _ = node.agent.revert("f-1", "somebody set it right")
        assert fault.end_reason == "remedied"
        assert node.kernel.fingerprint() == before


def test_without_a_guardian_everything_is_reverted_on_a_full_disk_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with served(monkeypatch) as node:
        before = node.kernel.fingerprint()
        apply(node.agent, "f-1", FIRST)
        no_events(node.agent, monkeypatch)
        node.agent.ward.pid = None  # type: ignore[misc]
        node.agent._guardian_lost("it does not start")
        assert node.kernel.fingerprint() == before


@pytest.mark.parametrize("purge", [False, True])
def test_a_fault_that_is_armed_while_the_doctor_looks_is_no_residue(
    monkeypatch: pytest.MonkeyPatch, purge: bool
) -> None:
    """Two people at one node: one purges, the other injects."""
    with served(monkeypatch) as node:
        injected: list[Told] = []

        def find(node_id: str, claimed: Sequence[StepBase]) -> list[Residue]:
            if not injected:
                injected.append(Told(lambda: apply(node.agent, "f-1", FIRST)))
                injected[0].join(1.0)  # it may have to wait for its turn
            if node.kernel.get("a") == "a0" or FIRST in claimed:
                return []
            return [Residue("a", "it is x", lambda: node.kernel.put("a", "a0"))]

        monkeypatch.setattr(doctor, "load_scavengers", lambda: [find])
        found = examine(node.agent, purge=purge)
        assert injected[0].end().state == "armed"
        assert node.kernel.get("a") == "x"
        assert [one.what for one in found if one.severity == "residue"] == []


def test_residue_is_told_and_goes_when_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(monkeypatch) as node:

        def find(node_id: str, claimed: Sequence[StepBase]) -> list[Residue]:
            if node.kernel.get("a") == "a0":
                return []
            return [Residue("a", "it is x", lambda: node.kernel.put("a", "a0"))]

        monkeypatch.setattr(doctor, "load_scavengers", lambda: [find])
        node.kernel.put("a", "x")
        for purge, left in ((False, "x"), (True, "a0")):
            found = [one for one in examine(node.agent, purge=purge) if one.severity == "residue"]
            assert [(one.what, one.removed) for one in found] == [("a", purge)]
            assert node.kernel.get("a") == left


FULL = """
import os, pathlib, sys
import pytest
from agent_kit import *
from core_kit import *
home = pathlib.Path(sys.argv[1])
state = home / "small"
ballast = state / "ballast"

class Filled(FakeKernel):
    '''The way back of the fault on `a` frees the disk of the state directory.'''
    def put(self, name, value):
        super().put(name, value)
        if (name, value) == ("a", "a0"):
            ballast.unlink(missing_ok=True)

def fill():
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as exc:
            print("full", exc.errno, flush=True)

with pytest.MonkeyPatch.context() as patch, small_node(patch) as (_, kernel):
    kernel = Filled(home / "kernel.json")
    patch.setattr(agent_module, "load_backends", lambda runtime: core_kit.registry(kernel))
    agent = Agent(AgentConfig(state_dir=state / "state", modprobe=False))
    print("left", agent.start(), kernel.get("a"), ballast.exists(), flush=True)
    if sys.argv[2] == "inject":
        asked = request("f-1", SetOnDisk(name="a", value="x"))
        print(agent.apply(asked, Lease(), agent.plan(asked).digest).state.value)
        fill()
        os._exit(9)
    print([(f.id, f.state.value) for f in agent.journal.faults()], flush=True)
    agent.close()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_fault_that_fills_the_agents_own_disk_is_taken_back_by_the_next_one(
    tmp_path: Path,
) -> None:
    """Both agent and guardian are gone: the next agent has no room to take the node over."""
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", mount]).returncode:
        pytest.skip("tmpfs cannot be mounted here")
    FakeKernel(tmp_path / "kernel.json").put("a", "a0")
    argv = [sys.executable, "-c", FULL, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    try:
        first = subprocess.run([*argv, "inject"], capture_output=True, text=True, env=env)
        assert first.stdout.splitlines() == ["left [] a0 False", "armed", "full 28"]
        second = subprocess.run([*argv, "look"], capture_output=True, text=True, env=env)
    finally:
        subprocess.run(["umount", "-l", mount], check=True)
    assert second.stdout.splitlines() == ["left [] a0 False", "[('f-1', 'ended')]"], second.stderr
