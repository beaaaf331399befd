"""faults.jsonl: what was planned, what became of it; pure."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from controller.records_base import DropWord, EndWord, GroundTruth, Record, Role


class FaultPlanned(Record):
    """A fault or noise of the plan; t_ns is when it was written, not when it starts."""

    type: Literal["planned"] = "planned"
    fault: str = Field(description="id on the node, derived from run and slot")
    slot: str = Field(description="its place in the plan; the same in every run of it")
    role: Role
    node: str
    kind: str
    target: dict[str, Any]
    spec: dict[str, Any]
    group: str = Field(default="", description="id shared by the faults of a group")
    group_type: Literal["single", "concurrent", "correlated", "metastable", "pods"] = "single"
    whole: str = Field(default="", description="id of those that are armed together or not at all")
    start_ns: int = Field(description="planned start, from the origin")
    duration_ns: int | None = Field(description="planned life; None lasts to the end of the run")
    truth: GroundTruth | None = Field(default=None, description="None for noise, always")


class FaultArmed(Record):
    """The node's kernel said that the fault is there; t_ns is when the answer came."""

    type: Literal["armed"] = "armed"
    fault: str
    role: Role
    node: str
    mechanism: str
    start_ns: int = Field(description="planned start")
    sent_ns: int = Field(description="when the request left; actual start, seen from here")
    taken_over: bool = Field(default=False, description="found armed by a controller that resumed")
    turn: int = Field(default=0, description="more, if its pod was replaced before the start")


class FaultBiting(Record):
    """First evidence that somebody was hit."""

    type: Literal["biting"] = "biting"
    fault: str
    role: Role
    node: str
    hits: int
    node_ns: int | None = None


class FaultMoved(Record):
    """A fault that follows its workload is on another pod; it is one fault all the while.

    Written once before its node is asked (armed: False), so that whoever takes the run over
    looks there too, and once when the node says that it is there.
    """

    type: Literal["moved"] = "moved"
    fault: str
    role: Role
    node: str
    armed: bool
    turn: int = Field(description="0: the pod that was chosen at first; each has its own id")
    agent_fault: str = Field(description="its id on this node")
    pod: str = Field(description="NAMESPACE/NAME")
    uid: str
    containers: tuple[str, ...] = Field(default=(), description="ids of those that ran")
    volume: str = Field(default="", description="that is hit, if it outlives the pod")
    zone: str = ""
    target_name: str
    target: dict[str, Any]
    mechanism: str = ""
    why: str = ""


class FaultWaits(Record):
    """The pod of a fault that follows is gone, and no other has taken its place yet."""

    type: Literal["waits"] = "waits"
    fault: str
    role: Role
    node: str
    turn: int = Field(description="that the next pod will have")
    why: str


class FaultLeft(Record):
    """What a fault that follows was on one pod is no more; the fault itself may go on."""

    type: Literal["left"] = "left"
    fault: str
    role: Role
    node: str
    turn: int
    agent_fault: str
    reason: EndWord
    by: str = ""
    evidence: dict[str, Any] = Field(default={})
    error: str = ""


class FaultEnded(Record):
    """Nothing of the fault is left, for exactly one reason."""

    type: Literal["ended"] = "ended"
    fault: str
    role: Role
    node: str
    reason: EndWord
    by: str = Field(
        default="",
        description="plan, remedy NAME, guard NAME, group, stop, interrupt, end, node, moved away: "
        "who or what did it",
    )
    node_ns: int | None = None
    agent_fault: str = Field(
        default="", description="its id on the node, if it has moved; of nothing if it waited"
    )
    evidence: dict[str, Any] = Field(
        default={}, description="hits are of all pods it was on, which `places` has one by one"
    )
    error: str = ""


class FaultDropped(Record):
    """A fault of the plan that was never injected, and why."""

    type: Literal["dropped"] = "dropped"
    fault: str
    role: Role
    node: str
    reason: DropWord
    detail: str = ""
