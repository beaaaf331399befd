"""Slots of the block-layer programs: one that is not given back is tried again."""

from __future__ import annotations

import errno
import os

import pytest

from nodeagent.backends import bio_steps
from nodeagent.backends.bio_steps import BioFailBackend
from nodeagent.encode.bpf_maps import SlotStats
from nodeagent.model.ranges import Range
from nodeagent.model.steps import Status
from nodeagent.model.steps.block import BioFail

STEP = BioFail(
    major=8, minor=0, name="sda", ranges=(Range(start=8, length=8),), reads=True, writes=False
)


class Failer:
    """What a BioFailer is to its backend."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.refuses = 1
        self._fd, self._other = os.pipe()

    def arm(self, spec: object) -> int:
        self.held.add(3)
        return 3

    def disarm(self, slot: int) -> None:
        if self.refuses:
            self.refuses -= 1
            raise OSError(errno.ENOMEM, "update of fc_disks")
        self.held.remove(slot)

    def stats(self, slot: int) -> SlotStats:
        return SlotStats()

    def fileno(self) -> int:
        return self._fd


def test_sectors_that_could_not_be_freed_are_freed_by_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failer = Failer()
    monkeypatch.setattr(bio_steps, "BioFailer", lambda: failer)
    backend = BioFailBackend(None)
    prior = {"fault": "f-1"}
    backend.apply("f-1", STEP, prior, ())
    with pytest.raises(OSError, match="fc_disks"):
        backend.undo("f-1", STEP, prior, ())
    assert backend.status(STEP, prior, ()) is Status.OURS
    backend.undo("f-1", STEP, prior, ())
    assert failer.held == set()
    assert backend.status(STEP, prior, ()) is Status.PRIOR


def test_a_kernel_log_that_may_not_be_opened_is_said_and_hinders_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container that is not privileged has a device filter (devices, cgroup v2)."""

    def refused() -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), "/dev/kmsg")

    failer = Failer()
    monkeypatch.setattr(bio_steps, "BioFailer", lambda: failer)
    monkeypatch.setattr(bio_steps, "KernelLog", refused)
    backend = BioFailBackend(None)
    backend.apply("f-1", STEP, {"fault": "f-1"}, ())
    assert failer.held == {3}
    said = backend.measure("f-1", STEP, {"fault": "f-1"})["statements"]
    assert said == ["the kernel's log is not read: /dev/kmsg: Operation not permitted"]
