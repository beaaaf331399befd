"""Commands from people to a run: stop, pause, resume; pure.

Each has a code for an answer, whatever the state: a command that makes no sense now does
nothing and says so.
"""

from __future__ import annotations

from typing import Literal

from controller.run_core import Core
from controller.run_state import Action

Command = Literal["stop", "pause", "resume"]
Code = Literal["ok", "cancelled", "not-started", "already", "not-paused", "stopping", "ended"]
COMMANDS: tuple[Command, ...] = ("stop", "pause", "resume")


def command(core: Core, now: int, name: Command, by: str = "stop") -> tuple[Code, list[Action]]:
    """Carry out a command: the code, and the actions that follow."""
    core.now = max(core.now, now)
    if not core.started:
        return _before(core, now, name, by)
    if core.finished:
        return "ended", []
    if core.stopping:
        return "stopping", []
    if name == "stop":
        return "ok", core.stop(now, by)
    if name == "pause":
        return _pause(core), []
    return _resume(core)


def _before(core: Core, now: int, name: Command, by: str) -> tuple[Code, list[Action]]:
    """A run that waits for its first moment can be called off, and nothing else."""
    if name != "stop":
        return "not-started", []
    if core.stopping:
        return "stopping", []
    core.started = True
    core.stop(now, by)
    return "cancelled", []


def _pause(core: Core) -> Code:
    if core.paused_at is not None:
        return "already"
    core.paused_at = core.now
    core.event("paused")
    return "ok"


def _resume(core: Core) -> tuple[Code, list[Action]]:
    if core.paused_at is None:
        return "not-paused", []
    length = core.now - core.paused_at
    core.shift_ns += length
    core.paused_at = None
    core.event("resumed", paused_ns=length, shift_ns=core.shift_ns)
    return "ok", core.tick(core.now)
