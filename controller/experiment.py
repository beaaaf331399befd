"""The experiment file as a model: what to break, where, when, and what must hold meanwhile.

Shapes only; what can be checked across parts is in experiment_check, what comes out of it
in experiment_plan. `probes`, `load` and `oracles` are read by the models of those rooms
(experiment_parts names them).
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from controller.experiment_pods import PeersEntry
from controller.experiment_targets import (
    Name,
    NodeEntry,
    NodeName,
    PositiveDuration,
    TargetEntry,
)
from controller.records import GroundTruth
from nodeagent.model.plan import LeaseDuration
from nodeagent.model.units import Duration, Percent

EXPERIMENT_VERSION = 1
MAX_REPEATS = 100_000


class Part(BaseModel):
    """Immutable; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StageEntry(Part):
    """A named stretch of time that faults refer to."""

    after: tuple[Name, ...] = Field(default=(), description="stages that must have ended")
    delay: Duration = Field(default=timedelta(0), description="after the last of them")
    duration: PositiveDuration = Field(alias="for")


class RepeatEntry(Part):
    """The same fault again and again."""

    every: PositiveDuration = Field(description="from start to start")
    times: int = Field(ge=1, le=MAX_REPEATS)
    overlap: Literal["skip", "queue"] = Field(
        default="skip",
        description="when the one before still lives: leave this one out, or start it right after",
    )


class FaultEntry(Part):
    """A fault on the timeline, with its ground truth."""

    kind: str
    target: Name | tuple[Name, ...] = Field(description="name of a target, or several at once")
    at: Duration = Field(default=timedelta(0), description="start, from its stage or the run")
    duration: PositiveDuration | None = Field(
        default=None, alias="for", description="life; absent: to the end of its stage or the run"
    )
    stage: Name | None = None
    spec: dict[str, Any] = {}
    to_pods: PeersEntry | None = Field(
        default=None, description="network kinds on pods: only to these, besides the spec's `to`"
    )
    mechanism: str | None = None
    acknowledge: tuple[str, ...] = ()
    repeat: RepeatEntry | None = None
    truth: GroundTruth | None = Field(default=None, description="required when runs are blind")
    remedies: tuple[Name, ...] = Field(
        default=(), description="remedies of this file that end it; the kind's own count always"
    )

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of its targets."""
        return (self.target,) if isinstance(self.target, str) else self.target


class Overload(Part):
    """What must go on by itself when the trigger of a metastable group is gone."""

    probe: Name = Field(description="fails while the system is overloaded")
    hold: PositiveDuration = Field(description="how long it must go on after the verified revert")
    grace: Duration = Field(
        default=timedelta(seconds=5), description="after the revert, before it is judged"
    )
    share: Percent = Field(
        default=Decimal(80), description="of the samples in the hold window that must fail"
    )


class GroupEntry(Part):
    """Faults that belong together."""

    type: Literal["single", "concurrent", "correlated", "metastable"]
    faults: tuple[Name, ...] = Field(min_length=1)
    cause: str = Field(default="", description="correlated: what they share, in words")
    overload: Overload | None = Field(default=None, description="metastable only")

    @model_validator(mode="after")
    def _fits(self) -> GroupEntry:
        if (self.type == "metastable") != (self.overload is not None):
            raise ValueError("overload belongs to metastable groups, and only to them")
        if self.type == "single" and len(self.faults) != 1:
            raise ValueError("a single group has one fault")
        if self.type in ("concurrent", "correlated") and len(self.faults) < 2:
            raise ValueError(f"a {self.type} group has at least two faults")
        return self


class ActEntry(Part):
    """A command that carries a remedy out; no shell."""

    command: tuple[str, ...] = Field(min_length=1)
    node: Name | None = Field(default=None, description="absent: on the controller's machine")
    timeout: PositiveDuration = timedelta(seconds=60)


class RemedyEntry(Part):
    """An act of the operator, recognised by a probe that begins to pass, or by the node."""

    probe: Name | None = Field(
        default=None, description="absent: the node recognises it, as the kind's page says"
    )
    passes: int = Field(default=2, ge=1, le=1000, description="in a row, after the fault armed")
    doc: str = Field(default="", description="the act in words")
    act: ActEntry | None = Field(
        default=None, description="how `oracle check` does it; absent: the node takes it back"
    )


class GuardEntry(Part):
    """A probe that must hold; when it breaks, everything is reverted and the run ends."""

    probe: Name
    failures: int = Field(default=3, ge=1, le=1000, description="in a row that break it")
    unknown: Literal["ignore", "fail"] = Field(
        default="ignore", description="what a sample counts that could not be measured"
    )


class Caps(Part):
    """The blast radius: how much may be broken at once."""

    nodes: int | None = Field(default=None, ge=1, description="nodes with live faults at once")
    targets: int | None = Field(default=None, ge=1, description="targets under faults at once")
    faults: int | None = Field(default=None, ge=1, description="faults live at once")


class NoiseEntry(Part):
    """Background disturbances; see the noise profiles."""

    profile: Literal["paper", "code"] = "paper"
    targets: tuple[Name, ...] | None = Field(default=None, description="absent: all of the file")
    catalogue: tuple[str, ...] | None = Field(default=None, description="absent: all that fit")
    anchor: Literal["start", "end"] = Field(
        default="end", description="`code`: what its cool-down counts from"
    )
    in_oracle_windows: bool = Field(default=False, description="also while an oracle measures")


class SteadyEntry(Part):
    """What must be healthy before anything is broken."""

    probes: tuple[Name, ...] = Field(default=(), description="absent: all probes")
    duration: PositiveDuration = Field(default=timedelta(seconds=30), alias="for")
    share: Percent = Field(default=Decimal(100), description="of samples that must pass")


class Experiment(Part):
    """An experiment file."""

    version: Literal[1]
    name: Name
    about: str = ""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    duration: PositiveDuration = Field(description="from the first moment of the timeline")
    blind: bool = Field(default=True, description="hide what names the fault from the operator")
    lease: LeaseDuration = Field(
        default=timedelta(minutes=1), description="life of all faults without word from the run"
    )
    late: Duration = Field(
        default=timedelta(seconds=30),
        description="a start later than this is dropped; up to it, it is played with what is left",
    )
    early_end: bool = Field(
        default=True, description="end the run when all hold windows of its oracles are over"
    )
    nodes: dict[NodeName, NodeEntry] = Field(default={}, max_length=10_000)
    targets: dict[Name, TargetEntry] = Field(default={}, max_length=100_000)
    stages: dict[Name, StageEntry] = {}
    faults: dict[Name, FaultEntry] = Field(default={}, max_length=100_000)
    groups: dict[Name, GroupEntry] = {}
    remedies: dict[Name, RemedyEntry] = {}
    guards: dict[Name, GuardEntry] = {}
    caps: Caps = Caps()
    noise: NoiseEntry | None = None
    steady: SteadyEntry | None = None
    probes: dict[Name, dict[str, Any]] = {}
    load: dict[Name, dict[str, Any]] = {}
    oracles: dict[Name, dict[str, Any]] = {}

    @model_validator(mode="after")
    def _lease_renewable(self) -> Experiment:
        if self.lease < timedelta(seconds=5):
            raise ValueError("lease: at least 5s, or a slow answer ends every fault")
        return self
