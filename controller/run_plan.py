"""The resolved plan of a run, as data: every fault and noise with its node, start and end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from controller.experiment_pods import FoundObjects, FoundPods
from controller.kube.kinds import cluster_kinds
from controller.records import GroundTruth, Role
from controller.schedule_core import peak
from nodeagent.model.plan import FaultRequest

PLAN_VERSION = 1
HARD_MARGIN_NS = 10_000_000_000
"""How much later than planned the node ends a fault by itself, whatever happens."""
GroupType = Literal["single", "concurrent", "correlated", "metastable", "pods"]
"""`pods`: one fault on several pods; each of its members ends by itself."""


class PlanItem(BaseModel):
    """One fault or noise, fully resolved. Times are nanoseconds from the origin of the run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    slot: str = Field(description="its place in the plan; ids are derived from it")
    role: Role = "fault"
    name: str = Field(default="", description="of the fault in the experiment")
    node: str
    zone: str = ""
    service: str
    target_name: str
    kind: str
    target: dict[str, Any]
    spec: dict[str, Any] = {}
    mechanism: str | None = None
    acknowledge: tuple[str, ...] = ()
    group: str = ""
    group_type: GroupType = "single"
    whole: str = Field(
        default="", description="armed with all that have the same word here, or not at all"
    )
    start_ns: int = Field(ge=0)
    end_ns: int = Field(gt=0)
    to_the_end: bool = Field(default=False, description="lives until the run ends")
    truth: GroundTruth | None = None
    remedies: tuple[str, ...] = ()
    follow: Literal["", "move", "stay"] = Field(
        default="", description="whether it goes with its workload to the pod that comes next"
    )
    turn: int = Field(default=0, exclude=True)
    """How many pods it was on before this one; no matter of the plan."""

    @property
    def agent_slot(self) -> str:
        """What its id on its node is derived from: an agent takes an id once."""
        return f"{self.slot}~{self.turn}" if self.turn else self.slot

    @property
    def hard_end(self) -> timedelta:
        """How long its node lets it live at the very most."""
        return timedelta(microseconds=(self.end_ns - self.start_ns + HARD_MARGIN_NS) // 1000)

    @property
    def on_objects(self) -> bool:
        """Whether it is on the cluster's own objects, and done by the controller."""
        return self.kind in cluster_kinds()

    def request(self, run: str) -> FaultRequest:
        """What the node is asked; neutral words only, the node shows them to anybody."""
        return FaultRequest(
            id=fault_id(run, self.agent_slot),
            kind=self.kind,
            target=self.target,
            spec=self.spec,
            mechanism=self.mechanism,
            acknowledge=self.acknowledge,
            owner=f"run {run}",
        )


class PlanChange(BaseModel):
    """What the making of the plan left out or moved, and by which rule."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    slot: str
    action: Literal["dropped", "delayed"]
    rule: str
    detail: str = ""


class RunPlan(BaseModel):
    """What a run will do."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    experiment: str
    seed: int
    end_ns: int
    items: tuple[PlanItem, ...]
    changes: tuple[PlanChange, ...] = ()
    cluster: str = Field(default="", description="that the run's pods and agents are of")
    pods: tuple[FoundPods, ...] = ()
    objects: tuple[FoundObjects, ...] = ()
    ledger: str = Field(
        default="", description="journal of the faults on the cluster's objects; empty for none"
    )

    @property
    def open_targets(self) -> tuple[str, ...]:
        """Targets whose pods were not looked up: such a plan is one to look at."""
        return tuple(dict.fromkeys(item.target_name for item in self.items if not item.node))

    def of(self, role: Role) -> tuple[PlanItem, ...]:
        """The faults, or the noise."""
        return tuple(item for item in self.items if item.role == role)

    def timeline(self, role: Role = "fault") -> bytes:
        """The timeline of the faults (or of the noise), byte for byte comparable."""
        data = [item.model_dump(mode="json") for item in self.of(role)]
        return canonical(data)

    def text(self) -> str:
        """plan.json: the faults' timeline does not depend on the noise beside it."""
        head = self.model_dump(mode="json", exclude={"items"})
        data = {
            **head,
            "faults_sha256": hashlib.sha256(self.timeline()).hexdigest(),
            "faults": [item.model_dump(mode="json") for item in self.of("fault")],
            "noise": [item.model_dump(mode="json") for item in self.of("noise")],
        }
        return json.dumps(data, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_text(cls, text: str | bytes) -> RunPlan:
        """Reads plan.json. Raises ValueError."""
        data = json.loads(text)
        items = sorted_items(
            PlanItem.model_validate(item) for item in [*data.pop("faults"), *data.pop("noise")]
        )
        data.pop("faults_sha256", None)
        return cls.model_validate({**data, "items": items})


def canonical(data: Any) -> bytes:
    """JSON with sorted keys and no spaces, ASCII."""
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode("ascii")


def sorted_items(items: Iterable[PlanItem]) -> tuple[PlanItem, ...]:
    """In order of starts; slots decide between equal ones."""
    return tuple(sorted(items, key=lambda item: (item.start_ns, item.slot)))


def fault_id(run: str, slot: str) -> str:
    """The id of a slot's fault in a run: always the same, and says nothing to who reads it."""
    return "x" + hashlib.sha256(f"{run}/{slot}".encode()).hexdigest()[:23]


def most_at_once(items: Iterable[PlanItem], of: Literal["faults", "nodes", "targets"]) -> int:
    """The most faults, or nodes or targets with faults, at one moment."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for item in items:
        key = {
            "faults": item.slot,
            "nodes": item.node,
            "targets": f"{item.node}/{item.target_name}",
        }[of]
        spans.setdefault(key, []).append((item.start_ns, item.end_ns))
    merged = [span for found in spans.values() for span in merge(found)]
    if not merged:
        return 0
    return peak(merged, min(a for a, _ in merged), max(b for _, b in merged))


def merge(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans that touch or overlap become one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found
