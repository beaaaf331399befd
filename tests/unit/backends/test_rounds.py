"""Rounds: one at once, more by a thread, none after the stop."""

from __future__ import annotations

import threading
import time

import pytest

from nodeagent.backends.pulse import Rounds


class Counted(Rounds):
    def __init__(self, every_ms: int) -> None:
        super().__init__(every_ms)
        self.rounds = 0
        self.third = threading.Event()

    def round(self) -> None:
        self.rounds += 1
        if self.rounds >= 3:
            self.third.set()


def test_again_and_again_until_the_stop() -> None:
    one = Counted(10)
    one.start()
    assert one.rounds >= 1
    assert one.third.wait(10)
    one.stop()
    done = one.rounds
    time.sleep(0.1)
    assert one.rounds == done


def test_once_where_nothing_else_is_asked() -> None:
    one = Counted(0)
    one.start()
    time.sleep(0.05)
    one.stop()
    assert one.rounds == 1


def test_an_error_of_the_first_is_the_callers() -> None:
    class Broken(Rounds):
        def round(self) -> None:
            raise OSError(1, "no")

    with pytest.raises(OSError, match="no"):
        Broken(10).start()
