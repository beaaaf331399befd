"""The controller's clocks. CLOCK_BOOTTIME neither steps nor stops in suspend (clock_gettime(2))."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path


def boottime_ns() -> int:
    """CLOCK_BOOTTIME in nanoseconds; a run is played by it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def wall() -> str:
    """The wall clock in UTC, RFC 3339 with milliseconds; only recorded, never counted in."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@cache
def boot_id() -> str:
    """The kernel's random id of this boot (Documentation/admin-guide/sysctl/kernel.rst)."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
