"""Files below /proc/sys as the node or one net namespace has them."""

from __future__ import annotations

import ctypes
import errno
import glob
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from nodeagent.model.steps.net import NetnsRef
from nodeagent.netns import in_thread, within

ROOT = Path("/proc/sys")
GONE = (errno.ENOENT, errno.ENODEV)
_NODES_OWN = ("ipc", "uts")
"""Namespaces of PID 1 that decide about kernel.* (ipc/ipc_sysctl.c, kernel/utsname_sysctl.c)."""
_LIBC = ctypes.CDLL(None, use_errno=True)

T = TypeVar("T")


def viewed(netns: NetnsRef | None, work: Callable[[], T]) -> T | None:
    """Run where /proc/sys is the namespace's, or the node's; None when it is gone."""
    if netns is not None:
        return within(netns, work)

    def on_node() -> T:
        for name in _NODES_OWN:
            fd = os.open(f"/proc/1/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if _LIBC.setns(fd, 0):
                    code = ctypes.get_errno()
                    raise OSError(code, os.strerror(code), f"setns {name} of PID 1")
            finally:
                os.close(fd)
        return work()

    return in_thread(on_node)


def read(path: str) -> str | None:
    """The value without its line end; None when there is no such file.

    Raises OSError, UnicodeDecodeError.
    """
    try:
        return (ROOT / path).read_text(encoding="utf-8").rstrip("\n")
    except OSError as exc:
        if exc.errno in GONE:
            return None
        raise


def write(path: str, value: str) -> None:
    """In one write(2); an empty value is an empty line. Raises OSError."""
    fd = os.open(ROOT / path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, f"{value}\n".encode())
    finally:
        os.close(fd)


def matching(pattern: str) -> list[str]:
    """Paths below /proc/sys that match a pattern."""
    return sorted(str(Path(found).relative_to(ROOT)) for found in glob.glob(str(ROOT / pattern)))
