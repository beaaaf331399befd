"""Following a workload: when one of the pods that are hit goes, which one takes its place; pure.

Each pod that was chosen is a slot. A slot whose pod is being deleted, has completed or is gone
may be taken by a pod of the same owner that is younger than the fault: one that was there
before and was not chosen is never hit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from controller.kube.objects import Pod

OwnerOf = Callable[[Pod], str]
"""The workload that a pod belongs to, the same for its replacement; empty for none."""


@dataclass(frozen=True)
class Arm:
    """Hit this pod in the slot; `why` says what it takes the place of."""

    slot: int
    pod: Pod
    why: str


@dataclass(frozen=True)
class End:
    """The slot's faults on a pod have to end: it has none to act on any more."""

    slot: int
    uid: str
    node: str
    why: str


@dataclass(frozen=True)
class Left:
    """Said and not acted on."""

    slot: int
    why: str


Action = Arm | End | Left


@dataclass
class Slot:
    """One of the pods that were chosen, and who is in its place now."""

    owner: str
    name: str
    node: str
    uid: str
    containers: tuple[str, ...]
    open: bool = False
    """Its pod goes or is gone: another may take its place."""


def container_ids(pod: Pod) -> tuple[str, ...]:
    """What changes when a container restarts."""
    return tuple(sorted(c.container_id for c in pod.containers if c.running))


@dataclass
class Following:
    """The slots of one fault. moves: a replacement on another node is hit there as well.

    restarts: the fault is bound to containers, so that a restarted one has to be hit anew.
    """

    owner_of: OwnerOf
    moves: bool = True
    restarts: bool = False
    slots: list[Slot] = field(default_factory=list)
    before: set[str] = field(default_factory=set)
    """UIDs of pods that were there when the fault began and are not hit."""
    waiting: dict[str, Pod] = field(default_factory=dict)
    """Younger pods that have no slot to take yet."""
    leaving: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Pods that are being deleted and whose slot is taken: uid to (slot, node)."""

    def begin(self, hit: Sequence[Pod], others: Iterable[Pod]) -> None:
        """The pods that are armed, and all others that the selectors give now."""
        self.slots = [
            Slot(self.owner_of(pod), pod.name, pod.node, pod.uid, container_ids(pod)) for pod in hit
        ]
        mine = {pod.uid for pod in hit}
        self.before = {pod.uid for pod in others} - mine

    def seen(self, pod: Pod) -> list[Action]:
        """A pod came or changed."""
        if pod.uid in self.before:
            return []
        number = self._slot_of(pod.uid)
        if number is None:
            if pod.uid not in self.leaving:
                self.waiting[pod.uid] = pod
            return self._fill()
        return self._changed(number, pod)

    def gone(self, uid: str) -> list[Action]:
        """A pod is no more."""
        self.waiting.pop(uid, None)
        self.before.discard(uid)
        if uid in self.leaving:
            number, node = self.leaving.pop(uid)
            return [End(number, uid, node, "the pod is gone")]
        number_of = self._slot_of(uid)
        if number_of is None:
            return []
        slot = self.slots[number_of]
        done = End(number_of, uid, slot.node, "the pod is gone")
        slot.open, slot.uid = True, ""
        return [done, *self._fill()]

    def sync(self, pods: Sequence[Pod]) -> list[Action]:
        """All pods of the selectors, after a watch was lost."""
        there = {pod.uid for pod in pods}
        known = {s.uid for s in self.slots if s.uid} | set(self.waiting) | set(self.leaving)
        actions: list[Action] = []
        for uid in sorted(known - there):
            actions += self.gone(uid)
        for pod in pods:
            actions += self.seen(pod)
        return actions

    def _slot_of(self, uid: str) -> int | None:
        return next((n for n, slot in enumerate(self.slots) if slot.uid == uid), None)

    def _changed(self, number: int, pod: Pod) -> list[Action]:
        slot = self.slots[number]
        if pod.phase in ("Succeeded", "Failed"):
            slot.open, slot.uid = True, ""
            why = f"the pod has completed ({pod.phase})"
            return [End(number, pod.uid, slot.node, why), *self._fill()]
        if pod.deleting:
            slot.open = True
            return self._fill()
        now = container_ids(pod)
        if self.restarts and now and now != slot.containers:
            slot.containers = now
            return [
                End(number, pod.uid, slot.node, "a container has restarted"),
                Arm(number, pod, "its container has restarted"),
            ]
        return []

    def _fill(self) -> list[Action]:
        """Open slots to waiting pods of the same owner, one with the same name first."""
        actions: list[Action] = []
        for number, slot in enumerate(self.slots):
            if not slot.open or not slot.owner:
                continue
            able = [pod for pod in self.waiting.values() if self._can_take(slot, pod)]
            if not able:
                continue
            pod = min(able, key=lambda p: (p.name != slot.name, p.name))
            actions += self._take(number, slot, pod)
        return actions

    def _can_take(self, slot: Slot, pod: Pod) -> bool:
        alive = not pod.deleting and pod.phase in ("Pending", "Running") and bool(pod.node)
        return alive and self.owner_of(pod) == slot.owner

    def _take(self, number: int, slot: Slot, pod: Pod) -> list[Action]:
        del self.waiting[pod.uid]
        if slot.uid:
            self.leaving[slot.uid] = (number, slot.node)
        old, moved = slot.name, pod.node != slot.node
        slot.open, slot.uid, slot.name = False, pod.uid, pod.name
        slot.containers = container_ids(pod)
        if moved and not self.moves:
            slot.open, slot.uid = False, ""
            return [Left(number, f"{pod.full_name} is on node {pod.node} now: not followed there")]
        slot.node = pod.node
        where = f", now on node {pod.node}" if moved else ""
        return [Arm(number, pod, f"takes the place of {old}{where}")]
