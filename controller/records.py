"""What is written in a run folder: versioned records, one JSON object a line.

Pure data. A run folder holds the files of `RUN_FILES`; a bundle holds the same files,
sealed. Every record has `v` (format version of the record), `type`, and two times:

t_ns   nanoseconds since the origin of the run on the controller's CLOCK_BOOTTIME,
       which neither steps nor stops while the machine sleeps; negative before the origin.
wall   the controller's wall clock at the same moment, RFC 3339 in UTC, for people.

A time that a node measured is in `node_ns` (CLOCK_BOOTTIME of that node); `ClockOffset`
records tie it to `t_ns`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from controller.records_base import (
    DropWord,
    EndWord,
    GroundTruth,
    Phase,
    Record,
    Role,
    Verdict,
)
from controller.records_faults import (
    FaultArmed,
    FaultBiting,
    FaultDropped,
    FaultEnded,
    FaultLeft,
    FaultMoved,
    FaultPlanned,
    FaultWaits,
)

__all__ = [
    "EXPERIMENT_FILE",
    "FILE_OF",
    "FORMAT_VERSION",
    "HEADER_FILE",
    "PLAN_FILE",
    "RUN_FILES",
    "AgentEvent",
    "AnyRecord",
    "ClockOffset",
    "DropWord",
    "EndWord",
    "FaultArmed",
    "FaultBiting",
    "FaultDropped",
    "FaultEnded",
    "FaultLeft",
    "FaultMoved",
    "FaultPlanned",
    "FaultWaits",
    "GroundTruth",
    "NodeRecord",
    "OperatorAction",
    "Phase",
    "Record",
    "Role",
    "RunEvent",
    "RunHeader",
    "SampleRecord",
    "SampleRef",
    "Submission",
    "Verdict",
    "VerdictRecord",
    "parse_record",
    "record_line",
]

FORMAT_VERSION = 1
"""Of the run folder as a whole; another one is refused, never guessed at."""

# --- run.json, one object -------------------------------------------------------------


class RunHeader(BaseModel):
    """run.json: what a reader must know before it opens anything else."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT_VERSION
    run: str = Field(description="id of the run, from which its fault ids are derived")
    experiment: str = Field(description="name of the experiment")
    seed: int
    noise: bool
    blind: bool
    faultctl: str = Field(description="version of faultctl")
    python: str = ""
    created: str = Field(description="wall clock, RFC 3339")
    origin_boottime_ns: int = Field(description="controller's CLOCK_BOOTTIME at t_ns = 0")
    boot_id: str = Field(description="of the controller's machine; t_ns means nothing in another")
    experiment_sha256: str = ""
    plan_sha256: str = ""
    repeat: int = Field(default=1, description="which repetition of a repeated run this is")


# --- nodes.jsonl, clocks.jsonl --------------------------------------------------------


class NodeRecord(Record):
    """A node as it was found at the start, or found again."""

    type: Literal["node"] = "node"
    node: str
    address: str
    agent_version: str
    facts: dict[str, Any]
    kinds: dict[str, dict[str, str]] = Field(
        default={}, description="kind -> mechanism -> what is missing, empty if nothing is"
    )


class ClockOffset(Record):
    """node_ns ≈ origin_boottime_ns + t_ns + offset_ns, within error_ns (half the round trip)."""

    type: Literal["clock"] = "clock"
    node: str
    node_ns: int
    offset_ns: int
    error_ns: int


# --- events.jsonl ----------------------------------------------------------------------


class RunEvent(Record):
    """Something that happened to the run or to a node of it.

    name: started, stage, guard-broken, paused, resumed, stopping, node-lost, node-back,
    clock-jump, takeover, noise-missing, finished, ...; further names may come.
    """

    type: Literal["run-event"] = "run-event"
    name: str
    node: str | None = None
    data: dict[str, Any] = Field(default={})


class AgentEvent(Record):
    """An event of a node's agent, as its journal has it; t_ns is when it was received."""

    type: Literal["agent-event"] = "agent-event"
    node: str
    seq: int
    fault: str
    agent_fault: str = Field(default="", description="its id on the node, if it has moved")
    name: str
    node_ns: int
    node_wall: str
    data: dict[str, Any] = Field(default={})


# --- samples.jsonl ----------------------------------------------------------------------


class SampleRecord(Record):
    """One measurement of a probe or of the load driver; t_ns is its start."""

    type: Literal["sample"] = "sample"
    probe: str = Field(description="name of the probe in the experiment")
    phase: Phase
    verdict: Verdict
    duration_ns: int
    node: str | None = None
    node_ns: int | None = None
    reason: str = ""
    data: dict[str, Any] = Field(default={}, description="numbers of the probe: latency, rate, ...")


# --- operator.jsonl ----------------------------------------------------------------------


class OperatorAction(Record):
    """Something that the operator under test did, as far as it could be seen."""

    type: Literal["action"] = "action"
    actor: str = ""
    act: str = Field(description="command or call")
    service: str = Field(default="", description="what it was aimed at, if that is known")
    executed: bool = True
    data: dict[str, Any] = Field(default={})


class Submission(Record):
    """What the operator handed in: a report on the way, a diagnosis, or that it is repaired."""

    type: Literal["submission"] = "submission"
    kind: Literal["report", "diagnosis", "mitigation"]
    actor: str = ""
    fault: str = Field(default="", description="only if the operator was told ids")
    accepted: bool = True
    why_not: str = ""
    data: dict[str, Any] = Field(default={})


# --- verdicts.jsonl ----------------------------------------------------------------------


class SampleRef(BaseModel):
    """A sample, or a window of them, that decided."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    probe: str
    from_ns: int
    to_ns: int
    note: str = ""


class VerdictRecord(Record):
    """What an oracle or a judge decided, from what, and by which rule."""

    type: Literal["verdict"] = "verdict"
    subject: str = Field(description="fault id, group id, or run")
    oracle: str
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    deciding: tuple[SampleRef, ...] = ()
    rule: str = ""
    threshold: str = ""
    data: dict[str, Any] = Field(default={})


AnyRecord = Annotated[
    NodeRecord
    | ClockOffset
    | RunEvent
    | AgentEvent
    | FaultPlanned
    | FaultArmed
    | FaultBiting
    | FaultMoved
    | FaultWaits
    | FaultLeft
    | FaultEnded
    | FaultDropped
    | SampleRecord
    | OperatorAction
    | Submission
    | VerdictRecord,
    Field(discriminator="type"),
]

FILE_OF: dict[str, str] = {
    "node": "nodes.jsonl",
    "clock": "clocks.jsonl",
    "run-event": "events.jsonl",
    "agent-event": "events.jsonl",
    "planned": "faults.jsonl",
    "armed": "faults.jsonl",
    "biting": "faults.jsonl",
    "moved": "faults.jsonl",
    "waits": "faults.jsonl",
    "left": "faults.jsonl",
    "ended": "faults.jsonl",
    "dropped": "faults.jsonl",
    "sample": "samples.jsonl",
    "action": "operator.jsonl",
    "submission": "operator.jsonl",
    "verdict": "verdicts.jsonl",
}
"""Record type -> the file that holds it."""

HEADER_FILE = "run.json"
EXPERIMENT_FILE = "experiment.yaml"
PLAN_FILE = "plan.json"
RUN_FILES = (HEADER_FILE, EXPERIMENT_FILE, PLAN_FILE, *sorted(set(FILE_OF.values())))
"""All files of a run folder that belong to the record; evidence/ may hold more."""

_ADAPTER: TypeAdapter[AnyRecord] = TypeAdapter(AnyRecord)


def parse_record(line: str | bytes) -> AnyRecord:
    """One line of a run folder. Raises pydantic.ValidationError."""
    return _ADAPTER.validate_json(line)


def record_line(record: Record) -> str:
    """The line of a record, without the newline: compact, UTF-8."""
    return record.model_dump_json()
