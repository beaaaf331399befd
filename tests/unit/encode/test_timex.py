"""struct timex against the C library's own, rates and steps of the clock."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.encode import timex
from nodeagent.encode.timex import Timex, rate_ppb, rate_words, step_by, unpack


class CTimex(ctypes.Structure):
    """As include/uapi/linux/timex.h has it, laid out by ctypes."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("microseconds", ctypes.c_long),
        ("tick", ctypes.c_long),
        ("ppsfreq", ctypes.c_long),
        ("jitter", ctypes.c_long),
        ("shift", ctypes.c_int),
        ("stabil", ctypes.c_long),
        ("jitcnt", ctypes.c_long),
        ("calcnt", ctypes.c_long),
        ("errcnt", ctypes.c_long),
        ("stbcnt", ctypes.c_long),
        ("tai", ctypes.c_int),
        ("pad", ctypes.c_int * 11),
    )


LONG = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.integers(0, (1 << 32) - 1), LONG, LONG, LONG, st.integers(0, 0xFFFF), LONG, LONG, LONG)
def test_the_layout_is_the_compilers(
    modes: int, freq: int, maxerror: int, esterror: int, status: int, s: int, us: int, tick: int
) -> None:
    asked = Timex(modes, freq, maxerror, esterror, status, s, us, tick)
    found = CTimex.from_buffer_copy(asked.pack())
    assert ctypes.sizeof(CTimex) == timex.SIZE
    assert all(getattr(found, name) == getattr(asked, name) for name in Timex._fields)
    assert (found.offset, found.constant, found.tai) == (0, 0, 0)
    assert unpack(bytes(found)) == asked


def test_a_step_back_has_positive_microseconds() -> None:
    """EINVAL else (timekeeping_validate_timex, kernel/time/timekeeping.c)."""
    assert step_by(-1000) == Timex(0x0100, seconds=-1, microseconds=999_999)
    assert step_by(2_592_000_000_000_000)[5:7] == (2_592_000, 0)


@given(st.integers(-(10**17), 10**17))
def test_a_step_is_exact_to_a_microsecond(ns: int) -> None:
    made = step_by(ns)
    assert abs(made.seconds * 1_000_000_000 + made.microseconds * 1000 - ns) <= 500
    assert 0 <= made.microseconds < 1_000_000


@given(st.integers(-100_000_000, 100_000_000))
def test_any_rate_up_to_ten_percent_comes_back(ppb: int) -> None:
    tick, freq = rate_words(ppb)
    assert 9_000 <= tick <= 11_000
    assert abs(freq) <= 500 << 16
    assert abs(rate_ppb(tick, freq) - ppb) <= 1


def test_a_rate_beyond_that_is_refused() -> None:
    assert rate_words(100_400_000)[0] == 11_000
    with pytest.raises(ValueError, match="more than adjtimex"):
        rate_words(100_600_000)
