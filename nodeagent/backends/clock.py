"""The wall clock by adjtimex(2): set wrong, made to drift, and put right by a raw reference."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Runtime
from nodeagent.backends.pulse import Pulse
from nodeagent.clock import lease_ns
from nodeagent.encode import timex
from nodeagent.encode.timex import Timex
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.clock import ClockSkew
from nodeagent.model.timekeeping import (
    ClockReading,
    clock_status,
    grown_error,
    skew_ns,
    skewed_rate,
    tolerance_ns,
)

READINGS = 7
"""The narrowest of so many counts: a process that is scheduled away in between reads wrong."""
ROUNDS = 3
EXACT_NS = 200_000
"""A step that lands nearer than this is not tried again."""
RTC = Path("/sys/class/rtc/rtc0/since_epoch")
_libc = ctypes.CDLL(None, use_errno=True)


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backend of this module."""
    return {ClockSkew: ClockBackend()}


def adjtimex(request: Timex) -> Timex:
    """What the kernel knows of the clock, after it has taken the request. Raises OSError."""
    buffer = ctypes.create_string_buffer(request.pack(), timex.SIZE)
    if _libc.adjtimex(buffer) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"adjtimex(modes={request.modes:#x}): {os.strerror(number)}")
    return timex.unpack(buffer.raw)


def rtc_s() -> int | None:
    """What the real-time clock shows, in whole seconds; None where there is none."""
    try:
        return int(RTC.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def read_clock() -> ClockReading:
    """The clock against the raw reference, now."""
    best = (1 << 62, 0, 0)
    for _ in range(READINGS):
        before = lease_ns()
        real = time.clock_gettime_ns(time.CLOCK_REALTIME)
        after = lease_ns()
        best = min(best, (after - before, real, (before + after) // 2))
    now = adjtimex(Timex())
    return ClockReading(
        real_ns=best[1],
        raw_ns=best[2],
        tick=now.tick,
        freq=now.freq,
        status=now.status,
        maxerror=now.maxerror,
        esterror=now.esterror,
    )


def set_skew(prior: ClockReading, wanted_ns: int) -> None:
    """Step the clock until it is off by so much. Raises OSError."""
    for _ in range(ROUNDS):
        missing = wanted_ns - skew_ns(prior, read_clock())
        if abs(missing) < EXACT_NS:
            return
        adjtimex(timex.step_by(missing))


class ClockBackend:
    """One clock, so one step at a time."""

    def __init__(self) -> None:
        self._pulse: Pulse | None = None

    def observe(self, fault_id: str, step: ClockSkew, peers: Sequence[Peer]) -> Prior:
        now = read_clock()
        try:
            skewed_rate(step, now)
        except ValueError as exc:
            raise Refused("the clock cannot drift so much", f"with its present rate {exc}") from exc
        if now.real_ns + step.offset_ns < now.raw_ns:
            raise Refused(
                "the clock cannot be set back so far",
                "the kernel takes no time before 1970, nor one that is less than its uptime",
            )
        rtc = _rtc_skew_s(now, 0)
        return {"reading": now.model_dump(), "rtc_s": rtc}

    def status(self, step: ClockSkew, prior: Prior, peers: Sequence[Peer]) -> Status:
        if self._turns():  # whatever it shows now, the next turn sets it
            return Status.OURS
        return clock_status(step, _reading(prior), read_clock())

    def _turns(self) -> bool:
        return self._pulse is not None and self._pulse.running

    def apply(self, fault_id: str, step: ClockSkew, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        before = _reading(prior)
        tick, freq = skewed_rate(step, before)
        if step.drift_ppb:
            adjtimex(Timex(timex.ADJ_TICK | timex.ADJ_FREQUENCY, freq=freq, tick=tick))
        if step.offset_ns:
            set_skew(before, step.offset_ns)
        # A clock that counts as synchronized is written to the RTC every 11 minutes, and a
        # leap second that is due would come at the wrong midnight (kernel/time/ntp.c).
        status = before.status | timex.STA_UNSYNC
        _set_status(status & ~(timex.STA_INS | timex.STA_DEL))
        if step.off_us and not self._turns():
            off_by = skew_ns(before, read_clock())
            if abs(off_by - step.offset_ns) > tolerance_ns(step):
                raise BackendError("the clock was not set", f"read back, it is off by {off_by} ns")
            self._pulse = Pulse(
                lambda: _turn(before, step.offset_ns),
                lambda: _turn(before, 0),
                (step.on_us / 1000, step.off_us / 1000),
            )
        return {}

    def undo(self, fault_id: str, step: ClockSkew, prior: Prior, peers: Sequence[Peer]) -> None:
        if self._pulse is not None:
            self._pulse.stop()
            self._pulse = None
        before, now = _reading(prior), read_clock()
        if step.drift_ppb and (now.tick, now.freq) == skewed_rate(step, before):
            modes = timex.ADJ_TICK | timex.ADJ_FREQUENCY
            adjtimex(Timex(modes, freq=before.freq, tick=before.tick))
        set_skew(before, 0)
        # Setting the clock has made it "unsynchronized": it is as good again as it was.
        error = grown_error(before, read_clock())
        if not before.status & timex.STA_UNSYNC and error >= timex.MAX_ERROR_US:
            return
        modes = timex.ADJ_MAXERROR | timex.ADJ_ESTERROR
        adjtimex(Timex(modes, maxerror=error, esterror=before.esterror))
        _set_status(before.status)

    def measure(self, fault_id: str, step: ClockSkew, prior: Prior) -> dict[str, Any]:
        before, now = _reading(prior), read_clock()
        rtc = _rtc_skew_s(now, skew_ns(before, now))
        return {
            "skew_ns": skew_ns(before, now),
            "seconds": round((now.raw_ns - before.raw_ns) / 1e9, 3),
            "turns": self._pulse.turns if self._pulse is not None else 1,
            "turning": self._turns(),
            "rtc_moved_s": None if None in (rtc, prior["rtc_s"]) else rtc - prior["rtc_s"],
            "state": str(clock_status(step, before, now)),
        }


def _reading(prior: Prior) -> ClockReading:
    return ClockReading.model_validate(prior["reading"])


def _turn(prior: ClockReading, skew: int) -> bool:
    set_skew(prior, skew)
    return True


def _set_status(status: int) -> None:
    adjtimex(Timex(timex.ADJ_STATUS, status=status & ~timex.STA_RONLY))


def _rtc_skew_s(now: ClockReading, skew: int) -> int | None:
    """The real-time clock minus the right time, in whole seconds; None where there is none."""
    rtc = rtc_s()
    return None if rtc is None else rtc - (now.real_ns - skew) // 1_000_000_000
