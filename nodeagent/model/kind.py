"""The contract of a fault kind.

A kind is one file in nodeagent/faults with a module-level `KIND`. Everything else,
its command-line options, help, JSON schema, validation, documentation page and wire
form, is derived from what it says here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict

from nodeagent.model.evidence import Evidence, IoRecord, NodeEvent
from nodeagent.model.facts import Facts, Need
from nodeagent.model.ranges import Ranges
from nodeagent.model.steps import StepBase
from nodeagent.model.target import TargetBase


class FaultSpec(BaseModel):
    """Base of all specs: immutable, unknown fields refused, units in types."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    example: ClassVar[str] = ""


@dataclass(frozen=True)
class Context:
    """All that a pure planner may look at."""

    fault_id: str
    target: TargetBase
    binding: Any
    """The target resolved to kernel identities (nodeagent.model.binding)."""
    facts: Facts


@dataclass(frozen=True)
class Measured:
    """What the backends measured for one step of an armed fault."""

    step: StepBase
    data: dict[str, Any]


@dataclass(frozen=True)
class Reaction:
    """What a fault's own rules make of an event: a changed step, or its end."""

    replace: tuple[int, StepBase] | None = None
    """(index of the step, the step that takes its place)."""
    remedied: str = ""
    """Not empty: the fault ends as remedied, for this reason."""


class PlanFn(Protocol):
    def __call__(self, spec: Any, context: Context) -> Sequence[StepBase]: ...


class SupportsFn(Protocol):
    def __call__(self, spec: Any, context: Context) -> str | None: ...


def _always(spec: Any, context: Context) -> str | None:
    return None


@dataclass(frozen=True)
class Rung:
    """One mechanism of a kind's ladder.

    needs:    what the node must have, for a precise refusal.
    supports: None if it can do what this spec asks of this binding, else the reason.
    plan:     the steps; pure.
    """

    name: str
    summary: str
    needs: Callable[[Any], tuple[Need, ...]]
    plan: PlanFn
    supports: SupportsFn = _always
    only_named: bool = False
    """Never picked by itself: only by --mechanism."""


@dataclass(frozen=True)
class Guard:
    """A guard rail in the way of a plan; `name` is what --i-know takes."""

    name: str
    reason: str


def _no_guards(spec: Any, context: Context) -> tuple[Guard, ...]:
    return ()


def _no_reaction(spec: Any, steps: tuple[StepBase, ...], event: NodeEvent) -> Reaction | None:
    return None


def _failed(spec: Any, record: IoRecord) -> bool:
    return record.status != 0


@dataclass(frozen=True)
class FaultKind:
    """A named, documented way of breaking."""

    name: str
    summary: str
    doc: str
    spec: type[FaultSpec]
    targets: tuple[str, ...]
    """Accepted target types, keys of nodeagent.model.target.TARGET_TYPES."""
    ladder: tuple[Rung, ...]
    """Best first."""
    evidence: Callable[[Any, tuple[Measured, ...]], Evidence]
    collateral: Callable[[Any], tuple[str, ...]]
    """What a revert cannot take back, one sentence each."""
    remedies: tuple[str, ...]
    """Acts of an operator that end the fault or route around it."""
    family: str = "disk"
    """Module of nodeagent.bind that resolves its targets: what the kind acts on."""
    select: Callable[[Any, Context], Ranges] | None = None
    """Disk kinds that act on chosen sectors: which of the top device. The binding that
    the ladder then sees is narrowed to them on every layer."""
    guards: Callable[[Any, Context], tuple[Guard, ...]] = _no_guards
    react: Callable[[Any, tuple[StepBase, ...], NodeEvent], Reaction | None] = _no_reaction
    hit: Callable[[Any, IoRecord], bool] = _failed
    """Whether a bio that a watch saw proves that the fault bites; by default one that failed."""
    polled: bool = False
    """No event tells of its hits: the agent reads its counters until there are some."""
    preset_of: str = ""
    """The kind whose steps and mechanisms it uses with chosen parameters, if it is a preset."""
    no_hits_hint: str = ""
    """Why an armed fault may have no hits, for the event that says so."""
    examples: tuple[str, ...] = field(default=())
    """Command lines; a test plans each of them."""
