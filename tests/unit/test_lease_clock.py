"""Leases count in raw time: a clock fault's own drift reaches none of them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent import clock
from nodeagent.clock import LONGEST_WAIT_S, lease_ns, wait_s

S = 1_000_000_000


class Clocks:
    """The kernel's clocks at a rate that adjtimex(2) has set; each read takes 100 ns."""

    def __init__(self, rate: float, suspended: int) -> None:
        self.raw, self.rate, self.suspended = 100 * S, rate, suspended

    def read(self, which: int) -> int:
        self.raw += 100
        slewed = int(self.raw * self.rate)
        return {
            time.CLOCK_MONOTONIC_RAW: self.raw,
            time.CLOCK_MONOTONIC: slewed,
            time.CLOCK_BOOTTIME: slewed + self.suspended,
        }[which]


@pytest.mark.parametrize("rate", [0.9, 1.0, 1.1])
@pytest.mark.parametrize("suspended", [0, 3600 * S])
def test_a_minute_of_a_lease_is_a_minute(
    monkeypatch: pytest.MonkeyPatch, rate: float, suspended: int
) -> None:
    clocks = Clocks(rate, suspended)
    monkeypatch.setattr(clock.time, "clock_gettime_ns", clocks.read)
    before = lease_ns()
    clocks.raw += 60 * S
    assert abs(lease_ns() - before - 60 * S) < 10_000
    clocks.suspended += 60 * S  # the lid was closed
    if suspended:
        assert abs(lease_ns() - before - 120 * S) < 10_000


@pytest.mark.parametrize("left", [60, 3600, 7 * 86_400])
def test_a_lease_that_ran_out_while_the_node_was_suspended_is_noticed_soon_after(left: int) -> None:
    """CLOCK_MONOTONIC, by which threads and poll(2) wait, stands still in a suspend."""
    assert wait_s(left * S) <= LONGEST_WAIT_S


@given(st.integers(-S, 3600 * S), st.floats(0.9, 1.1))
def test_no_wait_ends_late_on_a_slow_clock(left: int, rate: float) -> None:
    """Waits go by CLOCK_MONOTONIC: one that is over early is followed by another."""
    waited, rounds = 0.0, 0
    while (missing := left - int(waited * S)) > 0:
        waited += wait_s(missing) / rate + 1e-9
        rounds += 1
        assert rounds < 200
    assert waited * S <= max(left, 0) + 12_000_000
