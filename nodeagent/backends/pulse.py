"""What a thread of the agent does while a fault is armed: turns of on and off, and rounds."""

from __future__ import annotations

import threading
from collections.abc import Callable

from nodeagent.clock import boottime_ns


class Pulse:
    """Calls on() and off() in turns, beginning with the end of a first on-phase; off when it ends.

    A call that raises OSError or returns False ends it: what it acts on is gone.
    """

    def __init__(self, on: Callable[[], bool], off: Callable[[], bool], ms: tuple[float, float]):
        self._calls = (off, on)
        self._seconds = (ms[0] / 1000, ms[1] / 1000)
        self._end = threading.Event()
        self.turns = 1
        self.since_ns = boottime_ns()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it still goes on."""
        return self._thread.is_alive()

    def _run(self) -> None:
        phase = 0
        while not self._end.wait(self._seconds[phase]):
            try:
                if not self._calls[phase]():
                    return
            except OSError:
                return
            phase = 1 - phase
            self.turns += phase == 0

    def stop(self) -> None:
        """No further call after this returns."""
        self._end.set()
        self._thread.join()


class Rounds:
    """round() at once, and again every so often until it is stopped; 0: only once."""

    def __init__(self, every_ms: int) -> None:
        self._every_ms = every_ms
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """The first round now, so that an error is the caller's."""
        self.round()
        if self._every_ms:
            self._thread = threading.Thread(target=self._run, name="rounds", daemon=True)
            self._thread.start()

    def round(self) -> None:
        """What is done each time."""
        raise NotImplementedError

    def again(self) -> None:
        """A later round: its errors are nobody's."""
        self.round()

    def _run(self) -> None:
        while not self._end.wait(self._every_ms / 1000):
            self.again()

    def stop(self) -> None:
        """No further round after this returns."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
