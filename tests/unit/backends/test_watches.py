"""Steps that live in the agent: two faults with the same one do not know each other's."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from nodeagent.backends import Runtime, file_watch, syscall_steps
from nodeagent.backends.bio_steps import BioWatchBackend
from nodeagent.backends.file_watch import FileWatchBackend
from nodeagent.backends.syscall_steps import SyscallBackend
from nodeagent.model.errors import BackendError
from nodeagent.model.process import CgroupScope
from nodeagent.model.ranges import Range
from nodeagent.model.steps import Status
from nodeagent.model.steps.block import BioWatch, FileWatch
from nodeagent.model.steps.syscall import Hook, SyscallFail


def in_turn(backend: Any, step: Any) -> None:
    """The first goes and is gone, the second stays."""
    priors = {name: backend.observe(name, step, ()) for name in ("f-1", "f-2")}
    backend.apply("f-1", step, priors["f-1"], ())
    assert backend.status(step, priors["f-1"], ()) is Status.OURS
    assert backend.status(step, priors["f-2"], ()) is Status.PRIOR
    backend.apply("f-2", step, priors["f-2"], ())
    backend.undo("f-1", step, priors["f-1"], ())
    assert backend.status(step, priors["f-1"], ()) is Status.PRIOR
    assert backend.status(step, priors["f-2"], ()) is Status.OURS
    backend.undo("f-2", step, priors["f-2"], ())
    assert backend.status(step, priors["f-2"], ()) is Status.PRIOR


def test_two_faults_on_one_file_each_watch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other sectors of it, the same watch: the first to be reverted got stuck."""
    monkeypatch.setattr(file_watch, "look", lambda step: "")
    path = tmp_path / "f"
    path.write_bytes(b"x")
    in_turn(FileWatchBackend(None), FileWatch(path=str(path), inode=1, extents=((0, 0, 512),)))


class Slots:
    """What a tracer, or the slots of system calls, are to their backend."""

    def __init__(self, *args: Any) -> None:
        self.held: set[int] = set()
        self.whole = True
        self.refuses = 0
        self.hooks = self

    def load(self, *args: Any) -> None: ...

    def _take(self) -> int:
        slot = next(n for n in range(8) if n not in self.held)
        self.held.add(slot)
        return slot

    def add_watch(self, *args: Any) -> int:
        return self._take()

    def arm(self, step: Any) -> int:
        return self._take()

    def remove_watch(self, slot: int) -> None:
        self.held.remove(slot)

    def disarm(self, slot: int) -> None:
        self.whole = False  # whatever it has come to
        if self.refuses:
            self.refuses -= 1
            raise OSError(errno.ENOMEM, "update of fc_points")
        self.held.discard(slot)

    def is_armed(self, slot: int) -> bool:
        return self.whole and slot in self.held


def test_two_faults_with_one_watch_of_bios(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = Slots()
    monkeypatch.setattr(BioWatchBackend, "_ready", lambda self: slots)
    backend = BioWatchBackend(None)
    backend._source = slots  # type: ignore[assignment]
    step = BioWatch(major=8, minor=0, name="sda", ranges=(Range(start=0, length=8),))
    in_turn(backend, step)
    assert slots.held == set()


CALL = SyscallFail(
    way="modret",
    hooks=(Hook(call="openat", functions=("__x64_sys_openat",)),),
    scope=CgroupScope(id=42, path="/t", level=1),
    value=-5,
)


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> Slots:
    found = Slots()
    monkeypatch.setattr(syscall_steps, "SyscallSlots", lambda *args: found)
    monkeypatch.setattr(syscall_steps, "SyscallHooks", lambda *args: None)
    return found


def test_calls_that_could_not_all_be_freed_are_not_called_free(
    tmp_path: Path, slots: Slots
) -> None:
    """Half undone, some calls of the target still fail."""
    backend = SyscallBackend(Runtime(tmp_path, "n0"))
    prior = backend.observe("f-1", CALL, ())
    backend.apply("f-1", CALL, prior, ())
    slots.refuses = 1
    with pytest.raises(OSError, match="fc_points"):
        backend.undo("f-1", CALL, prior, ())
    assert backend.status(CALL, prior, ()) is Status.OURS
    backend.undo("f-1", CALL, prior, ())
    assert slots.held == set()
    assert backend.status(CALL, prior, ()) is Status.PRIOR


def test_hooks_that_the_kernel_does_not_show_are_not_armed(tmp_path: Path, slots: Slots) -> None:
    backend = SyscallBackend(Runtime(tmp_path, "n0"))
    slots.whole = False
    prior = backend.observe("f-1", CALL, ())
    with pytest.raises(BackendError, match="not armed"):
        backend.apply("f-1", CALL, prior, ())
    backend.undo("f-1", CALL, prior, ())
    assert slots.held == set()
