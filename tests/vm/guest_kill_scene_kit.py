"""Runs inside a lab node as root: what the scenes of guest_kill_scenes.py have in common."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import guest_kill_faults as gf
import guest_kill_kit as kit
from guest_kill_kit import Child

Scene = Callable[[], Any]
SCENES: dict[str, Scene] = {}
_serial = itertools.count(1)


def scene(function: Scene) -> Scene:
    SCENES[function.__name__] = function
    return function


def ident() -> str:
    """Another one in each process."""
    return f"s-{next(_serial)}-{os.getpid()}"


class Idle:
    """The fingerprint without an agent."""

    text = ""


def clean(seconds: float = gf.SETTLE_S) -> float:
    """The node must come to be as it was before; how long that took."""
    took, differs = gf.settled(Idle.text)
    assert not differs, differs
    assert took < seconds, took
    return took


def ended(fault: str, *reasons: str) -> None:
    row = gf.journal(fault)
    assert row["state"] == "ended", row
    assert row["reason"] in reasons, row
    assert row["active"] == 0, row


def wait_for(done: Callable[[], bool], seconds: float = 60.0) -> float:
    start = time.monotonic()
    while not done():
        assert time.monotonic() - start < seconds, "it did not come true"
        time.sleep(0.05)
    return round(time.monotonic() - start, 2)


def kill_both(child: Child) -> None:
    pid = gf.guardian_of(child)
    os.kill(pid, signal.SIGSTOP)
    child.kill()
    child.join()
    guardian = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert kit.wait_end(guardian)


def idle_agent() -> None:
    gf.end_quietly(kit.agent(lambda agent, say: None))
