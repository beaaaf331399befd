"""How long to wait: deadlines stretched by the measured speed of a guest."""

from __future__ import annotations

import os

from nodeagent.model.errors import InvalidSpec

NATIVE_LOOP_NS = 500_000  # the calibration loop of guest/labd.py on a 3 GHz native CPU
SLOWEST = 40.0
BUSIEST = 8.0


def factor(loop_ns: int) -> float:
    """How much slower than a native machine; 1 to 40 (pure)."""
    return min(SLOWEST, max(1.0, loop_ns / NATIVE_LOOP_NS))


def load_factor(load: float, cpus: int) -> float:
    """Others want the host's CPUs too: runnable tasks a CPU, 1 to 8 (pure)."""
    return min(BUSIEST, max(1.0, load / cpus))


def host_factor() -> float:
    """FAULTCTL_LAB_SCALE: a further factor for a host that is known to be busy."""
    text = os.environ.get("FAULTCTL_LAB_SCALE", "1")
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 100:
        raise InvalidSpec(f"FAULTCTL_LAB_SCALE={text}", "", "use a number from 0.1 to 100")
    return value


class Pace:
    """Factor of one guest; 1 until it has been measured."""

    def __init__(self) -> None:
        self.host = host_factor()
        self.guest = 1.0

    def measured(self, loop_ns: int) -> None:
        self.guest = factor(loop_ns)

    def stretch(self, seconds: float) -> float:
        """Seconds to wait now for what takes `seconds` on an idle native machine."""
        return seconds * self.guest * self.busy()

    def busy(self) -> float:
        """How much longer than on an idle host things may take at this moment."""
        return self.host * load_factor(os.getloadavg()[0], os.cpu_count() or 1)
