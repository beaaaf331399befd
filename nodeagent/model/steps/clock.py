"""The node's wall clock: set wrong, made to run wrong, or both. One step, one clock."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nodeagent.model.steps.base import StepBase


class ClockSkew(StepBase):
    """Step CLOCK_REALTIME by offset_ns, and let it run drift_ppb too fast (adjtimex(2)).

    on_us, off_us: for how long it is off and right again, in turns; both 0: always off.
    A reboot takes it back: the time then comes from the real-time clock, which stays as it is.
    """

    op: Literal["clock_skew"] = "clock_skew"
    offset_ns: int = Field(default=0, ge=-(1 << 62), le=1 << 62)
    drift_ppb: int = Field(default=0, ge=-100_000_000, le=100_000_000)
    on_us: int = Field(default=0, ge=0, le=1 << 50)
    off_us: int = Field(default=0, ge=0, le=1 << 50)

    def key(self) -> str:
        return "clock:realtime"

    def summary(self) -> str:
        words = []
        if self.offset_ns:
            words.append(f"date -s 'now {self.offset_ns / 1e9:+.12g} seconds'")
        if self.drift_ppb:
            words.append(f"adjtimex --tick --frequency by {self.drift_ppb / 1000:+.12g} ppm")
        turns = ""
        if self.off_us:
            turns = f"; back after {self.on_us / 1000:g} ms, again after {self.off_us / 1000:g} ms"
        return "; ".join(words) + turns
