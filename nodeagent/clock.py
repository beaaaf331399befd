"""Clocks of this node: CLOCK_BOOTTIME counts suspended time and is never set (clock_gettime(2)).

It can be slewed: adjtimex(2) makes it up to 10 % faster or slower, as a clock fault does. So
leases are counted in CLOCK_MONOTONIC_RAW, which nothing reaches, plus the suspended time.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

LONGEST_WAIT_S = 30.0
"""How late a lease may end that ran out while the node was suspended."""
_READS = 3
_SUSPENDED_NS = 100_000_000
"""No suspend takes less, and no read as long."""


def boottime_ns() -> int:
    """CLOCK_BOOTTIME in nanoseconds, the time of events: the kernel's own records have it too."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def lease_ns() -> int:
    """Raw nanoseconds since boot, suspended time included: leases and hard ends count in it."""
    raw = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    return raw + _suspended_ns()


def _suspended_ns() -> int:
    """CLOCK_BOOTTIME minus CLOCK_MONOTONIC, which are slewed alike; the narrowest of some reads."""
    best = (1 << 62, 0)
    for _ in range(_READS):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        best = min(best, (after - before, boot - (before + after) // 2))
    # Never suspended, they are equal: what is left is the time between two reads.
    return best[1] if best[1] > _SUSPENDED_NS else 0


def wait_s(left_ns: int) -> float:
    """Seconds to wait for a moment of lease_ns() on a clock that may be 10 % slow: never too long.

    Who waits looks again when it has passed, and waits for the rest. Waits go by
    CLOCK_MONOTONIC, which stands still while the node is suspended: so none is long.
    """
    left_s = max(0.0, left_ns / 1e9)
    return min(left_s * 0.9, LONGEST_WAIT_S) if left_ns > _SUSPENDED_NS else left_s


def wall() -> str:
    """The wall clock in UTC, RFC 3339 with milliseconds; only for people to read."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@cache
def boot_id() -> str:
    """The kernel's random id of this boot (Documentation/admin-guide/sysctl/kernel.rst)."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class Laps:
    """How long the phases of one operation took, in microseconds."""

    def __init__(self) -> None:
        self.took_us: dict[str, int] = {}
        self._last = time.perf_counter_ns()

    def done(self, phase: str) -> None:
        """A phase has ended; the next one begins."""
        now = time.perf_counter_ns()
        self.took_us[phase] = (now - self._last) // 1000
        self._last = now
