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
LOCK_NAME = "lock"
LOCK_DEADLINE_S = 30.0


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
    """Open a file in the state directory, mode 0600, never through a link. Raises Refused."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise Refused(
                f"{path} is a symbolic link", "it may lead anywhere", "remove it"
            ) from exc
        raise


class MutationLock:
    """flock(2) on a file beside the journal: agent, successor and guardian take turns.

    flock locks belong to the open file, so that a child that inherits nothing of it
    cannot keep it, and the kernel drops it when its holder dies.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / LOCK_NAME
        self._fd = open_private(self._path, os.O_RDWR | os.O_CREAT)

    @contextmanager
    def held(self, deadline_s: float = LOCK_DEADLINE_S) -> Iterator[None]:
        """Hold the lock. Raises Refused when another holder keeps it for too long."""
        end = time.monotonic() + deadline_s
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise Refused(
                        "another process holds the journal's lock",
                        f"{self._path} has been locked for {deadline_s:.0f}s",
                        "see who: fuser -v " + str(self._path),
                    ) from None
                time.sleep(0.01)
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give the file back."""
        os.close(self._fd)
