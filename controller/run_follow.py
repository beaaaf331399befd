"""Faults of a run that follow their workload: from what the API server says of pods to what the
core is told; pure. The decisions are controller.kube.follow's, as for `faultctl inject --follow`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from controller.experiment import Experiment
from controller.kube.follow import Action as Decision
from controller.kube.follow import Arm, End, Keep, Left, container_ids
from controller.kube.objects import Pod
from controller.kube.select import next_pod
from controller.kube.targets import pod_targets
from controller.run_core import Core
from controller.run_hunt import GIVE_UP_NS
from controller.run_slots import Chase, Heard, Known, Trail, names_of, trails_of
from controller.run_state import Action, ItemState, Life, Place
from nodeagent.model.errors import InvalidSpec, Refused


class Follower:
    """Tells a core where its faults have to be. An overseer of the run."""

    def __init__(self, core: Core, experiment: Experiment) -> None:
        self._core = core
        self._experiment = experiment
        self._names = names_of(experiment)
        self._known = Known()
        self._deaf: dict[str, str] = {}
        """Entries whose watch is lost or refused: said once."""
        self._trails = trails_of(core, experiment, self._known)

    # --- what is heard -------------------------------------------------------------------------

    def heard(self, now: int, word: Heard) -> list[Action]:
        """What follows from a word of the API server."""
        core = self._core
        core.now = max(core.now, now)
        if word.sort in ("lost", "failed"):
            if self._deaf.get(word.target) != word.sort:
                core.event(f"watch-{word.sort}", target=word.target, why=word.why)
            self._deaf[word.target] = word.sort
            return []
        self._deaf.pop(word.target, None)
        self._known.owners.update(word.owners)
        self._known.volumes.update(word.volumes)
        actions: list[Action] = []
        for trail in self._trails:
            if trail.target == word.target and not core.stopping:
                actions += self._followed(trail, word)
        return actions

    def tell(self, records: Iterable[Any]) -> None:
        """The record tells it nothing."""

    def look(self, now: int) -> list[Action]:
        """Gives up pods that cannot be hit for too long."""
        self._core.now = max(self._core.now, now)
        for trail in self._trails:
            for slot, chase in list(trail.chases.items()):
                if now >= chase.until:
                    self._given_up(trail, slot, chase.last)
        return []

    def _followed(self, trail: Trail, word: Heard) -> list[Action]:
        following = trail.following
        for chase in trail.chases.values():
            chase.pod = next((p for p in word.pods if p.uid == chase.pod.uid), chase.pod)
        if word.sort == "sync":
            decided = following.sync(word.pods)
        else:
            each = (following.gone(p.uid) if word.sort == "gone" else following.seen(p)
                    for p in word.pods)  # fmt: skip
            decided = [decision for found in each for decision in found]
        actions = self._act(trail, decided)
        for number, slot in enumerate(following.slots):
            if slot.open and slot.uid and not slot.place:
                for state in trail.states[number]:
                    actions += self._core.pod_leaving(state, slot.uid)
        for number in list(trail.chases):
            actions += self._try(trail, number)
        return actions

    def _act(self, trail: Trail, decided: list[Decision]) -> list[Action]:
        ends = {(d.slot, d.uid) for d in decided if isinstance(d, End)}
        again = {d.slot for d in decided if isinstance(d, Arm) and (d.slot, d.pod.uid) in ends}
        actions: list[Action] = []
        for one in decided:
            states = trail.states[one.slot]
            if isinstance(one, Arm):
                until = self._core.now + GIVE_UP_NS
                trail.chases[one.slot] = Chase(one.pod, one.why, until, one.slot in again)
            elif isinstance(one, Keep):
                actions += self._keep(trail, one)
            elif isinstance(one, Left):
                trail.chases.pop(one.slot, None)
                actions += [a for s in states for a in self._core.moved_away(s, one.why)]
            elif one.slot not in again:
                actions += self._gone(trail, one)
        return actions

    def _gone(self, trail: Trail, end: End) -> list[Action]:
        chase = trail.chases.get(end.slot)
        if chase is not None and chase.pod.uid == end.uid:
            del trail.chases[end.slot]
        states = trail.states[end.slot]
        return [a for s in states for a in self._core.pod_gone(s, end.uid, end.why)]

    def _keep(self, trail: Trail, keep: Keep) -> list[Action]:
        """What is armed on the volume stays; what is not is armed for the pod that has it now."""
        actions: list[Action] = []
        for state in trail.states[keep.slot]:
            if state.life is Life.ARMED:
                place = self._place(trail, state.item.target, keep.pod, keep.why, state)
                actions += self._core.keep(state, place)
            elif not state.life.final:
                until = self._core.now + GIVE_UP_NS
                trail.chases[keep.slot] = Chase(keep.pod, keep.why, until)
        return actions

    # --- how the next pod is hit -----------------------------------------------------------------

    def _try(self, trail: Trail, number: int) -> list[Action]:
        chase = trail.chases[number]
        pod = chase.pod
        try:
            early, ask = next_pod(pod, trail.ask)
            targets = pod_targets(trail.kind, early, ask, trail.part)
        except Refused as exc:
            chase.last = str(exc)
            return []
        except InvalidSpec as exc:
            self._given_up(trail, number, str(exc))
            return []
        del trail.chases[number]
        actions: list[Action] = []
        for state in trail.states[number]:
            target = _same_part(state, targets)
            if target is None:
                why = f"it has no container {state.item.target.get('container', '')}"
                self._not_hit(state, pod, why)
            elif not self._there(state, chase, target):
                place = self._place(trail, target, pod, chase.why, state)
                actions += self._core.move(state, replace(place, cut=chase.cut))
        return actions

    @staticmethod
    def _there(state: ItemState, chase: Chase, target: Mapping[str, Any]) -> bool:
        """Another container of the same pod has restarted, or it is armed on the same volume."""
        if state.travel.uid != chase.pod.uid or state.life is not Life.ARMED:
            return False
        return not chase.cut or dict(target) == state.item.target

    def _place(
        self, trail: Trail, target: Mapping[str, Any], pod: Pod, why: str, state: ItemState
    ) -> Place:
        name = self._names.get(pod.node, pod.node)
        declared = self._experiment.nodes.get(name)
        known = (i.zone for i in self._core.plan.items if i.node == name)
        return Place(
            node=name,
            zone=(declared.zone if declared else "") or next(known, ""),
            target_name="/".join((trail.target, pod.name, *trail.part_of[state.id])),
            target=dict(target),
            pod=pod.full_name,
            uid=pod.uid,
            containers=container_ids(pod),
            volume=self._known.volumes.get(pod.uid, ""),
            why=why,
        )

    def _given_up(self, trail: Trail, slot: int, why: str) -> None:
        pod = trail.chases.pop(slot).pod
        for state in trail.states[slot]:
            self._not_hit(state, pod, why)

    def _not_hit(self, state: ItemState, pod: Pod, why: str) -> None:
        if not state.life.final:
            node = self._names.get(pod.node, pod.node)
            self._core.event("not-hit", node, fault=state.id, pod=pod.full_name, why=why)


def _same_part(
    state: ItemState, targets: list[dict[str, Any]]
) -> dict[str, Any] | None:  # fmt: skip
    """Of a pod's targets the one that stands for what the fault has hit."""
    if len(targets) == 1:
        return targets[0]
    mine = state.item.target.get("container")
    return next((t for t in targets if t.get("container") == mine), None)
