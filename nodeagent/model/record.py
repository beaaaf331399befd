"""A fault as the journal knows it: states, reasons for its end, rows."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, SerializeAsAny

from nodeagent.model.steps import StepBase


class FaultState(StrEnum):
    """Where a fault is in its life."""

    APPLYING = "applying"
    """Its intent is on disk; the kernel may have some of it."""
    ARMED = "armed"
    """The kernel said so when it was read back."""
    REVERTING = "reverting"
    """Being taken back, or waiting to try again."""
    ENDED = "ended"
    """Nothing of it is left; `end_reason` says why."""


LIVING = (FaultState.APPLYING, FaultState.ARMED)
"""States in which word from the owner counts."""

CHANGING = (FaultState.APPLYING, FaultState.REVERTING)
"""States in which the kernel may be changed just now."""


class EndReason(StrEnum):
    """Why a fault ended; three different words for three different things."""

    REVERTED = "reverted"
    """Its owner took it back."""
    EXPIRED = "expired"
    """Its lease or its hard end passed."""
    REMEDIED = "remedied"
    """An operator's act ended it."""
    AGENT_LOST = "agent-lost"
    """The agent died or stopped; the guardian or the next agent took it back."""
    REBOOTED = "rebooted"
    """The node booted again; nothing of it survived, or it was cleaned up."""
    FAILED = "apply-failed"
    """It could not be applied in full and was undone at once."""


class StepState(StrEnum):
    """Where one step is."""

    INTENT = "intent"
    APPLIED = "applied"
    REVERTING = "reverting"
    REVERTED = "reverted"


CERTAIN = frozenset({StepState.APPLIED, StepState.REVERTED})
"""States in which the journal and the kernel agree; the others were cut short or are under way."""


class StepRow(BaseModel):
    """One step in the journal, with the prior state that a revert returns to."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    seq: int
    """Order of all steps on this node; reverts go from high to low."""
    fault_id: str
    index: int
    key: str
    step: SerializeAsAny[StepBase]
    next_step: SerializeAsAny[StepBase] | None = None
    """Set while a reaction changes the step: the kernel shows the one or the other."""
    prior: dict[str, Any]
    state: StepState
    outcome: dict[str, Any] = {}


class FaultRow(BaseModel):
    """One fault in the journal."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    id: str
    kind: str
    state: FaultState
    end_reason: EndReason | None = None
    plan: dict[str, Any]
    digest: str
    owner: str
    epoch: int
    boot_id: str
    lease_ns: int
    lease_until_ns: int
    """Raw time since boot, in the boot `boot_id` (nodeagent.clock.lease_ns)."""
    hard_end_ns: int
    created: str
    """Wall clock, RFC 3339, for people."""
    armed_ns: int | None = None
    ended_ns: int | None = None
    error: str = ""
    attempts: int = 0
    evidence: dict[str, Any] = {}

    @property
    def deadline_ns(self) -> int:
        return min(self.lease_until_ns, self.hard_end_ns)

    @property
    def active(self) -> bool:
        return self.state is not FaultState.ENDED

    def due(self, now_ns: int) -> bool:
        """Whether it is to end: its time is over, or its end has begun."""
        return self.state not in LIVING or self.deadline_ns <= now_ns


class Event(BaseModel):
    """Something that happened to a fault, in order."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    seq: int
    fault_id: str
    type: str
    boottime_ns: int
    wall: str
    data: dict[str, Any] = {}
