"""Fault points on files: what is put back when a part has gone, and which threads count."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.backends import Runtime, fault_point
from nodeagent.backends.fault_point import (
    FaultPointBackend,
    FunctionFailBackend,
    TaskFlagBackend,
)
from nodeagent.bind.node import Node
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.process import PidScope
from nodeagent.model.steps import Status
from nodeagent.model.steps.fault_point import FaultPointSet, FunctionFail, TaskFlag

SCOPE = PidScope(pid=7, start_ticks=900)
REQUESTS = FaultPointSet(
    point="fail_make_request",
    knobs=(("task-filter", "Y"), ("times", "5"), ("probability", "100")),
    device=(8, 0),
)


@pytest.fixture
def debug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A debugfs with one fault point, and a disk."""
    folder, disk = tmp_path / "debug", tmp_path / "block/8:0"
    (folder / "fail_make_request").mkdir(parents=True)
    for name, value in (("task-filter", "N"), ("times", "1"), ("probability", "0")):
        (folder / "fail_make_request" / name).write_text(f"{value}\n")
    disk.mkdir(parents=True)
    (disk / "make-it-fail").write_text("0\n")
    monkeypatch.setattr(fault_point, "DEBUG", folder)
    monkeypatch.setattr(fault_point, "FUNCTIONS", folder / "fail_function")
    monkeypatch.setattr(fault_point, "BLOCK", tmp_path / "block")
    return folder


def knobs(debug: Path) -> dict[str, str]:
    return {p.name: p.read_text().strip() for p in (debug / "fail_make_request").iterdir()}


def test_the_knobs_are_put_back_although_the_disk_has_gone(debug: Path) -> None:
    backend, before = FaultPointBackend(), knobs(debug)
    prior = backend.observe("f-1", REQUESTS, ())
    backend.apply("f-1", REQUESTS, prior, ())
    assert knobs(debug)["probability"] == "100"
    disk = debug.parent / "block/8:0"
    (disk / "make-it-fail").unlink()
    disk.rmdir()
    assert backend.status(REQUESTS, prior, ()) is Status.OURS
    backend.undo("f-1", REQUESTS, prior, ())
    assert backend.status(REQUESTS, prior, ()) is Status.PRIOR
    assert knobs(debug) == before


def test_without_debugfs_nothing_is_called_reverted(debug: Path) -> None:
    backend = FaultPointBackend()
    prior = backend.observe("f-1", REQUESTS, ())
    backend.apply("f-1", REQUESTS, prior, ())
    debug.rename(debug.parent / "unmounted")
    with pytest.raises(BackendError, match="cannot be read back") as caught:
        backend.status(REQUESTS, prior, ())
    assert "mount -t debugfs" in caught.value.hint
    function = FunctionFail(function="__x64_sys_read", value=-5)
    with pytest.raises(BackendError, match="fail_function cannot be read back"):
        FunctionFailBackend().status(function, {"injected": False}, ())


def injectable(debug: Path, *lines: str) -> None:
    (debug / "error_injection").mkdir()
    (debug / "error_injection/list").write_text("".join(f"{line}\n" for line in lines))
    (debug / "fail_function").mkdir()


@pytest.mark.parametrize("kind", ["TRUE", "NULL"])
def test_a_function_that_returns_no_errno_is_refused(debug: Path, kind: str) -> None:
    injectable(debug, f"should_fail_alloc_page\t{kind}", "__x64_sys_read\tERRNO")
    step = FunctionFail(function="should_fail_alloc_page", value=-12)
    with pytest.raises(Refused, match=f"no errno: its type is {kind}"):
        FunctionFailBackend().observe("f-1", step, ())
    read = FunctionFail(function="__x64_sys_read", value=-5)
    assert FunctionFailBackend().observe("f-1", read, ()) == {"injected": False}


@pytest.mark.parametrize("value", ["0", "1", "ffffffffffffffea"])
def test_a_function_without_its_value_yet_is_ours_to_take_back(debug: Path, value: str) -> None:
    """What adjust_error_retval gives a fresh entry: a SIGKILL may come before ours is written."""
    injectable(debug, "f\tTRUE")
    (debug / "fail_function/f").mkdir()
    (debug / "fail_function/f/retval").write_text(value)
    step = FunctionFail(function="f", value=-12)
    assert FunctionFailBackend().status(step, {"injected": False}, ()) is Status.OURS


def process(proc: Path, pid: int, start: int, threads: tuple[int, ...], file: str) -> None:
    for tid in threads:
        folder = proc / str(pid) / "task" / str(tid)
        folder.mkdir(parents=True)
        (folder / file).write_text("0")
    fields = " ".join(["S", "1", *["0"] * 17, str(start), *["0"] * 10])
    (proc / str(pid) / "stat").write_text(f"{pid} (x) {fields}")


def on(proc: Path) -> TaskFlagBackend:
    backend = TaskFlagBackend(Runtime(proc, "n0"))
    backend._node = Node(proc=proc)
    return backend


def test_a_thread_born_since_is_no_hit_of_the_nth_chance(tmp_path: Path) -> None:
    process(tmp_path, 7, 900, (7, 8), "fail-nth")
    backend, step = on(tmp_path), TaskFlag(file="fail-nth", value=3, scope=SCOPE)
    backend.apply("f-1", step, backend.observe("f-1", step, ()), ())
    born = tmp_path / "7/task/9"  # fail-nth is not inherited
    born.mkdir()
    (born / "fail-nth").write_text("0")
    assert backend.measure("f-1", step, {}) == {"hits": 0, "tasks": 2}
    (tmp_path / "7/task/8/fail-nth").write_text("0")
    assert backend.measure("f-1", step, {}) == {"hits": 1, "tasks": 2}


def test_a_thread_born_of_a_marked_one_while_marks_are_taken_loses_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process(tmp_path, 7, 900, (7, 8), "make-it-fail")
    backend, step = on(tmp_path), TaskFlag(file="make-it-fail", value=1, scope=SCOPE)
    backend.apply("f-1", step, backend.observe("f-1", step, ()), ())
    mark, births = backend._mark, [9, 10]

    def birth(step: TaskFlag, tid: int, value: int) -> None:
        if births:
            born = tmp_path / "7/task" / str(births.pop())
            born.mkdir()
            (born / "make-it-fail").write_text("1")
        mark(step, tid, value)

    monkeypatch.setattr(backend, "_mark", birth)
    backend.undo("f-1", step, {}, ())
    assert backend.status(step, {}, ()) is Status.PRIOR
    assert len(list((tmp_path / "7/task").iterdir())) == 4


def test_marks_of_two_processes_meet() -> None:
    """The kernel has one mark for all fault points: each would hit the other's process too."""
    ours = TaskFlag(file="make-it-fail", value=1, scope=SCOPE)
    theirs = TaskFlag(file="make-it-fail", value=1, scope=PidScope(pid=8, start_ticks=950))
    assert ours.key() == theirs.key()
    assert not ours.composes
    assert ours.key() != TaskFlag(file="fail-nth", value=1, scope=SCOPE).key()
