"""Filling a file system by one hidden file, and removing it whoever is left to do so."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from nodeagent.backends import Outcome, Peer, Prior, Runtime
from nodeagent.clock import boot_id
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.fill import FileFill, RoomFill

CLOSE = 1 << 20
"""Bytes that are near enough to stop at, where 1 % of the file system is more."""
ROUNDS = 16
FULL = (errno.ENOSPC, errno.EDQUOT)


class Room(NamedTuple):
    """What is taken up, in the words of a refusal; {} in `cannot` is the mount point."""

    cannot: str
    unit: str
    take_all: str


BYTES = Room("{} cannot be filled", "bytes", "to fill it: --leave-free 0B")


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backend of this module."""
    return {FileFill: FillBackend()}


class FillBackend:
    """One file for each step."""

    def observe(self, fault_id: str, step: FileFill, peers: Sequence[Peer]) -> Prior:
        with root_of(step, None) as folder:
            if _size(folder, step.name) is not None:
                raise Refused(
                    BYTES.cannot.format(step.folder),
                    f"{step.name} is there already",
                    f"rm {step.folder}/{step.name}",
                )
            free, usable = _space(folder)
        want = to_leave(step, BYTES, free, usable)
        return {"free": free, "want": want, "usable": usable, "boot_id": boot_id()}

    def status(self, step: FileFill, prior: Prior, peers: Sequence[Peer]) -> Status:
        with root_of(step, prior) as folder:
            return Status.PRIOR if _size(folder, step.name) is None else Status.OURS

    def apply(self, fault_id: str, step: FileFill, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with root_of(step, prior) as folder:
            fd = os.open(step.name, flags, 0o600, dir_fd=folder)
            try:
                _approach(fd, folder, prior["want"])
            finally:
                os.close(fd)
            free, _ = _space(folder)
            if abs(free - prior["want"]) > max(prior["usable"] // 100, CLOSE // 4):
                raise BackendError(
                    f"{step.folder} was not filled as asked",
                    f"{prior['want']} bytes were to be left, {free} are",
                )
        return {"free": free}

    def undo(self, fault_id: str, step: FileFill, prior: Prior, peers: Sequence[Peer]) -> None:
        with root_of(step, prior) as folder, suppress(FileNotFoundError):
            os.unlink(step.name, dir_fd=folder)

    def measure(self, fault_id: str, step: FileFill, prior: Prior) -> dict[str, Any]:
        with root_of(step, prior) as folder:
            size = _size(folder, step.name)
            return {"file": size, "before": prior["free"], "free": _space(folder)[0]}


@contextmanager
def root_of(step: RoomFill, prior: Prior | None) -> Iterator[int]:
    """The file system's root, if it is the one. Raises BackendError when it is not mounted."""
    try:
        fd = os.open(step.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _missing(step) from None
    try:
        same_boot = prior is None or prior["boot_id"] == boot_id()
        # Numbers of devices are given anew with every boot.
        there = os.fstat(fd).st_dev == step.device if same_boot else os.path.ismount(step.folder)
        if not there:
            raise _missing(step)
        yield fd
    finally:
        os.close(fd)


def _missing(step: RoomFill) -> BackendError:
    return BackendError(
        f"{step.folder}/{step.name} cannot be looked at",
        "the file system is not mounted there",
        "mount it, then revert again",
    )


def to_leave(step: RoomFill, room: Room, free: int, total: int) -> int:
    """How much is to be left free. Raises Refused where that takes nothing, or too much."""
    want, what = wanted(step, room, free, total), room.cannot.format(step.folder)
    if want >= free:
        raise Refused(what, f"{free} {room.unit} are free, and {want} are to be left: it is done")
    if want < step.reserve:
        raise Refused(
            what,
            f"{want} {room.unit} would be left, and the node itself needs {step.reserve}",
            "ask for less",
        )
    return want


def wanted(step: RoomFill, room: Room, free: int, total: int) -> int:
    """What the step's words come to. Raises Refused when less is there than is to be taken."""
    if step.how == "leave":
        return step.value
    if step.how == "used":
        return total - total * step.value // 1_000_000
    if step.value > free:
        raise Refused(
            room.cannot.format(step.folder),
            f"{step.value} {room.unit} are to be taken, and {free} are free",
            room.take_all,
        )
    return free - step.value


def _space(folder: int) -> tuple[int, int]:
    """(bytes free to users, bytes that users could ever have)."""
    now = os.fstatvfs(folder)
    reserved = now.f_bfree - now.f_bavail
    return now.f_bavail * now.f_frsize, (now.f_blocks - reserved) * now.f_frsize


def _size(folder: int, name: str) -> int | None:
    """Bytes allocated to the file; None when it is not there."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_blocks * 512
    except FileNotFoundError:
        return None


def _approach(fd: int, folder: int, want: int) -> None:
    """Allocate until about `want` bytes are free: metadata takes its share as the file grows."""
    for _ in range(ROUNDS):
        over = _space(folder)[0] - want
        size = os.fstat(fd).st_size
        if over < 0:
            os.ftruncate(fd, max(0, size + over))
        elif over < 4096 or not _grow(fd, size, over):
            return


def _grow(fd: int, size: int, more: int) -> bool:
    """Add up to so many bytes; halves what does not fit. False when nothing did."""
    grown, chunk = 0, more
    while grown < more and chunk >= 4096:
        chunk = min(chunk, more - grown)
        try:
            os.posix_fallocate(fd, size + grown, chunk)
            grown += chunk
        except OSError as exc:
            if exc.errno not in FULL:
                raise
            chunk //= 2
    return grown > 0
