"""Which faults of a run follow which pods, and where they are by now; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from controller.experiment import Experiment
from controller.experiment_pods import FoundPod, FoundPods, PodsEntry, cluster_node
from controller.kube.asked import asked
from controller.kube.follow import Following, Slot
from controller.kube.objects import Pod
from controller.kube.select import Ask
from controller.kube.targets import check_ask
from controller.run_core import Core
from controller.run_plan import PlanItem, fault_id
from controller.run_state import ItemState, Life
from nodeagent.faults import kinds
from nodeagent.model.kind import FaultKind


@dataclass(frozen=True)
class Heard:
    """What a watch says of the pods of one entry of `targets`.

    pods: for `sync` all that there are. owners, volumes: by UID, as controller.kube.lookups has
    them. lost, failed: of the watch itself, with `why`.
    """

    target: str
    sort: Literal["sync", "seen", "gone", "lost", "failed"]
    pods: tuple[Pod, ...] = ()
    owners: Mapping[str, str] = field(default_factory=dict)
    volumes: Mapping[str, str] = field(default_factory=dict)
    why: str = ""


@dataclass
class Known:
    """What the API server has said of pods, by UID."""

    owners: dict[str, str] = field(default_factory=dict)
    volumes: dict[str, str] = field(default_factory=dict)

    def owner_of(self, pod: Pod) -> str:
        """As controller.kube.lookups has it."""
        return self.owners.get(pod.uid, "")

    def place_of(self, pod: Pod) -> str:
        """As controller.kube.lookups has it."""
        return self.volumes.get(pod.uid, "")


@dataclass
class Chase:
    """A pod that takes a place, until it can be said how its agent is asked to hit it."""

    pod: Pod
    why: str
    until: int
    cut: bool = False
    """It is the same pod with another container."""
    last: str = ""


@dataclass
class Trail:
    """One fault of the experiment on the pods of one entry."""

    target: str
    kind: FaultKind
    ask: Ask
    part: Mapping[str, Any]
    following: Following
    states: list[list[ItemState]]
    """By slot: its faults there, one for each container and each repetition."""
    part_of: dict[str, tuple[str, ...]]
    """Fault -> the container that it was planned for, where its pod has several."""
    chases: dict[int, Chase] = field(default_factory=dict)


def trails_of(core: Core, experiment: Experiment, known: Known) -> list[Trail]:
    """All faults of an experiment on pods that they follow."""
    found: list[Trail] = []
    for pods in core.plan.pods:
        entry = experiment.targets[pods.target].pods
        if not pods.follow or entry is None:
            continue
        for one in pods.pods:
            known.owners[one.uid], known.volumes[one.uid] = one.owner, one.place
        # Faults on objects are on the same pods, and follow nothing.
        followed = {i.name for i in core.plan.items if i.follow and _entry_of(i) == pods.target}
        for fault in sorted(followed):
            found.append(_trail(core, experiment, known, fault, (pods, entry)))
    return found


def _trail(
    core: Core, experiment: Experiment, known: Known, fault: str, on: tuple[FoundPods, PodsEntry]
) -> Trail:
    pods, entry = on
    kind = kinds()[experiment.faults[fault].kind]
    ask = check_ask(kind, asked(pods.namespace, entry.options(""))[1], entry.part)
    mine: dict[str, list[ItemState]] = {pod.pod: [] for pod in pods.pods}
    part_of: dict[str, tuple[str, ...]] = {}
    for item in core.plan.items:
        rest = item.target_name.split("/")[1:]
        if item.name == fault and item.follow and _entry_of(item) == pods.target:
            state = core.states[fault_id(core.settings.run, item.slot)]
            mine[f"{pods.namespace}/{rest[0]}"].append(state)
            part_of[state.id] = tuple(rest[1:])
    bound = any(s.item.target.get("container_id") for each in mine.values() for s in each)
    following = Following(
        known.owner_of,
        moves=pods.follow == "move",
        restarts=bound and ask.volume is None,
        place_of=known.place_of,
        slots=[_slot(experiment, pod, mine[pod.pod]) for pod in pods.pods],
        before=set(pods.others),
    )
    return Trail(pods.target, kind, ask, entry.part, following, list(mine.values()), part_of)


def _entry_of(item: PlanItem) -> str:
    return item.target_name.partition("/")[0]


def _slot(experiment: Experiment, pod: FoundPod, states: list[ItemState]) -> Slot:
    slot = Slot(
        pod.owner if states else "",
        pod.pod.partition("/")[2],
        _within(experiment, pod.node),
        pod.uid,
        tuple(sorted(pod.containers.values())),
        place=pod.place,
    )
    for state in states:
        _begin(state, slot, pod.pod)
    _resume(experiment, slot, states)
    return slot


def _resume(experiment: Experiment, slot: Slot, states: Iterable[ItemState]) -> None:
    """A slot as a controller before has left it."""
    moved = next((s for s in states if s.travel.pod and not s.life.final), None)
    waits = any(s.life is Life.MOVING and not s.travel.uid for s in states)
    if waits:
        slot.open, slot.uid, slot.place = True, "", ""
    elif moved is not None:
        travel = moved.travel
        slot.node, slot.uid = _within(experiment, moved.item.node), travel.uid
        slot.name, slot.containers = travel.pod.partition("/")[2], travel.containers
        slot.place = travel.volume


def _within(experiment: Experiment, node: str) -> str:
    """What the cluster calls a node of the run."""
    entry = experiment.nodes.get(node)
    return (cluster_node(entry.agent) if entry else None) or node


def names_of(experiment: Experiment) -> dict[str, str]:
    """Name of a node in the cluster -> name in the file, where that gives it another."""
    found = {cluster_node(entry.agent): name for name, entry in experiment.nodes.items()}
    return {node: name for node, name in found.items() if node is not None}


def _begin(state: ItemState, slot: Slot, pod: str) -> None:
    """Of a fault that is where it was planned, by whomever it was begun."""
    travel = state.travel
    if not travel.uid and state.life is not Life.MOVING:
        travel.uid, travel.pod, travel.containers = slot.uid, pod, slot.containers
        travel.volume = slot.place
