"""What the run's core and its effects tell each other, as data; and what it knows of each fault."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from controller.run_plan import HARD_MARGIN_NS, PlanItem
from nodeagent.model.errors import FaultError


class Life(StrEnum):
    """Where a planned fault is, as far as this controller knows."""

    WAITING = "waiting"
    APPLYING = "applying"
    """Its request is under way, or may have arrived without an answer."""
    ARMED = "armed"
    MOVING = "moving"
    """Its pod is gone or goes: it waits for the next one, or is being armed there."""
    REVERTING = "reverting"
    ENDED = "ended"
    DROPPED = "dropped"

    @property
    def final(self) -> bool:
        return self in (Life.ENDED, Life.DROPPED)


# --- from the core to the effects ------------------------------------------------------------


@dataclass(frozen=True)
class Prepare:
    """Plan a fault on its node ahead of its start, so that only Apply is left to do then."""

    item: PlanItem


@dataclass(frozen=True)
class Apply:
    """Inject a fault, unless it is too late when its turn on the node comes.

    look_first: an earlier try may have arrived; ask before doing.
    not_after:  the last moment to send it; its node ends it `margin_ns` after `end_ns`.
    """

    item: PlanItem
    lease_ns: int
    end_ns: int
    not_after: int
    margin_ns: int = 0
    look_first: bool = False


@dataclass(frozen=True)
class Look:
    """Ask the node what it knows of a fault."""

    item: PlanItem


@dataclass(frozen=True)
class Revert:
    """Take a fault back; with `remedy`, because an operator's act ended it."""

    item: PlanItem
    remedy: str = ""


@dataclass(frozen=True)
class Tend:
    """Renew the lease of a node's faults and fetch the events since `after`."""

    node: str
    renew: tuple[str, ...]
    ids: frozenset[str]
    after: int
    measured: bool = False
    """An oracle measures: that the agent answers goes into the record, as its clock."""


Action = Prepare | Apply | Look | Revert | Tend


def node_of(action: Action) -> str:
    """The node that an action goes to."""
    return action.node if isinstance(action, Tend) else action.item.node


class TooLate(FaultError):
    """Its turn came after the last moment to send it; nothing was sent."""

    code = "late"


# --- from the effects to the core ------------------------------------------------------------


@dataclass(frozen=True)
class FaultView:
    """A fault as its node has it."""

    id: str
    state: str
    end_reason: str = ""
    mechanism: str = ""
    biting: bool = False
    hits: int = 0
    first_hit_ns: int | None = None
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeEvent:
    """An event of a node's journal."""

    seq: int
    fault: str
    name: str
    node_ns: int
    wall: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Done:
    """What came of an action. Exactly one of `views` and `error` says so; both may be empty
    for a Prepare, and for a Look at a fault that the node does not know."""

    action: Action
    sent_ns: int
    views: tuple[FaultView, ...] = ()
    events: tuple[NodeEvent, ...] = ()
    error: FaultError | None = None
    clock: tuple[int, int] | None = None
    """(offset of the node's CLOCK_BOOTTIME to the controller's, half the round trip)."""
    node_ns: int = 0
    unsent: bool = False
    """Of an Apply with an error: its request never left, now or before."""


# --- what the core knows -----------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A pod that a fault is to hit next: where it is, and as its agent is asked for it."""

    node: str
    zone: str
    target_name: str
    target: dict[str, Any]
    pod: str
    uid: str
    containers: tuple[str, ...] = ()
    volume: str = ""
    """The volume that is hit, if it outlives the pod."""
    why: str = ""
    cut: bool = False
    """What it was bound to before is gone already: a container of the same pod."""


@dataclass
class Travel:
    """Where a fault that follows its workload is on its way."""

    pod: str = ""
    uid: str = ""
    containers: tuple[str, ...] = ()
    volume: str = ""
    why: str = ""
    leaving: bool = False
    """Its pod is being deleted or has completed, and all that goes with it."""
    absent: str = ""
    """Before its start: why it has no pod."""
    next: Place | None = None
    """Where it goes once it is known that it was armed at first."""
    gone: list[tuple[str, str]] = field(default_factory=list)
    """Pods that went meanwhile: (uid, why)."""
    remnants: list[ItemState] = field(default_factory=list)
    """What it still is on pods that it was on before."""
    hunting: bool = False
    """The next pod is known, and is to be hit as soon as that can be."""
    fresh: bool = False
    """Its turn has been given to no pod yet."""
    asked: bool = False
    """Its node's answer is awaited."""
    seek_ns: int | None = None
    give_up_ns: int = 0
    doom: tuple[str, str] | None = None
    """(by whom or what it ends, remedy), as soon as it is known that it is nowhere."""
    ending: tuple[str, dict[str, Any]] | None = None
    """Its end, once nothing of it is left on earlier pods."""
    doubt_ns: int | None = None
    """Until then it may turn out that its target went with its pod."""
    told: bool = False
    """The node's own words about its end have come."""
    target_gone: bool = False
    """They say that its target is gone, by whatever."""
    places: list[dict[str, Any]] = field(default_factory=list)
    """What became of it on each earlier pod."""

    def come_to(self, place: Place) -> None:
        """Its pod is another one now."""
        self.pod, self.uid, self.containers = place.pod, place.uid, place.containers
        self.volume, self.why, self.leaving = place.volume, place.why, False


@dataclass
class ItemState:
    """One planned fault, or what is left of one on a pod that it followed away from (`parent`);
    times from the origin."""

    item: PlanItem
    id: str
    """Of the fault in the record, whatever pod it is on; Core.id_of has that on its node."""
    life: Life = Life.WAITING
    end_ns: int = 0
    """When its life ends by plan; fixed when it is applied."""
    sent_ns: int | None = None
    armed_ns: int | None = None
    maybe_there: bool = False
    biting: bool = False
    tries: int = 0
    why: str = ""
    """Who or what took it back."""
    remedy: str = ""
    last_error: str = ""
    passes: dict[str, int] = field(default_factory=dict)
    parent: ItemState | None = None
    travel: Travel = field(default_factory=Travel)

    @property
    def root(self) -> ItemState:
        """The fault itself."""
        return self if self.parent is None else self.parent


@dataclass
class NodeState:
    """One node; `since` is when it was lost."""

    name: str
    lost_since: int | None = None
    after: int = 0
    renewed_ns: int = 0
    watched: bool = False
    """A timer to look after it is set, or its answer is awaited."""
    tending: bool = False
    measured_until: int = 0
    """Until then an oracle measures, and the agent must be heard though nothing lives there."""
    live: dict[str, ItemState] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """How a run behaves. Nanoseconds."""

    run: str
    lease_ns: int
    late_ns: int
    poll_ns: int = 2_000_000_000
    prepare_ns: int = 5_000_000_000
    settle_ns: int = 90_000_000_000
    """After the end of a run: how long nodes that do not answer are waited for."""
    hard_margin_ns: int = HARD_MARGIN_NS
    """How much later than planned the node ends a fault by itself, whatever happens."""
    skew_ns: int = 3_000_000_000
    """An expiry on the node this much before the planned end is the planned end."""
    max_faults: int | None = None
    max_nodes: int | None = None

    @property
    def renew_ns(self) -> int:
        """How often a lease is renewed."""
        return max(self.lease_ns // 3, 1_000_000_000)


BACKOFF_NS = (500_000_000, 1_000_000_000, 2_000_000_000, 5_000_000_000)


def backoff(tries: int) -> int:
    """Pause before the next try, growing to 5 s."""
    return BACKOFF_NS[min(tries, len(BACKOFF_NS) - 1)]
