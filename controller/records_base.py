"""What all records of a run share, and the words that they use; pure."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Verdict = Literal["pass", "fail", "unknown"]
Phase = Literal["before", "during", "after", "hold"]
Role = Literal["fault", "noise"]

EndWord = Literal[
    "reverted",
    "expired",
    "remedied",
    "agent-lost",
    "rebooted",
    "apply-failed",
    "unconfirmed",
    "done",
]
"""nodeagent.model.record.EndReason, and two more. `unconfirmed`: the node did not answer any
more, so that only its own lease is known to end the fault. `done`: it was over at once, as the
deletion of a pod is, and nothing was armed."""

MOVED_AWAY = "moved away"
"""By what a fault ended that follows its workload on one node only, when that left the node."""

DropWord = Literal[
    "late",  # its start had passed by more than the run allows
    "expired-before-start",  # nothing was left of its life when it could have started
    "limit",  # a limit of the schedule kept it out
    "refused",  # the node, a guard rail or a conflict said no
    "unreachable",  # the node could not be asked
    "stopped",  # the run ended or was stopped before
    "guard",  # a guard of the experiment broke before
    "group",  # another of those that are armed together, or not at all, was not
    "paused",  # its start fell in a pause
]
"""Why a planned fault was never injected."""


class Record(BaseModel):
    """What all lines share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    v: Literal[1] = 1
    t_ns: int
    wall: str


class GroundTruth(BaseModel):
    """The truth about a fault; only in the run folder, never visible to an operator under test."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    category: str = Field(description="such as disk, network, process, load, kernel")
    mechanism: str = Field(description="what breaks, in words: latent sectors under a table")
    service: str = Field(description="the service that is to be blamed")
    scope: tuple[str, ...] = Field(description="services and nodes that feel it")
    symptom_probe: str = Field(default="", description="name of the probe that shows it")
    artifact: str = Field(
        default="", description="responsible object: device and sectors, pod, configuration key"
    )
    remedies: tuple[str, ...] = Field(
        default=(), description="names of the accepted remedies of the experiment"
    )
    root_cause: str = Field(description="the root cause in one or two sentences")
