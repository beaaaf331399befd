"""The agent's state directory: root-only, no symbolic links, one lock for all mutations."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nodeagent.model.errors import Refused

DEFAULT_STATE_DIR = Path("/var/lib/faultctl")
JOURNAL_NAME = "journal.sqlite3"
LOCK_NAME = "lock"
LOCK_DEADLINE_S = 30.0
OWNER_NAME = "owner"
OWNER_DEADLINE_S = 5.0
"""A killed agent needs a moment until the kernel has taken it apart."""


def open_state_dir(path: Path) -> Path:
    """Create or check the directory (mode 0700, ours, not a link). Raises Refused."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode):
        raise Refused(
            f"{path} cannot hold the journal",
            "it is a symbolic link or not a directory",
            "remove it, or choose another with --state-dir",
        )
    if info.st_uid != os.geteuid():
        raise Refused(
            f"{path} cannot hold the journal",
            f"it belongs to uid {info.st_uid}",
            "the directory must belong to the agent's own user, mode 0700",
        )
    if info.st_mode & 0o077:
        os.chmod(path, 0o700)
    return path


def open_private(path: Path, flags: int) -> int:
    """Open a file in the state directory, mode 0600, never through a link. Raises Refused.

    What lay there before is taken only if it is a plain file of ours with one name.
    """
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise Refused(
                f"{path} is a symbolic link", "it may lead anywhere", "remove it"
            ) from exc
        raise Refused(f"{path} cannot be opened", exc.strerror or str(exc)) from exc
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or info.st_nlink != 1:
        os.close(fd)
        raise Refused(
            f"{path} is not ours",
            "it is no plain file, belongs to somebody else or has a second name",
            "remove it",
        )
    if stat.S_IMODE(info.st_mode) != 0o600:
        os.fchmod(fd, 0o600)
    return fd


class LockBusy(Refused):
    """Another process has kept the lock for too long."""


class MutationLock:
    """flock(2) on a file beside the journal: agent, successor and guardian take turns.

    flock locks belong to the open file, so that a child that inherits nothing of it
    cannot keep it, and the kernel drops it when its holder dies.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / LOCK_NAME
        self._fd = open_private(self._path, os.O_RDWR | os.O_CREAT)
        self._depth = 0

    @contextmanager
    def held(self, deadline_s: float = LOCK_DEADLINE_S) -> Iterator[None]:
        """Hold the lock. Raises LockBusy when another process keeps it for too long.

        Its holder may take it again; threads of one process take turns by other means.
        """
        if not self._depth:
            self._take(deadline_s)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _take(self, deadline_s: float) -> None:
        end = time.monotonic() + deadline_s
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > end:
                    raise LockBusy(
                        "another process holds the journal's lock",
                        f"{self._path} has been locked for {deadline_s:.0f}s",
                        "see who: fuser -v " + str(self._path),
                    ) from None
                time.sleep(0.01)

    def close(self) -> None:
        """Give the file back."""
        os.close(self._fd)


class OwnerLock:
    """Held by an agent for as long as it lives: two agents never share a state directory.

    A successor could not take back what dies with the process of an agent that still lives
    (BPF links), and would call it reverted. Raises Refused when another agent holds it.
    """

    def __init__(self, state_dir: Path, deadline_s: float = OWNER_DEADLINE_S) -> None:
        path = state_dir / OWNER_NAME
        self._fd = open_private(path, os.O_RDWR | os.O_CREAT)
        end = time.monotonic() + deadline_s
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
                    os.close(self._fd)
                    raise Refused(
                        f"another agent works with {state_dir}",
                        f"its pid is {holder or 'not known'}",
                        "stop it first: faultctl agent stop; or choose another --state-dir",
                    ) from None
                time.sleep(0.05)
        pid = f"{os.getpid()}\n".encode("ascii")
        with suppress(OSError):  # a full disk: nobody is told our pid, and that is all
            os.ftruncate(self._fd, os.pwrite(self._fd, pid, 0))

    def close(self) -> None:
        """Let another agent in."""
        os.close(self._fd)
