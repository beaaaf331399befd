"""A request, and the plan that an agent makes of it without touching anything."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SerializeAsAny

from nodeagent.model.steps import StepBase, step_from_data
from nodeagent.model.units import Duration

FAULT_ID_PATTERN = r"^[a-z0-9][a-z0-9-]{2,31}$"

DEFAULT_LEASE = timedelta(minutes=5)
DEFAULT_HARD_END = timedelta(hours=2)
MIN_LEASE = timedelta(seconds=1)
MAX_HARD_END = timedelta(days=7)


def _lease(value: timedelta) -> timedelta:
    if value < MIN_LEASE:
        raise ValueError("a lease is at least 1s")
    if value > MAX_HARD_END:
        raise ValueError("no fault may live longer than 7d")
    return value


LeaseDuration = Annotated[Duration, AfterValidator(_lease)]


class FaultRequest(BaseModel):
    """What a user asks of one node; it means the same to Plan and to Apply."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    id: str = Field(pattern=FAULT_ID_PATTERN, description="chosen by the caller; retries keep it")
    kind: str
    target: dict[str, Any]
    spec: dict[str, Any] = {}
    mechanism: str | None = Field(default=None, description="forces one rung of the ladder")
    acknowledge: tuple[str, ...] = Field(
        default=(), description="guards and collateral that the user has named and accepted"
    )
    owner: str = Field(default="", max_length=256, description="who asked, for the record")


class Lease(BaseModel):
    """How long a fault may live: without word from its owner, and at the very most."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    duration: LeaseDuration = DEFAULT_LEASE
    hard_end: LeaseDuration = DEFAULT_HARD_END


class Rejected(BaseModel):
    """A mechanism that was not taken, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    mechanism: str
    reason: str


class Plan(BaseModel):
    """What would be done, in order; computed without touching anything."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    id: str
    kind: str
    target: dict[str, Any]
    spec: dict[str, Any]
    binding: dict[str, Any] = Field(description="the target as the kernel knows it")
    mechanism: str
    why: str
    rejected: tuple[Rejected, ...] = ()
    steps: tuple[SerializeAsAny[StepBase], ...]
    guards: tuple[str, ...] = Field(default=(), description="guard rails that were acknowledged")
    collateral: tuple[str, ...] = Field(default=(), description="what no revert can take back")
    remedies: tuple[str, ...] = Field(default=(), description="how an operator can end it")
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 over all that the plan would do, not over what it was computed from."""
        data = self.model_dump(mode="json", exclude={"binding", "rejected", "why", "notes"})
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def plan_from_data(data: dict[str, Any]) -> Plan:
    """A plan from decoded JSON, its steps restored to their own classes. Raises ValueError."""
    steps = tuple(step_from_data(step) for step in data.get("steps", ()))
    return Plan.model_validate({**data, "steps": steps})
