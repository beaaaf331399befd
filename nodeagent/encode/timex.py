"""struct timex of adjtimex(2) on 64-bit kernels, and its rates in parts per 10^9. Pure.

include/uapi/linux/timex.h; the kernel's side is kernel/time/ntp.c.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

ADJ_FREQUENCY = 0x0002
ADJ_MAXERROR = 0x0004
ADJ_ESTERROR = 0x0008
ADJ_STATUS = 0x0010
ADJ_SETOFFSET = 0x0100
ADJ_TICK = 0x4000
STA_INS, STA_DEL, STA_UNSYNC = 0x0010, 0x0020, 0x0040
STA_RONLY = 0xFF00
"""Bits of the status word that only the kernel sets."""
MAX_ERROR_US = 16_000_000
"""NTP_PHASE_LIMIT: with this maximum error the kernel calls the clock unsynchronized."""
ERROR_PPM = 500
"""MAXFREQ: by so much the maximum error grows by itself."""
NOMINAL_TICK = 10_000
"""Microseconds a tick of USER_HZ, which is 100 on x86 and arm."""
MIN_TICK, MAX_TICK = 9_000, 11_000
TICK_PPB = 100_000
"""One microsecond of 10,000."""
MAX_FREQ = 500 << 16
"""Parts per million with 16 binary digits after the point."""
_LAYOUT = struct.Struct("=I4x4qi4x3q2q3qi4x5qi44x")
SIZE = _LAYOUT.size


class Timex(NamedTuple):
    """The fields that are used here. offset is left out: it is 0 whenever we write."""

    modes: int = 0
    freq: int = 0
    maxerror: int = 0
    esterror: int = 0
    status: int = 0
    seconds: int = 0
    microseconds: int = 0
    tick: int = 0

    def pack(self) -> bytes:
        """As the kernel reads it."""
        head = (self.modes, 0, self.freq, self.maxerror, self.esterror, self.status)
        time = (0, 0, 0, self.seconds, self.microseconds)
        return _LAYOUT.pack(*head, *time, self.tick, *(0,) * 2, 0, *(0,) * 5, 0)


def unpack(data: bytes) -> Timex:
    """What the kernel wrote. Raises struct.error for another size."""
    words = _LAYOUT.unpack(data)
    modes, _, freq, maxerror, esterror, status = words[:6]
    return Timex(modes, freq, maxerror, esterror, status, words[9], words[10], words[11])


def step_by(ns: int) -> Timex:
    """Set the clock forward or back by so much, to the next microsecond.

    Nanoseconds would take ADJ_NANO, which leaves its mark in the status word (STA_NANO).
    """
    seconds, rest = divmod((ns + 500) // 1000, 1_000_000)
    return Timex(modes=ADJ_SETOFFSET, seconds=seconds, microseconds=rest)


def rate_ppb(tick: int, freq: int) -> int:
    """How much faster than nominal the clock runs."""
    return (tick - NOMINAL_TICK) * TICK_PPB + freq * 1000 // 65536


def rate_words(ppb: int) -> tuple[int, int]:
    """(tick, freq) for a rate. Raises ValueError when it is more than the kernel takes."""
    tick = NOMINAL_TICK + round(ppb / TICK_PPB)
    tick = min(max(tick, MIN_TICK), MAX_TICK)
    freq = round((ppb - (tick - NOMINAL_TICK) * TICK_PPB) * 65536 / 1000)
    if abs(freq) > MAX_FREQ:
        raise ValueError(f"{ppb / 1000:g} ppm is more than adjtimex(2) takes")
    return tick, freq
