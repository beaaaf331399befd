"""SIGTERM and SIGINT for a process with many threads, whichever thread the kernel gives them to.

Python runs its handlers in the main thread, when that thread gets to run. A signal to a process
that is stopped is taken by any thread once it goes on (complete_signal, kernel/signal.c), and a
main thread that waits for a lock then sleeps on. systemd-shutdown stops all processes before it
sends them SIGTERM (broadcast_signal, shutdown/shutdown.c).
"""

from __future__ import annotations

import os
import select
import signal
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """Made once, in the main thread; from then on neither signal ends the process by itself."""

    def __init__(self) -> None:
        self._read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # The C handler writes there in whatever thread it runs.
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in ENDING:
            signal.signal(number, _only_wake)

    def wait(self) -> None:
        """Until one of them comes; at once when it has come before."""
        while True:
            select.select([self._read], [], [])
            if any(number in ENDING for number in os.read(self._read, 4096)):
                return


def _only_wake(number: int, frame: FrameType | None) -> None:
    """What must be there for the wake-up descriptor to be written to."""
