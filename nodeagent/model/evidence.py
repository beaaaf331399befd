"""Evidence: proof that a fault bit, as data."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class IoRecord(BaseModel):
    """One bio as the block layer completed it."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    boottime_ns: int
    device: str = Field(description="major:minor of the whole disk or dm device")
    sector: int
    sectors: int
    op: str = Field(description="read, write, discard, flush, ...")
    flags: tuple[str, ...] = ()
    status: int = Field(description="errno of the block status; 0 is success")
    pid: int = 0
    comm: str = ""


class FileEvent(BaseModel):
    """Something happened to the file that a fault was mapped from."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    boottime_ns: int
    path: str
    what: str = Field(description="gone, moved-blocks or renamed")


class ProcessEvent(BaseModel):
    """Something happened to the process that a fault is bound to."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    boottime_ns: int
    pid: int
    what: str = Field(description="ended: it, and with a tree all of its descendants")


NodeEvent = IoRecord | FileEvent | ProcessEvent
"""What a kind's `react` may be told of."""


class Evidence(BaseModel):
    """What was seen of a fault's effect; `biting` only when something was hit."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    counted: bool = Field(description="False: nothing counts hits here, so biting is unknown")
    hits: int = 0
    counters: dict[str, int] = {}
    first_hit_ns: int | None = Field(default=None, description="CLOCK_BOOTTIME")
    last_hit_ns: int | None = None
    lost: int = Field(default=0, description="records that did not fit in the ring buffer")
    records: tuple[IoRecord, ...] = ()
    kernel_log: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()
    details: dict[str, Any] = {}

    @property
    def biting(self) -> bool:
        return self.counted and self.hits > 0
