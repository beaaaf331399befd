"""Probes that act: guards that end a run, remedies that end a fault; pure."""

from __future__ import annotations

from collections.abc import Mapping

from controller.experiment import GuardEntry, RemedyEntry
from controller.records import Verdict
from controller.run_core import Core
from controller.run_state import Action, ItemState, Life


class Watch:
    """Counts verdicts in a row. One sample never decides unless the experiment says 1."""

    def __init__(
        self,
        core: Core,
        guards: Mapping[str, GuardEntry],
        remedies: Mapping[str, RemedyEntry],
    ) -> None:
        self._core = core
        self._guards = guards
        self._remedies = remedies
        self._broken: dict[str, int] = dict.fromkeys(guards, 0)
        self._failed_once: set[str] = set()

    def sample(self, now: int, probe: str, verdict: Verdict) -> list[Action]:
        """A probe measured. Samples before the timeline starts only count for remedies, which
        must have failed once to be seen to begin to pass."""
        if verdict == "fail":
            self._failed_once.add(probe)
        if not self._core.started or self._core.finished:
            return []
        self._core.now = max(self._core.now, now)
        return [*self._guard(probe, verdict), *self._remedy(probe, verdict)]

    def _guard(self, probe: str, verdict: Verdict) -> list[Action]:
        core = self._core
        for name, guard in self._guards.items():
            if guard.probe != probe or core.stopping:
                continue
            if verdict == "unknown" and guard.unknown == "ignore":
                continue
            self._broken[name] = 0 if verdict == "pass" else self._broken[name] + 1
            if self._broken[name] >= guard.failures:
                core.event("guard-broken", guard=name, probe=probe, in_a_row=self._broken[name])
                return core.stop(core.now, f"guard {name}")
        return []

    def _remedy(self, probe: str, verdict: Verdict) -> list[Action]:
        actions: list[Action] = []
        for name, remedy in self._remedies.items():
            if remedy.probe != probe:
                continue
            for state in list(self._core.live()):
                if name in state.item.remedies and self._remedied(state, name, remedy, verdict):
                    actions += self._core.take_back(state, f"remedy {name}", name)
        return actions

    def _remedied(self, state: ItemState, name: str, remedy: RemedyEntry, verdict: Verdict) -> bool:
        if state.life is not Life.ARMED or remedy.probe not in self._failed_once:
            return False
        state.passes[name] = state.passes.get(name, 0) + 1 if verdict == "pass" else 0
        return state.passes[name] >= remedy.passes
