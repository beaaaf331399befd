"""The guardian: outlives the agent, reverts what it left, never arms, never touches a successor."""

from __future__ import annotations

import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import core_kit
import pytest
from agent_kit import served
from core_kit import AddPart, Core, FakeKernel, HoldLink, Look, SetSlowly, SetValue, request

from nodeagent import guardian as guardian_module
from nodeagent.backends import machine
from nodeagent.clock import lease_ns
from nodeagent.guardian import GRACE_NS, HUNG_NS, Guardian
from nodeagent.journal import Journal
from nodeagent.model.errors import Refused
from nodeagent.model.record import EndReason, FaultState
from nodeagent.statedir import open_state_dir
from nodeagent.ward import Ward

HERE = Path(__file__).parent

AGENT = """
import sys, pathlib, json
from core_kit import *
home = pathlib.Path(sys.argv[1])
with registered():
    core = Core(home, FakeKernel(home / "kernel.json"))
    for number, text in enumerate(sys.argv[2:]):
        core.apply(f"f-{number}", *[step_from_data(d) for d in json.loads(text)])
    print(core.epoch, flush=True)
    line = sys.stdin.readline()
    if line == "lock\\n":
        with core.lock.held():
            print("locked", flush=True)
            sys.stdin.readline()
"""


class Victim:
    """An agent's core in a process of its own, with armed faults."""

    def __init__(self, home: Path, *faults: list[Any]) -> None:
        texts = [json.dumps([s.model_dump(mode="json") for s in steps]) for steps in faults]
        self.child = subprocess.Popen(
            [sys.executable, "-c", AGENT, str(home), *texts],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parents[1]}"},
        )
        assert self.child.stdout is not None
        self.epoch = int(self.child.stdout.readline())
        self.pidfd = os.pidfd_open(self.child.pid)

    def lock(self) -> None:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        print("lock", file=self.child.stdin, flush=True)
        assert self.child.stdout.readline() == "locked\n"

    def stop(self) -> None:
        """As an agent that hangs."""
        self.child.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    def close(self) -> None:
        if self.child.poll() is None:
            self.kill()
        os.close(self.pidfd)


@pytest.fixture
def start(
    tmp_path: Path, kernel: FakeKernel, registered: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[Victim, Guardian]]]:
    victims: list[Victim] = []
    monkeypatch.setattr(guardian_module, "load_backends", lambda runtime: core_kit.registry(kernel))
    monkeypatch.setattr(guardian_module, "RETRY_S", (0.01, 0.02))
    monkeypatch.setattr(guardian_module, "LAST_RETRY_S", 0.02)

    def make(*faults: list[Any]) -> tuple[Victim, Guardian]:
        victims.append(Victim(tmp_path, *faults))
        return victims[-1], Guardian(tmp_path / "state", victims[-1].pidfd, victims[-1].epoch)

    yield make
    for victim in victims:
        victim.close()


def overdue(home: Path, by_ns: int) -> Journal:
    journal = Journal(home / "state")
    for fault in journal.faults(active_only=True):
        journal.update_fault(fault.id, lease_until_ns=lease_ns() - by_ns)
    return journal


def run(guardian: Guardian) -> None:
    """Until the agent is gone and everything is reverted."""
    read, write = os.pipe()
    try:
        guardian.run(read)
    finally:
        os.close(read)
        os.close(write)


def look(guardian: Guardian) -> None:
    """Once, as `run` does when a deadline has passed."""
    guardian._end_overdue()


STEPS = [SetValue(name="a", value="x"), AddPart(name="b", part=1), HoldLink(name="l")]


def test_when_the_agent_is_killed_everything_is_taken_back(
    start: Any, tmp_path: Path, kernel: FakeKernel
) -> None:
    before = kernel.fingerprint()
    victim, guardian = start(STEPS, [AddPart(name="b", part=2)])
    assert kernel.fingerprint() != before
    victim.kill()
    began = time.monotonic()
    run(guardian)
    assert time.monotonic() - began < 10
    assert kernel.fingerprint() == before
    faults = Journal(tmp_path / "state").faults()
    assert {(f.state, f.end_reason) for f in faults} == {("ended", EndReason.AGENT_LOST)}


def test_what_it_does_are_lines(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nodeagent")
    victim, guardian = start(STEPS, STEPS[:0])
    victim.kill()
    run(guardian)
    said = [(getattr(one, "fault", ""), one.message) for one in caplog.records]
    assert said == [
        ("", "the agent is gone: what it left armed is taken back"),
        ("f-1", "ended: agent-lost"),
        ("f-0", "ended: agent-lost"),
    ]


def test_a_takeover_of_what_is_overdue_is_a_line(
    start: Any, tmp_path: Path, kernel: FakeKernel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nodeagent")
    victim, guardian = start([SetValue(name="a", value="x")])
    victim.stop()
    overdue(tmp_path, 2 * GRACE_NS)
    kernel.fail["undo:a"] = [OSError(5, "no")]
    look(guardian)
    time.sleep(1.0)  # it does not try again at once
    look(guardian)
    assert [(one.levelname, getattr(one, "fault", ""), one.message) for one in caplog.records] == [
        ("WARNING", "f-0", "is overdue: the guardian takes it back"),
        ("ERROR", "f-0", "is overdue and not reverted yet"),
        ("WARNING", "f-0", "is overdue: the guardian takes it back"),
        ("INFO", "f-0", "ended: expired"),
    ]


def test_it_goes_on_until_nothing_is_left(start: Any, kernel: FakeKernel) -> None:
    before = kernel.fingerprint()
    victim, guardian = start(STEPS)
    kernel.fail["undo:a"] = [OSError(5, "no"), KeyError("a bug"), OSError(5, "no")]
    kernel.fail["status:b"] = [ValueError("a bug")]
    victim.kill()
    run(guardian)
    assert kernel.fingerprint() == before
    assert kernel.calls.count("undo:a") == 4


def test_it_does_not_hold_up_a_node_that_goes_down(
    start: Any, tmp_path: Path, kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "MARKS", tmp_path)
    victim, guardian = start([SetValue(name="a", value="x")], [SetValue(name="c", value="y")])
    (tmp_path / "node-down-f-0").touch()
    kernel.fail["undo:a"] = [OSError(5, "it is going down")] * 1000
    kernel.fail["undo:c"] = [OSError(5, "no")] * 3  # another fault is still tried until it is gone
    victim.kill()
    run(guardian)
    assert kernel.calls.count("undo:c") == 4
    left = Journal(tmp_path / "state").faults(active_only=True)
    assert [fault.id for fault in left] == ["f-0"]


def test_what_resists_is_left_to_the_next_boot_once_systemd_shutdown_waits(
    start: Any, tmp_path: Path, kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed_over = [False] * 3 + [True]
    monkeypatch.setattr(
        guardian_module, "has_handed_over", lambda: handed_over.pop(0) if handed_over[:-1] else True
    )
    victim, guardian = start([SetValue(name="a", value="x")])
    kernel.fail["undo:a"] = [OSError(5, "no")] * 1000
    victim.kill()
    run(guardian)
    assert kernel.calls.count("undo:a") == 4
    (left,) = Journal(tmp_path / "state").faults(active_only=True)
    assert (left.state, left.end_reason) == ("reverting", EndReason.AGENT_LOST)


def test_a_journal_that_cannot_be_read_does_not_end_it(
    start: Any, kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kernel.fingerprint()
    victim, guardian = start(STEPS)
    victim.kill()
    real = guardian._reverter.revert_all
    errors: list[Exception] = [sqlite3.OperationalError("disk I/O error"), MemoryError("none")]

    def failing(*args: Any) -> Any:
        if errors:
            raise errors.pop(0)
        return real(*args)

    monkeypatch.setattr(guardian._reverter, "revert_all", failing)
    run(guardian)
    assert errors == []
    assert kernel.fingerprint() == before


def test_it_leaves_a_living_agent_alone(start: Any, tmp_path: Path, kernel: FakeKernel) -> None:
    victim, guardian = start(STEPS)
    armed = kernel.fingerprint()
    look(guardian)
    journal = overdue(tmp_path, GRACE_NS // 2)
    look(guardian)
    assert kernel.fingerprint() == armed
    assert [f.state for f in journal.faults()] == ["armed"]
    assert victim.child.poll() is None


def test_of_an_agent_that_hangs_it_takes_back_what_is_overdue(
    start: Any, tmp_path: Path, kernel: FakeKernel
) -> None:
    before = kernel.fingerprint()
    victim, guardian = start([SetValue(name="a", value="x"), Look(name="a")])
    victim.stop()
    journal = overdue(tmp_path, GRACE_NS + 10**9)
    look(guardian)
    assert kernel.fingerprint() == before
    assert journal.faults()[0].end_reason is EndReason.EXPIRED
    assert victim.child.poll() is None  # there was no need to end it


def test_what_only_goes_with_the_agent_goes_with_the_agent(
    start: Any, tmp_path: Path, kernel: FakeKernel
) -> None:
    """Else it would be called reverted while it is still there."""
    before = kernel.fingerprint()
    victim, guardian = start(
        [HoldLink(name="l"), SetValue(name="a", value="x")], [SetValue(name="b", value="x")]
    )
    victim.stop()
    journal = overdue(tmp_path, GRACE_NS + 10**9)
    look(guardian)
    assert victim.child.wait(10) == -signal.SIGKILL
    run(guardian)
    assert kernel.fingerprint() == before
    assert {f.state for f in journal.faults()} == {"ended"}


def test_an_agent_that_ends_while_it_is_being_ended_is_cleaned_up_after(
    start: Any, tmp_path: Path, kernel: FakeKernel
) -> None:
    before = kernel.fingerprint()
    victim, guardian = start([HoldLink(name="l"), SetValue(name="a", value="x")])
    victim.stop()
    overdue(tmp_path, GRACE_NS + 10**9)
    victim.child.kill()
    victim.child.wait(10)
    look(guardian)
    run(guardian)
    assert kernel.fingerprint() == before


def test_an_agent_that_hangs_with_the_lock_is_ended_when_it_is_long_overdue(
    start: Any, tmp_path: Path, kernel: FakeKernel
) -> None:
    before = kernel.fingerprint()
    victim, guardian = start([SetValue(name="a", value="x")])
    victim.lock()
    victim.stop()
    overdue(tmp_path, GRACE_NS + 10**9)
    look(guardian)
    assert victim.child.poll() is None  # a slow mutation may be under way
    overdue(tmp_path, HUNG_NS + 10**9)
    look(guardian)
    assert victim.child.wait(10) == -signal.SIGKILL
    run(guardian)
    assert kernel.fingerprint() == before


def test_a_fault_that_resists_is_no_reason_to_end_the_agent(
    start: Any, tmp_path: Path, kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guardian_module.time, "sleep", lambda s: None)
    victim, guardian = start([SetValue(name="a", value="x")])
    kernel.put("a", "foreign")
    overdue(tmp_path, HUNG_NS + 10**9)
    look(guardian)
    assert victim.child.poll() is None
    assert kernel.get("a") == "foreign"


def test_a_fault_that_resists_is_tried_ever_less_and_never_with_the_lock_kept(
    start: Any, tmp_path: Path, kernel: FakeKernel
) -> None:
    """It is for a person by then; others' mutations must not wait for it."""
    _, guardian = start([SetValue(name="a", value="x")], [SetValue(name="b", value="x")])
    kernel.put("a", "foreign")
    kernel.put("b", "foreign")
    overdue(tmp_path, HUNG_NS + 10**9)
    began = time.monotonic()
    for _ in range(3):
        look(guardian)
    assert time.monotonic() - began < 0.9
    assert (kernel.calls.count("status:a"), kernel.calls.count("status:b")) == (1, 1)
    time.sleep(1.0)
    look(guardian)
    assert (kernel.calls.count("status:a"), kernel.calls.count("status:b")) == (2, 2)
    assert (guardian._until_overdue_ms() or 0) > 1000


def test_a_fault_that_cannot_be_read_keeps_no_other_alive(
    start: Any, tmp_path: Path, kernel: FakeKernel
) -> None:
    victim, guardian = start([SetValue(name="a", value="x")], [SetValue(name="b", value="x")])
    victim.stop()
    journal = overdue(tmp_path, GRACE_NS + 10**9)
    journal._db.execute(
        "UPDATE steps SET step = '{\"op\": \"of-tomorrow\"}' WHERE fault_id = 'f-1'"
    )
    look(guardian)
    assert kernel.get("a") == "a0"


def test_word_from_the_owner_while_it_waits_for_the_lock_counts(
    start: Any, tmp_path: Path, kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, guardian = start([SetValue(name="a", value="x")], [HoldLink(name="l")])
    armed = kernel.fingerprint()
    journal = overdue(tmp_path, HUNG_NS + 10**9)
    real = guardian._lock.held

    def renewed(**more: Any) -> Any:
        for fault in journal.faults():
            journal.update_fault(fault.id, lease_until_ns=lease_ns() + 10**10)
        return real(**more)

    monkeypatch.setattr(guardian._lock, "held", renewed)
    look(guardian)
    assert kernel.fingerprint() == armed
    assert victim.child.poll() is None


def test_a_slow_mutation_of_one_fault_is_no_hang_for_another(
    start: Any, tmp_path: Path, kernel: FakeKernel
) -> None:
    """A unit may take minutes to start; the agent that waits for it holds the lock."""
    victim, guardian = start([SetSlowly(name="a", value="x")], [SetValue(name="b", value="x")])
    victim.lock()
    journal = overdue(tmp_path, HUNG_NS + 10**9)
    journal.set_state("f-0", FaultState.REVERTING)
    look(guardian)
    assert victim.child.poll() is None
    overdue(tmp_path, HUNG_NS + 61 * 10**9)
    look(guardian)
    assert victim.child.wait(10) == -signal.SIGKILL


def test_it_never_touches_the_faults_of_a_successor(
    start: Any, tmp_path: Path, kernel: FakeKernel
) -> None:
    victim, guardian = start([SetValue(name="a", value="x")])
    victim.kill()
    successor = Core(tmp_path, kernel)
    successor.apply("new", SetValue(name="c", value="x"))
    run(guardian)
    assert (kernel.get("a"), kernel.get("c")) == ("a0", "x")
    assert successor.state("new") == "armed"
    overdue(tmp_path, HUNG_NS * 2)
    look(guardian)
    assert successor.state("new") == "armed"
    successor.close()


def test_two_that_revert_at_once_take_turns(start: Any, tmp_path: Path, kernel: FakeKernel) -> None:
    before = kernel.fingerprint()
    victim, guardian = start(STEPS, [AddPart(name="b", part=2)], [SetValue(name="c", value="x")])
    victim.kill()
    thread = threading.Thread(target=run, args=(guardian,))
    thread.start()
    successor = Core(tmp_path, FakeKernel(tmp_path / "kernel.json"))
    assert successor.executor.recover() == []
    thread.join(20)
    assert not thread.is_alive()
    assert kernel.fingerprint() == before
    ends = [e for e in successor.journal.events() if e.type == "ended"]
    assert len(ends) == 3
    successor.close()


# --- the agent's side -----------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path) -> Path:
    found = open_state_dir(tmp_path / "state")
    journal = Journal(found)
    journal.next_epoch()
    journal.close()
    return found


def until(done: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.02)


def test_the_ward_starts_a_guardian_and_another_one_when_it_dies(state: Path) -> None:
    losses: list[str] = []
    ward = Ward(state, 1, losses.append)
    ward.begin()
    ward.start()
    try:
        first = ward.pid
        assert first is not None
        assert os.getsid(first) != os.getsid(0)
        ward.poke()
        os.kill(first, signal.SIGKILL)
        for _ in range(50):
            ward.poke()  # into nothing, and never into another file
        until(lambda: bool(losses))
        assert "was started again" in losses[0]
        second = ward.pid
        assert second is not None
        assert second != first
        ward.poke()
        os.kill(second, signal.SIGTERM)  # a terminal's or a supervisor's: not for it
        time.sleep(0.1)
        assert ward.pid == second
    finally:
        ward.stop()
    assert ward.pid is None
    assert (state / "guardian.log").stat().st_mode & 0o777 == 0o600


def test_an_agent_that_died_before_its_guardian_was_ready_is_cleaned_up_after(state: Path) -> None:
    agent = subprocess.Popen(["sleep", "60"])
    pidfd = os.pidfd_open(agent.pid)
    agent.kill()
    agent.wait()
    wake, ready = os.pipe(), os.pipe()
    os.close(ready[0])  # as it is when the agent is dead
    os.close(wake[1])
    numbers = ("--pidfd", str(pidfd), "--wake", str(wake[0]), "--ready", str(ready[1]))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "nodeagent.guardian",
            str(state),
            "--epoch",
            "1",
            *numbers,
            "--log-format",
            "json",
        ],
        pass_fds=(pidfd, wake[0], ready[1]),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert {line["component"] for line in lines} == {"guardian"}
    assert lines[-1]["message"] == "the agent is gone: what it left armed is taken back"
    for fd in (pidfd, wake[0], ready[1]):
        os.close(fd)


def test_a_log_that_is_a_link_is_refused(state: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (state / "guardian.log").symlink_to(tmp_path / "victim")
    with pytest.raises(Refused, match="symbolic link"):
        Ward(state, 1, print).begin()
    assert (tmp_path / "victim").read_text() == "precious"


def test_no_fault_is_armed_without_a_guardian(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(monkeypatch) as node:
        asked = request("f-1", SetValue(name="a", value="x"))
        _, digest = node.client.plan(asked)
        node.agent.ward.pid = None  # type: ignore[misc]
        with pytest.raises(Refused, match="without a guardian"):
            node.client.apply(asked, core_kit.Lease(), digest)
        assert node.kernel.get("a") == "a0"
        node.agent.ward.pid = 1  # type: ignore[misc]
