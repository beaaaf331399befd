"""systemd units that are down: stopped, or killed again and again; and started as they were."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Runtime
from nodeagent.backends.pulse import Rounds
from nodeagent.bind.systemd import active_states, is_running, is_stopping, show, systemctl
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.unit import UnitKill, UnitStop

JOB_S = 100.0
"""For a start or a stop: longer than systemd's own limit of 90 s (DefaultTimeoutStopSec)."""
KILL_S = 20.0
UP = ("active", "reloading")
WAKES = ("TriggeredBy",)
FALLS = ("RequiredBy", "BoundBy", "ConsistsOf")
"""Reverse of Requires, BindsTo and PartOf (systemd.unit(5)): what is stopped along with it."""


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backends of this module."""
    return {UnitStop: StopBackend(), UnitKill: KillBackend()}


def _refuse_inactive(unit: str, what: str) -> None:
    if not is_running():
        raise Refused(what, "systemd does not run this node (/run/systemd/system is missing)")
    found = show(unit)
    if found.get("LoadState") == "not-found":
        raise Refused(what, f"there is no unit {unit}", "see: systemctl list-units --all")
    if found.get("ActiveState") not in UP:
        raise Refused(what, f"{unit} is {found.get('ActiveState')} already")


def _active_with(unit: str, relations: tuple[str, ...]) -> list[str]:
    """Active units that these relations lead to, and theirs; not the unit itself."""
    seen, todo = {unit}, [unit]
    while todo:
        values = show(todo.pop(), *relations)
        for name in " ".join(values.values()).split():
            if name not in seen:
                seen.add(name)
                todo.append(name)
    others = tuple(sorted(seen - {unit}))
    states = active_states(others)
    return [one for one in others if states.get(one) in UP]


class _Unit:
    """What both share: who was up before, and how they come up again."""

    def status_of(self, prior: Prior) -> Status:
        """Prior only when everything is up that was; a unit in between is not.

        On a node that goes down there is nothing to put back: the next boot starts all units
        as it always does.
        """
        if not is_running() or is_stopping():
            return Status.GONE
        states = active_states((prior["unit"], *prior["others"]))
        if prior["unit"] not in states or show(prior["unit"])["LoadState"] == "not-found":
            return Status.GONE
        up = all(state in UP for state in states.values())
        return Status.PRIOR if up else Status.OURS

    @staticmethod
    def start_again(prior: Prior) -> None:
        """The unit first, then what had gone with it and still exists. Raises BackendError."""
        unit = prior["unit"]
        states = active_states((unit, *prior["others"]))
        wakes = [name for name in prior["wakes"] if name in states]
        failed = [name for name, state in states.items() if state == "failed"]
        if failed:  # one that was killed too often may not be started (StartLimitBurst)
            systemctl("reset-failed", "--", *failed)
        if any(states[name] not in UP for name in wakes):
            # A socket does not start while its service is up (socket_start, core/socket.c).
            systemctl("stop", "--", unit, timeout=JOB_S)
            systemctl("start", "--", *wakes, timeout=JOB_S)
        systemctl("start", "--", unit, timeout=JOB_S)
        there = [name for name in prior["others"] if name in states]
        targets = [name for name in there if name.endswith(".target")]
        others = [name for name in there if name not in (*targets, *wakes)]
        if others:
            systemctl("start", "--", *others, timeout=JOB_S)
        if targets:  # without what they want, which may have been down
            systemctl("start", "--job-mode=ignore-dependencies", "--", *targets, timeout=JOB_S)


class StopBackend(_Unit):
    """systemctl stop, and systemctl start."""

    def observe(self, fault_id: str, step: UnitStop, peers: Sequence[Peer]) -> Prior:
        _refuse_inactive(step.unit, f"{step.unit} cannot be stopped")
        wakes = _active_with(step.unit, WAKES)
        falls = [one for name in (step.unit, *wakes) for one in _active_with(name, FALLS)]
        others = sorted({*wakes, *falls} - {step.unit})
        return {"unit": step.unit, "wakes": wakes, "others": others}

    def status(self, step: UnitStop, prior: Prior, peers: Sequence[Peer]) -> Status:
        return self.status_of(prior)

    def apply(self, fault_id: str, step: UnitStop, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        # Sockets, timers and paths first: else they would start it again at once.
        systemctl("stop", "--", *prior["wakes"], step.unit, timeout=JOB_S)
        state = show(step.unit)["ActiveState"]
        if state in UP:
            raise BackendError(f"{step.unit} was not stopped", f"it is {state} again")
        return {}

    def undo(self, fault_id: str, step: UnitStop, prior: Prior, peers: Sequence[Peer]) -> None:
        self.start_again(prior)

    def measure(self, fault_id: str, step: UnitStop, prior: Prior) -> dict[str, Any]:
        return {"unit_state": show(step.unit)["ActiveState"], "with_it": prior["others"]}


class _Killer(Rounds):
    """Rounds of signals to a unit."""

    def __init__(self, step: UnitKill) -> None:
        super().__init__(step.every_ms)
        self._step = step
        self.sent = self.rounds = 0

    def round(self) -> None:
        """One signal to all of its processes, if there are any."""
        self.rounds += 1
        if show(self._step.unit)["ActiveState"] not in UP:
            return
        systemctl("kill", f"--signal={self._step.signal}", "--", self._step.unit, timeout=KILL_S)
        self.sent += 1

    def again(self) -> None:
        with suppress(BackendError):  # it went between the look and the signal
            self.round()


class KillBackend(_Unit):
    """systemctl kill, by rounds."""

    def __init__(self) -> None:
        self._rounds: dict[str, _Killer] = {}

    def observe(self, fault_id: str, step: UnitKill, peers: Sequence[Peer]) -> Prior:
        _refuse_inactive(step.unit, f"{step.unit} cannot be killed")
        return {"unit": step.unit, "wakes": [], "others": _active_with(step.unit, FALLS)}

    def status(self, step: UnitKill, prior: Prior, peers: Sequence[Peer]) -> Status:
        found = self.status_of(prior)
        # Whatever became of the unit: the rounds must end with the fault.
        return found if step.key() not in self._rounds else Status.OURS

    def apply(self, fault_id: str, step: UnitKill, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        if step.key() not in self._rounds:
            rounds = _Killer(step)
            self._rounds[step.key()] = rounds
            rounds.start()
        return {}

    def undo(self, fault_id: str, step: UnitKill, prior: Prior, peers: Sequence[Peer]) -> None:
        rounds = self._rounds.pop(step.key(), None)
        if rounds is not None:
            rounds.stop()
        if self.status_of(prior) is Status.OURS:
            self.start_again(prior)

    def measure(self, fault_id: str, step: UnitKill, prior: Prior) -> dict[str, Any]:
        rounds = self._rounds.get(step.key())
        return {
            "unit_state": show(step.unit)["ActiveState"],
            "sent": rounds.sent if rounds else 0,
            "rounds": rounds.rounds if rounds else 0,
            "with_it": prior["others"],
        }
