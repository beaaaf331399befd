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
PlaceOf = Callable[[Pod], str]
"""What a fault on a pod is bound to, if that outlives the pod: a volume on its node; else empty."""


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
class Keep:
    """The slot's faults on a pod go on for another, which has the very same volume."""

    slot: int
    uid: str
    pod: Pod
    why: str


@dataclass(frozen=True)
class Left:
    """Said and not acted on."""

    slot: int
    why: str


Action = Arm | End | Keep | Left


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
    place: str = ""
    """Faults on a volume stay when the pod goes: they are in the way of whoever has it next."""
    kept: str = ""
    """UID of the pod that is gone and whose faults stay."""


def _nowhere(_pod: Pod) -> str:
    return ""


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
    place_of: PlaceOf = _nowhere
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
            Slot(self.owner_of(pod), pod.name, pod.node, pod.uid, container_ids(pod),
                 place=self.place_of(pod))
            for pod in hit
        ]  # fmt: skip
        mine = {pod.uid for pod in hit}
        self.before = {pod.uid for pod in others} - mine

    def seen(self, pod: Pod) -> list[Action]:
        """A pod came or changed."""
        if pod.uid in self.before or any(slot.kept == pod.uid for slot in self.slots):
            return []  # spared, or over: no UID comes twice
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
        held = self._slot_of(uid)
        return [] if held is None else self._over(held, "the pod is gone")

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
            return self._over(number, f"the pod has completed ({pod.phase})")
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

    def _over(self, number: int, why: str) -> list[Action]:
        """The slot has no pod any more."""
        slot = self.slots[number]
        uid, slot.open, slot.uid = slot.uid, True, ""
        if slot.place:
            slot.kept = uid
            return self._fill()
        return [End(number, uid, slot.node, why), *self._fill()]

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
        place = self.place_of(pod)
        del self.waiting[pod.uid]
        was, moved = (slot.uid or slot.kept), pod.node != slot.node
        why = f"takes the place of {slot.name}" + (f", now on node {pod.node}" if moved else "")
        done: list[Action] = []
        if slot.kept and place != slot.place:
            done = [End(number, slot.kept, slot.node, "its pod has another volume now")]
        elif slot.uid and (place != slot.place or not place):
            self.leaving[slot.uid] = (number, slot.node)
        same = bool(place) and place == slot.place
        slot.open, slot.uid, slot.name, slot.kept, slot.place = False, pod.uid, pod.name, "", place
        slot.containers = container_ids(pod)
        if moved and not self.moves:
            slot.uid = ""
            return [*done, Left(number, f"{pod.full_name} is on node {pod.node} now: not followed"
                                " there")]  # fmt: skip
        slot.node = pod.node
        if same:
            return [Keep(number, was, pod, why)]
        return [Arm(number, pod, why), *done]
