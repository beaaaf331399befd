"""Runs a program for a probe: bounded in time and output, and nothing of it stays behind."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

MAX_CAPTURE = 1 << 20
"""Bytes of each of its outputs that are kept; the rest is read and thrown away."""
CHUNK = 1 << 16
POLL_S = 0.2


@dataclass(frozen=True)
class Finished:
    """How a program ended. code: as of subprocess, negative for a signal; None: it was ended."""

    code: int | None
    out: bytes
    err: bytes


def run(argv: Sequence[str], timeout_s: float, gone: threading.Event) -> Finished:
    """Run a program in a session of its own until it ends, its time is up or `gone` is set.

    Its process group is killed then; a grandchild that left the group and keeps a pipe open
    is not waited for. Raises OSError if it cannot be started.
    """
    child = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    end = time.monotonic() + timeout_s
    pidfd = os.pidfd_open(child.pid)
    try:
        with child:
            kept = {p.fileno(): bytearray() for p in (child.stdout, child.stderr) if p is not None}
            ended = _read_until_end(pidfd, kept, end, gone)
            # Not reaped yet, so that the number of its group cannot be another's.
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            for fd, data in kept.items():
                _drain(fd, data)
            code = child.wait()
    finally:
        os.close(pidfd)
    out, err = (bytes(data) for data in kept.values())
    return Finished(code if ended else None, out, err)


def _read_until_end(
    pidfd: int, kept: dict[int, bytearray], end: float, gone: threading.Event
) -> bool:
    """Whether the program ended by itself; fills `kept` meanwhile."""
    with selectors.DefaultSelector() as ready:
        ready.register(pidfd, selectors.EVENT_READ)
        for fd in kept:
            os.set_blocking(fd, False)
            ready.register(fd, selectors.EVENT_READ)
        while not gone.is_set():
            left = end - time.monotonic()
            if left <= 0:
                return False
            for key, _ in ready.select(min(left, POLL_S)):
                if key.fd == pidfd:
                    return True
                if _take(key.fd, kept[key.fd]) == b"":
                    ready.unregister(key.fd)
    return False


def _take(fd: int, kept: bytearray) -> bytes | None:
    """A chunk of what is there, b"" at the end of the pipe, None when there is nothing now."""
    try:
        chunk = os.read(fd, CHUNK)
    except BlockingIOError:
        return None
    kept += chunk[: MAX_CAPTURE - len(kept)]
    return chunk


def _drain(fd: int, kept: bytearray) -> None:
    """What is left in the pipe; a writer that goes on for ever is cut off."""
    for _ in range(MAX_CAPTURE // CHUNK):
        if not _take(fd, kept):
            return
