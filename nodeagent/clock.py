"""Clocks of this node: CLOCK_BOOTTIME counts suspended time and is never set (clock_gettime(2))."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path


def boottime_ns() -> int:
    """CLOCK_BOOTTIME in nanoseconds; leases and deadlines are counted in it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


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
