"""The way back: from a kill at every point, in any order, never over what is not ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from core_kit import AddPart, Core, FakeKernel, HoldLink, Look, SetOnDisk, SetValue
from crash_child import SCENARIOS

from nodeagent import revert as revert_module
from nodeagent.journal import Journal
from nodeagent.model.errors import BackendError, ForeignState, UnknownFault
from nodeagent.model.record import EndReason, FaultState, StepState

pytestmark = pytest.mark.usefixtures("registered")
SIGKILLED = -9


class Zygote:
    """The process that forks the children that die."""

    def __init__(self) -> None:
        here = Path(__file__).parent
        env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(here), str(here.parents[1])))}
        env.pop("FAULTD_CRASHPOINT", None)
        self._child = subprocess.Popen(
            [sys.executable, str(here / "crash_child.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            text=True,
        )

    def ask(self, act: str, name: str, home: Path, at: int = 0, log: Path | None = None) -> int:
        """The exit code of a child; a failure in it is a failure here."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        ask = {"act": act, "name": name, "home": str(home), "at": at, "log": str(log or "")}
        print(json.dumps(ask), file=self._child.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._child.stdout.readline())
        assert not answer["said"], answer["said"]
        code: int = answer["code"]
        return code

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(10)


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    found = Zygote()
    yield found
    found.close()


@pytest.fixture
def fast_tmp(tmp_path: Path) -> Iterator[Path]:
    """Memory where there is some: what a kill of a process leaves does not need a disk."""
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK):
        yield tmp_path
        return
    home = shm / f"faultctl-test-{os.getpid()}-{tmp_path.name}"
    home.mkdir(mode=0o700)
    yield home
    shutil.rmtree(home)


class Case:
    """A kernel, and what it looked like at first."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir()
        self.kernel = FakeKernel(home / "kernel.json")
        for name in ("a", "b", "c", "disk"):
            self.kernel.put(name, f"{name}0")
        self.before = self.kernel.fingerprint()

    def check_clean(self) -> None:
        assert self.kernel.fingerprint() == self.before
        journal = Journal(self.home / "state")
        for fault in journal.faults():
            assert fault.state is FaultState.ENDED, fault
            assert fault.end_reason is not None
            assert {row.state for row in journal.steps(fault.id)} <= {StepState.REVERTED}
        journal.close()


def crashpoints(zygote: Zygote, act: str, name: str, home: Path) -> int:
    """How many crashpoints it passes when it is not killed."""
    log = home / "crash.log"
    assert zygote.ask(act, name, home, log=log) == 0
    return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_from_a_kill_at_every_point_of_a_fault_everything_is_taken_back(
    zygote: Zygote, fast_tmp: Path, scenario: str
) -> None:
    count = crashpoints(zygote, "play", scenario, Case(fast_tmp / "whole").home)
    assert count > 15
    for at in range(1, count + 1):
        case = Case(fast_tmp / f"{at}")
        assert zygote.ask("play", scenario, case.home, at=at) == SIGKILLED
        how = ("guardian", "agent")[at % 2]
        assert zygote.ask("recover", how, case.home) == 0
        case.check_clean()


@pytest.mark.parametrize("scenario", ["overlapping", "change_step"])
def test_from_a_kill_at_every_point_of_the_way_back_it_is_taken_up_again(
    zygote: Zygote, fast_tmp: Path, scenario: str
) -> None:
    whole = crashpoints(zygote, "play", scenario, Case(fast_tmp / "whole").home)
    for at in range(7, whole + 1, 13):
        first = Case(fast_tmp / f"{at}")
        assert zygote.ask("play", scenario, first.home, at=at) == SIGKILLED
        saved = fast_tmp / f"{at}-saved"
        shutil.copytree(first.home, saved)
        back = crashpoints(zygote, "recover", "guardian", first.home)
        first.check_clean()
        for again in range(1, back + 1, 2):
            shutil.rmtree(first.home)
            shutil.copytree(saved, first.home)
            assert zygote.ask("recover", "guardian", first.home, at=again) == SIGKILLED
            assert zygote.ask("recover", "agent", first.home) == 0
            first.check_clean()


def test_after_a_reboot_only_what_survives_one_is_taken_back(
    zygote: Zygote, fast_tmp: Path
) -> None:
    count = crashpoints(zygote, "play", "apply_and_revert", Case(fast_tmp / "whole").home)
    for at in range(2, count + 1, 3):
        case = Case(fast_tmp / f"{at}")
        assert zygote.ask("play", "apply_and_revert", case.home, at=at) == SIGKILLED
        for name in ("a", "b"):
            case.kernel.put(name, f"{name}9")  # another boot, another state: not ours
        assert zygote.ask("recover", "reboot", case.home) == 0
        assert case.kernel.get("disk") == "disk0"
        assert (case.kernel.get("a"), case.kernel.get("b")) == ("a9", "b9")


def test_the_environment_kills_a_process_at_its_nth_point(fast_tmp: Path) -> None:
    script = "from nodeagent.crashpoint import crashpoint\nfor n in range(5): crashpoint(str(n))"
    log = fast_tmp / "log"
    env = {**os.environ, "FAULTD_CRASHPOINT": "3", "FAULTD_CRASHPOINT_LOG": str(log)}
    done = subprocess.run([sys.executable, "-c", script], env=env, timeout=60)
    assert done.returncode == SIGKILLED
    assert log.read_text() == "1 0\n2 1\n3 2\n"
    env["FAULTD_CRASHPOINT"] = "0"
    assert subprocess.run([sys.executable, "-c", script], env=env, timeout=60).returncode == 0


# --- twice, unknown, gone, foreign ---------------------------------------------------


def test_a_revert_twice_is_the_same_as_once(core: Core) -> None:
    before = core.kernel.fingerprint()
    core.apply("f-1", SetValue(name="a", value="x"))
    assert [r.result for r in core.executor.revert("f-1")] == ["reverted"]
    core.kernel.calls.clear()
    assert core.executor.revert("f-1") == []
    assert core.kernel.calls == []
    assert core.kernel.fingerprint() == before


def test_an_unknown_id_is_never_reverted(core: Core) -> None:
    with pytest.raises(UnknownFault):
        core.executor.revert("nobody")


def test_what_somebody_took_back_already_is_fine_and_said(core: Core) -> None:
    core.apply("f-1", SetValue(name="a", value="x"), SetValue(name="b", value="x"))
    core.kernel.put("a", "a0")
    core.kernel.put("b", None)  # the object itself is gone
    results = {r.index: r.result for r in core.executor.revert("f-1")}
    assert results == {0: "already", 1: "already"}
    assert core.state("f-1") == "ended"
    assert core.kernel.get("b") is None  # and not made again


def test_foreign_state_is_never_overwritten_and_the_rest_is_reverted(core: Core) -> None:
    steps = [SetValue(name=n, value="x") for n in ("a", "b", "c")]
    core.apply("f-1", *steps, HoldLink(name="l"))
    core.kernel.put("b", "somebody else's")
    with pytest.raises(ForeignState, match="step 1") as caught:
        core.executor.revert("f-1")
    assert "faultctl revert f-1" in caught.value.hint
    assert core.kernel.get("b") == "somebody else's"
    assert (core.kernel.get("a"), core.kernel.get("c"), core.kernel.link("l")) == ("a0", "c0", None)
    fault = core.journal.fault("f-1")
    assert fault.state is FaultState.REVERTING
    assert "neither" in fault.error
    core.kernel.put("b", "b0")  # a person put it right
    assert {r.result for r in core.executor.revert("f-1")} == {"already"}
    assert core.journal.fault("f-1").error == ""


def test_what_an_agent_that_a_reboot_ended_could_not_revert_ended_with_the_boot(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    core.apply("f-1", SetValue(name="a", value="x"))
    core.kernel.put("a", "somebody else's")
    with pytest.raises(ForeignState):
        core.executor.revert("f-1", EndReason.AGENT_LOST)
    monkeypatch.setattr(revert_module, "boot_id", lambda: "the next one")
    assert core.executor.recover() == []
    assert core.journal.fault("f-1").end_reason is EndReason.REBOOTED


def test_a_step_that_lies_about_its_undo_is_caught(core: Core) -> None:
    core.apply("f-1", SetValue(name="a", value="x"))

    class Deaf(FakeKernel):
        def put(self, name: str, value: object) -> None:
            pass

    core.kernel.__class__ = Deaf
    with pytest.raises(BackendError, match="read back after the undo"):
        core.executor.revert("f-1")
    assert core.state("f-1") == "reverting"


@pytest.mark.parametrize(
    "error", [OSError(5, "no"), BackendError("no"), KeyError("bug"), TypeError("bug")]
)
def test_a_step_that_fails_keeps_no_other_in_the_kernel(core: Core, error: Exception) -> None:
    core.apply("f-1", *[SetValue(name=n, value="x") for n in ("a", "b", "c")])
    core.kernel.fail["undo:b"] = [error]
    with pytest.raises(BackendError):
        core.executor.revert("f-1")
    assert [core.kernel.get(n) for n in ("a", "b", "c")] == ["a0", "x", "c0"]
    core.executor.revert("f-1")
    assert core.kernel.get("b") == "b0"


def test_a_fault_that_resists_keeps_no_other_in_the_kernel(core: Core) -> None:
    for name in ("a", "b", "c"):
        core.apply(f"f-{name}", SetValue(name=name, value="x"))
    core.kernel.put("b", "foreign")
    failed = core.executor.recover()
    assert [fault_id for fault_id, _ in failed] == ["f-b"]
    assert (core.kernel.get("a"), core.kernel.get("c")) == ("a0", "c0")


def test_a_step_that_this_agent_does_not_know_keeps_no_other_fault(core: Core) -> None:
    core.apply("f-1", SetValue(name="a", value="x"))
    core.apply("f-2", SetValue(name="b", value="x"))
    core.journal._db.execute(
        "UPDATE steps SET step=? WHERE fault_id='f-2'", ('{"op": "from_the_future"}',)
    )
    failed = core.executor.recover()
    assert [fault_id for fault_id, _ in failed] == ["f-2"]
    assert "from_the_future" in core.journal.fault("f-2").error
    assert core.kernel.get("a") == "a0"


# --- order --------------------------------------------------------------------------


def test_steps_are_undone_last_in_first_out_by_their_sequence_number(core: Core) -> None:
    steps = [SetValue(name=n, value="x") for n in ("c", "a", "b")]
    core.apply("f-1", *steps)
    core.kernel.calls.clear()
    core.executor.revert("f-1")
    undone = [c.split(":")[1] for c in core.kernel.calls if c.startswith("undo")]
    assert undone == ["b", "a", "c"]


def test_faults_are_taken_back_youngest_first_whatever_their_names_and_clocks(core: Core) -> None:
    for fault_id, name in (("zzz", "a"), ("aaa", "b"), ("mmm", "c")):
        core.apply(fault_id, SetValue(name=name, value="x"))
    core.journal.update_fault("zzz", created="2099-01-01T00:00:00Z")
    core.journal.update_fault("mmm", created="1970-01-01T00:00:00Z")
    core.kernel.calls.clear()
    assert core.executor.recover() == []
    undone = [c.split(":")[1] for c in core.kernel.calls if c.startswith("undo")]
    assert undone == ["c", "b", "a"]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_composed_faults_go_in_any_order(core: Core, order: tuple[int, ...]) -> None:
    before = core.kernel.fingerprint()
    for n in range(3):
        core.apply(f"f-{n}", AddPart(name="a", part=n), AddPart(name="b", part=n))
    left = {0, 1, 2}
    for n in order:
        core.executor.revert(f"f-{n}")
        left.remove(n)
        assert core.kernel.get("a") == "a0" + "".join(f"+{m}x" for m in sorted(left))
    assert core.kernel.fingerprint() == before


def test_a_step_whose_end_was_not_written_is_in_nobodys_way(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full for a moment; its fault has ended."""
    before = core.kernel.fingerprint()
    core.apply("f-1", SetValue(name="a", value="x"), AddPart(name="b", part=1))

    def full(*args: object) -> None:
        raise BackendError("the journal cannot be written", "database or disk is full")

    with monkeypatch.context() as disk:
        disk.setattr(core.journal, "set_step", full)
        core.executor.revert("f-1")
    assert core.state("f-1") == "ended"
    core.apply("f-2", SetValue(name="a", value="y"), AddPart(name="b", part=1))
    core.executor.revert("f-2")
    assert core.kernel.fingerprint() == before


def test_a_peer_that_was_cut_short_is_neither_armed_nor_in_the_way(core: Core) -> None:
    """`two` has its intent in the journal, and nothing of it is in the kernel."""
    before = core.kernel.fingerprint()
    core.apply("one", AddPart(name="a", part=1))
    core.apply("two", AddPart(name="a", part=2))
    core.journal._db.execute("UPDATE steps SET state='intent' WHERE fault_id='two'")
    core.journal._db.execute("UPDATE faults SET state='applying' WHERE id='two'")
    core.kernel.put("a", "a0+1x")
    core.executor.revert("one")
    assert core.kernel.get("a") == "a0"
    assert [r.result for r in core.executor.revert("two")] == ["already"]
    assert core.kernel.fingerprint() == before


# --- what the process holds, what outlives a boot ------------------------------------


def test_for_the_guardian_what_the_dead_agent_held_is_gone(core: Core) -> None:
    core.apply("f-1", HoldLink(name="l"), Look(name="a"))
    core.kernel.drop_links()
    assert core.guardian().revert_all(EndReason.AGENT_LOST, core.epoch) == []
    assert core.journal.fault("f-1").end_reason is EndReason.AGENT_LOST


def test_another_boot_ends_what_it_took_back_without_asking_the_kernel(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    core.kernel.put("disk", "disk0")
    core.apply("f-1", SetValue(name="a", value="x"), SetOnDisk(name="disk", value="y"))
    core.apply("f-2", AddPart(name="b", part=1))
    core.kernel.put("a", "of the new boot")
    core.kernel.put("b", "of the new boot")
    monkeypatch.setattr(revert_module, "boot_id", lambda: "another")
    assert core.executor.recover() == []
    assert core.kernel.get("disk") == "disk0"
    assert core.kernel.get("a") == core.kernel.get("b") == "of the new boot"
    assert {f.end_reason for f in core.journal.faults()} == {EndReason.REBOOTED}


def test_a_fault_of_another_boot_that_resists_is_no_peer_of_a_new_one(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    core.kernel.put("disk", "disk0")
    core.apply("old", AddPart(name="a", part=1), SetOnDisk(name="disk", value="y"))
    core.kernel.put("a", "of the new boot")
    core.kernel.put("disk", "foreign")
    core.journal.update_fault("old", boot_id="an older one")
    assert [fault_id for fault_id, _ in core.executor.recover()] == ["old"]
    core.journal._db.execute("UPDATE steps SET state='applied' WHERE idx=0")
    core.apply("new", AddPart(name="a", part=1))
    assert core.kernel.get("a") == "of the new boot+1x"
    core.executor.revert("new")
    assert core.kernel.get("a") == "of the new boot"


# --- why it ended --------------------------------------------------------------------


def test_the_first_cause_of_an_end_stands(core: Core) -> None:
    core.apply("f-1", SetValue(name="a", value="x"))
    core.kernel.fail["undo:a"] = [OSError(5, "no")]
    with pytest.raises(BackendError):
        core.executor.revert("f-1", EndReason.EXPIRED)
    core.executor.revert("f-1", EndReason.REVERTED)
    assert core.journal.fault("f-1").end_reason is EndReason.EXPIRED


def test_the_end_says_how_each_step_went(core: Core) -> None:
    core.apply("f-1", SetValue(name="a", value="x"), SetValue(name="b", value="x"))
    core.kernel.put("b", "b0")
    core.executor.revert("f-1")
    said = core.journal.events(fault_id="f-1")[-1]
    assert said.type == "ended"
    assert said.data["reason"] == "reverted"
    assert [(s["index"], s["result"]) for s in said.data["steps"]] == [
        (1, "already"),
        (0, "reverted"),
    ]
