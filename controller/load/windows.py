"""From single requests to samples: one a window, judged, and never silent about the driver."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from controller.load.spec import LoadSpec
from controller.oracle_logic import rank
from controller.probes.outcome import Outcome
from controller.score import fixed

PERCENTILES = (50, 90, 99)


def ns(value: timedelta) -> int:
    """Whole ns."""
    return value // timedelta(microseconds=1) * 1000


@dataclass
class Tally:
    """What became of the requests whose time fell into a window (or into all of them)."""

    planned: int = 0
    dropped: int = 0
    """Never sent: too many were open."""
    late: int = 0
    """Sent later than the load allows."""
    ok: int = 0
    failed: int = 0
    max_lag_ns: int = 0
    latencies_ns: list[int] = field(default_factory=list)
    """Of answers, from the planned start: waiting for the driver counts too."""
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def done(self) -> bool:
        """Whether nothing is open any more."""
        return self.ok + self.failed + self.dropped >= self.planned

    def add(self, other: Tally) -> None:
        """Take another tally in."""
        self.planned += other.planned
        self.dropped += other.dropped
        self.late += other.late
        self.ok += other.ok
        self.failed += other.failed
        self.max_lag_ns = max(self.max_lag_ns, other.max_lag_ns)
        self.latencies_ns += other.latencies_ns
        self.reasons.update(other.reasons)

    @property
    def trouble(self) -> str:
        """Why the driver did not do what was planned; empty if it did."""
        said = []
        if self.dropped:
            said.append(f"{self.dropped} of {self.planned} requests were never sent")
        if self.late:
            lag = fixed(Fraction(self.max_lag_ns, 10**6), 1)
            said.append(f"{self.late} of {self.planned} started late, by up to {lag} ms")
        return "; ".join(said)

    def data(self) -> dict[str, Any]:
        """Numbers of a sample."""
        answered = self.ok + self.failed
        found: dict[str, Any] = {
            "planned": self.planned,
            "ok": self.ok,
            "failed": self.failed,
            "dropped": self.dropped,
            "late": self.late,
            "held": not self.trouble,
            "max_lag_ns": self.max_lag_ns,
            "success": fixed(Fraction(self.ok, answered), 4) if answered else None,
        }
        for p in PERCENTILES:
            found[f"p{p}_ns"] = percentile(self.latencies_ns, p)
        found["max_ns"] = max(self.latencies_ns, default=None)
        if self.reasons:
            found["reasons"] = dict(sorted(self.reasons.most_common(5)))
        return found


def percentile(values: list[int], p: int) -> int | None:
    """By nearest rank; None of none."""
    return int(rank(values, Decimal(p))) if values else None


def judge(spec: LoadSpec, tally: Tally) -> Outcome:
    """A window as a sample. What the driver could not do itself is unknown, never pass."""
    data = tally.data()
    if tally.trouble:
        return Outcome("unknown", f"the driver did not hold the rate: {tally.trouble}", data)
    answered = tally.ok + tally.failed
    if not answered:
        return Outcome("unknown", "no request was planned in this window", data)
    share = Fraction(100 * tally.ok, answered)
    if share < Fraction(spec.success):
        top = tally.reasons.most_common(1)[0][0] if tally.reasons else ""
        why = f" ({top})" if top else ""
        return Outcome("fail", f"{fixed(share, 1)}% of {answered} answers are good{why}", data)
    p99 = percentile(tally.latencies_ns, 99)
    if spec.latency is not None and p99 is not None and p99 > ns(spec.latency):
        return Outcome("fail", f"p99 is {fixed(Fraction(p99, 10**6), 1)} ms", data)
    return Outcome("pass", "", data)
