"""Using up a file system's inodes by empty files in one hidden directory, and removing them."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Runtime
from nodeagent.backends.fill import FULL, Room, root_of, to_leave
from nodeagent.clock import boot_id
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.fill import InodeFill

EACH = 4096
"""Files in one directory: small enough for a linear one, as on tmpfs and old ext."""
MOST = 4_000_000
"""Files that are made at most: a native machine needs about a minute for them."""
CLOSE = 64
"""Inodes that are near enough to stop at, where 1 % of them is more."""
INODES = Room("the inodes of {} cannot be used up", "inodes", "to use up all: --leave-free 0")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backend of this module."""
    return {InodeFill: InodeBackend()}


class InodeBackend:
    """One directory for each step."""

    def observe(self, fault_id: str, step: InodeFill, peers: Sequence[Peer]) -> Prior:
        what = INODES.cannot.format(step.folder)
        with root_of(step, None) as folder:
            if _there(folder, step.name):
                raise Refused(what, f"{step.name} is there already", "look: faultctl doctor")
            free, total = _inodes(folder)
        want = to_leave(step, INODES, free, total)
        if free - want > MOST:
            raise Refused(what, f"{free - want} files are needed, more than {MOST}")
        return {"free": free, "want": want, "boot_id": boot_id()}

    def status(self, step: InodeFill, prior: Prior, peers: Sequence[Peer]) -> Status:
        with root_of(step, prior) as folder:
            return Status.OURS if _there(folder, step.name) else Status.PRIOR

    def apply(self, fault_id: str, step: InodeFill, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        with root_of(step, prior) as folder:
            with suppress(FileExistsError):
                os.mkdir(step.name, 0o700, dir_fd=folder)
            fd = os.open(step.name, _FOLDER, dir_fd=folder)
            try:
                _approach(fd, folder, prior["want"])
            finally:
                os.close(fd)
            free, total = _inodes(folder)
        if abs(free - prior["want"]) > max(total // 100, CLOSE):
            raise BackendError(
                f"the inodes of {step.folder} were not used up as asked",
                f"{prior['want']} were to be left, {free} are: its blocks may have run out before",
            )
        return {"free": free}

    def undo(self, fault_id: str, step: InodeFill, prior: Prior, peers: Sequence[Peer]) -> None:
        with root_of(step, prior) as folder, suppress(FileNotFoundError):
            shutil.rmtree(step.name, dir_fd=folder)

    def measure(self, fault_id: str, step: InodeFill, prior: Prior) -> dict[str, Any]:
        with root_of(step, prior) as folder:
            there = _there(folder, step.name)
            return {"there": there, "before": prior["free"], "free": _inodes(folder)[0]}


def _inodes(folder: int) -> tuple[int, int]:
    """(free to users, in all), statvfs(3)."""
    now = os.fstatvfs(folder)
    return now.f_favail, now.f_files


def _there(folder: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _approach(fd: int, folder: int, want: int) -> None:
    """Make files until `want` inodes are free, or none can be made."""
    batch = 0
    while (left := _inodes(folder)[0] - want) > 0:
        name = f"{batch:x}"
        batch += 1
        try:
            os.mkdir(name, 0o700, dir_fd=fd)
        except FileExistsError:
            continue
        except OSError as exc:
            if exc.errno in FULL:
                return
            raise
        if not _make(fd, name, min(left - 1, EACH)):
            return


def _make(fd: int, name: str, count: int) -> bool:
    """So many empty files in a directory; False when the file system takes no more."""
    inner = os.open(name, _FOLDER, dir_fd=fd)
    try:
        for number in range(count):
            os.mknod(f"{number:x}", 0o600 | stat.S_IFREG, dir_fd=inner)
    except OSError as exc:
        if exc.errno in FULL:
            return False
        raise
    finally:
        os.close(inner)
    return True
