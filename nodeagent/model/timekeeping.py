"""What the wall clock should show, by a reference that no adjustment reaches. Pure.

The reference is CLOCK_MONOTONIC_RAW plus the time that the node was suspended
(clock_gettime(2)): neither settimeofday nor adjtimex changes it. From a reading that was
taken before a fault, and the rate at which the clock ran then, the right time follows for
every later moment of the same boot.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from nodeagent.encode.timex import (
    ERROR_PPM,
    MAX_ERROR_US,
    STA_UNSYNC,
    rate_ppb,
    rate_words,
)
from nodeagent.model.steps.base import Status
from nodeagent.model.steps.clock import ClockSkew

TOLERANCE_NS = 40_000_000
"""What a clock may be off by and still count as right, or as off by exactly what was asked."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class ClockReading(_Frozen):
    """The clock and the kernel's words about it (adjtimex(2)) at one moment."""

    real_ns: int = Field(description="CLOCK_REALTIME")
    raw_ns: int = Field(description="CLOCK_MONOTONIC_RAW plus suspended time")
    tick: int = Field(description="microseconds a tick of USER_HZ")
    freq: int = Field(description="parts per million with 16 binary digits after the point")
    status: int
    maxerror: int = Field(description="microseconds")
    esterror: int = Field(description="microseconds")


class TimeDaemon(_Frozen):
    """A process that sets the clock; unit: empty when no systemd unit runs it."""

    comm: str
    pid: int
    start_ticks: int
    unit: str = ""


class ClockBinding(_Frozen):
    """The node's clock: who keeps it, and what would not stand its new time."""

    target: str
    daemons: tuple[TimeDaemon, ...] = ()
    tls: tuple[str, ...] = Field(
        default=(), description="why new TLS connections to the agent would fail, a sentence each"
    )
    notes: tuple[str, ...] = ()


def skew_ns(prior: ClockReading, now: ClockReading) -> int:
    """How far ahead of the right time the clock is; negative when it is behind."""
    elapsed = now.raw_ns - prior.raw_ns
    rate = rate_ppb(prior.tick, prior.freq)
    return now.real_ns - (prior.real_ns + elapsed + elapsed * rate // 1_000_000_000)


def skewed_rate(step: ClockSkew, prior: ClockReading) -> tuple[int, int]:
    """(tick, freq) while the fault is armed. Raises ValueError when the kernel takes no such."""
    if not step.drift_ppb:
        return prior.tick, prior.freq
    return rate_words(rate_ppb(prior.tick, prior.freq) + step.drift_ppb)


def is_unsynced_by_us(prior: ClockReading, now: ClockReading) -> bool:
    """Whether the clock counts as unsynchronized only because it was set."""
    if prior.status & STA_UNSYNC or not now.status & STA_UNSYNC:
        return False
    return grown_error(prior, now) < MAX_ERROR_US


def grown_error(prior: ClockReading, now: ClockReading) -> int:
    """The maximum error, in microseconds, that the kernel would have come to by itself."""
    elapsed_us = (now.raw_ns - prior.raw_ns) // 1000
    return min(prior.maxerror + elapsed_us * ERROR_PPM // 1_000_000, MAX_ERROR_US)


def tolerance_ns(step: ClockSkew) -> int:
    """A small step must still be told from none."""
    return min(TOLERANCE_NS, abs(step.offset_ns) // 4) if step.offset_ns else TOLERANCE_NS


def clock_status(step: ClockSkew, prior: ClockReading, now: ClockReading) -> Status:
    """What a reading says of a step.

    Ours: off by what was asked, by what its drift can have made of it since, or still drifting.
    Gone: somebody has set the clock since, at least by half of the way back.
    """
    skew = skew_ns(prior, now)
    rate = (now.tick, now.freq)
    before = (prior.tick, prior.freq)
    if step.drift_ppb and rate == skewed_rate(step, prior):
        return Status.OURS
    tolerance = tolerance_ns(step)
    if abs(skew) <= tolerance:
        ours = rate == before and is_unsynced_by_us(prior, now)
        return Status.OURS if ours else Status.PRIOR
    drifted = (now.raw_ns - prior.raw_ns) * step.drift_ppb // 1_000_000_000
    low = step.offset_ns + min(0, drifted) - tolerance
    high = step.offset_ns + max(0, drifted) + tolerance
    if low <= skew <= high:
        return Status.OURS
    reach = max(abs(step.offset_ns), abs(drifted))
    return Status.GONE if abs(skew) <= reach // 2 else Status.FOREIGN
