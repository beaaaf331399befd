"""Who plays a run folder: one controller at a time, by flock(2), which goes with its death."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from nodeagent.model.errors import Refused

LOCK_FILE = ".lock"
PATIENCE_S = 1.0


def lock_folder(folder: Path) -> int:
    """Exclusive right to a run folder, held by a descriptor. Raises Refused naming the holder."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(folder / LOCK_FILE, flags, 0o600)
    except OSError as exc:
        raise Refused(f"{folder} is no run folder", os.strerror(exc.errno or 0)) from exc
    if not _locked(fd):
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        os.close(fd)
        raise Refused(
            f"another controller plays {folder}",
            f"process {holder or 'unknown'} holds its lock",
            "end it with `faultctl stop`",
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _locked(fd: int) -> bool:
    """Whether the lock is ours now. A probe's child between fork and exec, and who asks whether
    a run is played, hold it for a moment: that is no other controller."""
    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > give_up:
                return False
            time.sleep(0.05)
        else:
            return True


def is_locked(folder: Path) -> bool:
    """Whether a controller plays this folder now."""
    try:
        fd = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
