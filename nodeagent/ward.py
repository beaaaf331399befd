"""The agent's side of the guardian: start it, poke it, start it again when it dies."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nodeagent.model.errors import Refused
from nodeagent.statedir import open_private

READY_DEADLINE_S = 60.0


class Ward:
    """Keeps one guardian alive for this process.

    on_loss: called from the ward's thread when a guardian died and was replaced, or
    could not be.
    """

    def __init__(
        self,
        state_dir: Path,
        epoch: int,
        on_loss: Callable[[str], None],
        log_format: str = "text",
    ) -> None:
        self._state_dir = state_dir
        self._log_format = log_format
        self._epoch = epoch
        self._on_loss = on_loss
        self._child: subprocess.Popen[bytes] | None = None
        self._wake_lock = threading.Lock()
        self._wake = -1
        self._ready = -1
        self._stopping = False
        self._thread = threading.Thread(target=self._watch, name="ward", daemon=True)

    def begin(self) -> None:
        """Start the guardian; it gets ready while the agent does."""
        self._spawn()

    def start(self) -> None:
        """Wait until the guardian is ready, and keep it alive from then on. Raises Refused."""
        self._await_ready()
        self._thread.start()

    def _spawn(self) -> None:
        pidfd = os.pidfd_open(os.getpid())
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with self._wake_lock:
            self._wake = wake_write
        self._ready, ready_write = os.pipe2(os.O_CLOEXEC)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        log = open_private(self._state_dir / "guardian.log", flags)
        try:
            self._child = subprocess.Popen(
                [
                    *(sys.executable, "-m", "nodeagent.guardian", str(self._state_dir)),
                    *("--epoch", str(self._epoch), "--pidfd", str(pidfd)),
                    *("--wake", str(wake_read), "--ready", str(ready_write)),
                    *("--log-format", self._log_format),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(pidfd, wake_read, ready_write),
                start_new_session=True,
                env={**os.environ, "FAULTD_CRASHPOINT": "0", "FAULTD_CRASHPOINT_LOG": ""},
            )
        finally:
            for fd in (pidfd, wake_read, ready_write, log):
                os.close(fd)

    def _await_ready(self) -> None:
        try:
            ready = self._is_ready(self._ready)
        finally:
            os.close(self._ready)
        if not ready and self._child is not None:
            self._child.kill()
            self._child.wait()
            raise Refused(
                "the guardian did not start",
                f"see {self._state_dir / 'guardian.log'}",
                "faults are not armed without it",
            )

    @staticmethod
    def _is_ready(fd: int) -> bool:
        readable, _, _ = select.select([fd], [], [], READY_DEADLINE_S)
        return bool(readable) and os.read(fd, 64) == b"ready\n"

    @property
    def pid(self) -> int | None:
        """The guardian's process id while it lives."""
        child = self._child
        return child.pid if child is not None and child.poll() is None else None

    def poke(self) -> None:
        """Tell it that a deadline has changed."""
        with self._wake_lock, suppress(BlockingIOError, BrokenPipeError):
            if self._wake >= 0:  # else it is dead, and the watch replaces it
                os.write(self._wake, b"x")

    def _drop_wake(self) -> None:
        """Its number may be another file's at once: nobody may write to it any more."""
        with self._wake_lock:
            os.close(self._wake)
            self._wake = -1

    def stop(self) -> None:
        """End it; only after everything is reverted."""
        self._stopping = True
        child = self._child
        if child is not None and child.poll() is None:
            child.kill()
        self._thread.join(timeout=10)

    def _watch(self) -> None:
        while True:
            child = self._child
            if child is None:
                return
            code = child.wait()
            if self._stopping:
                return
            self._drop_wake()
            try:
                self._spawn()
                self._await_ready()
                self._on_loss(f"the guardian ended with status {code} and was started again")
            except (Refused, OSError) as exc:
                self._child = None
                self._on_loss(f"the guardian ended with status {code} and does not start: {exc}")
                return
