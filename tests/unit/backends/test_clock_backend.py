"""The clock's backend on a kernel that is simulated by the rules of kernel/time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.backends import clock as backend_module
from nodeagent.backends.clock import ClockBackend, read_clock
from nodeagent.encode import timex
from nodeagent.encode.timex import Timex, rate_ppb
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.steps import Status
from nodeagent.model.steps.clock import ClockSkew
from nodeagent.model.timekeeping import ClockReading, skew_ns

S = 1_000_000_000


class Killed(BaseException):
    """What SIGKILL is to the process."""


class Kernel:
    """A wall clock, its rate and its words; every call takes 10 us."""

    def __init__(self, freq: int = 0, status: int = 1) -> None:
        self.raw, self.real = 5000 * S, 1_800_000_000.0 * S
        self.tick, self.freq, self.status = 10_000, freq, status
        self.maxerror, self.esterror = 1000, 50
        self.writes = 0
        self.dies_at = 0

    def pass_(self, ns: int) -> None:
        self.raw += ns
        self.real += ns + ns * rate_ppb(self.tick, self.freq) / S
        self.maxerror = min(self.maxerror + ns * 500 // (1000 * 1_000_000), 16_000_000)
        if self.maxerror >= 16_000_000:
            self.status |= timex.STA_UNSYNC

    def lease_ns(self) -> int:
        self.pass_(10_000)
        return self.raw

    def clock_gettime_ns(self, which: int) -> int:
        self.pass_(10_000)
        return int(self.real)

    def adjtimex(self, asked: Timex) -> Timex:
        self.pass_(10_000)
        if asked.modes:
            self.writes += 1
            self._write(asked)
            if self.writes == self.dies_at:
                raise Killed
        return Timex(0, self.freq, self.maxerror, self.esterror, self.status, tick=self.tick)

    def _write(self, asked: Timex) -> None:
        if asked.modes & timex.ADJ_SETOFFSET:
            assert not asked.modes & 0x3000, "ADJ_NANO and ADJ_MICRO stay in the status word"
            assert 0 <= asked.microseconds < 1_000_000
            self.real += asked.seconds * S + asked.microseconds * 1000
            self.status |= timex.STA_UNSYNC
            self.maxerror = self.esterror = 16_000_000
        if asked.modes & timex.ADJ_STATUS:
            assert not asked.status & timex.STA_RONLY
            self.status = asked.status
        for bit, name in (
            (timex.ADJ_FREQUENCY, "freq"),
            (timex.ADJ_TICK, "tick"),
            (timex.ADJ_MAXERROR, "maxerror"),
            (timex.ADJ_ESTERROR, "esterror"),
        ):
            if asked.modes & bit:
                setattr(self, name, getattr(asked, name))


@pytest.fixture
def boot(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Kernel]:
    def make(**values: Any) -> Kernel:
        kernel = Kernel(**values)
        monkeypatch.setattr(backend_module, "lease_ns", kernel.lease_ns)
        monkeypatch.setattr(backend_module, "adjtimex", kernel.adjtimex)
        monkeypatch.setattr(backend_module.time, "clock_gettime_ns", kernel.clock_gettime_ns)
        monkeypatch.setattr(backend_module, "RTC", Path("/nonexistent"))
        return kernel

    return make


STEPS = [
    ClockSkew(offset_ns=30 * 86_400 * S),
    ClockSkew(offset_ns=-3600 * S),
    ClockSkew(drift_ppb=100_000_000),
    ClockSkew(drift_ppb=-20_000_000),
    ClockSkew(offset_ns=3600 * S, drift_ppb=10_000_000),
]


def words(kernel: Kernel) -> tuple[int, int, int]:
    return kernel.tick, kernel.freq, kernel.status


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.summary()[:40])
@pytest.mark.parametrize("freq", [0, -1_310_720])
@pytest.mark.parametrize("status", [1, 65, 0x2001])
def test_the_right_time_comes_back_after_hours(
    boot: Callable[..., Kernel], step: ClockSkew, freq: int, status: int
) -> None:
    kernel = boot(freq=freq, status=status)
    before = words(kernel)
    backend = ClockBackend()
    prior = backend.observe("f", step, ())
    assert backend.status(step, prior, ()) is Status.PRIOR
    backend.apply("f", step, prior, ())
    assert backend.status(step, prior, ()) is Status.OURS
    kernel.pass_(2 * 3600 * S)
    assert backend.status(step, prior, ()) is Status.OURS
    assert ClockBackend().status(step, prior, ()) is Status.OURS  # to a guardian as well
    ClockBackend().undo("f", step, prior, ())
    assert backend.status(step, prior, ()) is Status.PRIOR
    reading = ClockReading.model_validate(prior["reading"])
    assert abs(skew_ns(reading, read_clock())) < 1_000_000
    assert words(kernel) == (*before[:2], before[2] & ~timex.STA_RONLY)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.summary()[:40])
def test_killed_at_any_write_it_is_found_and_taken_back(
    boot: Callable[..., Kernel], step: ClockSkew
) -> None:
    for dies_at in range(1, 12):
        kernel = boot(freq=65_536)
        before, backend = words(kernel), ClockBackend()
        prior = backend.observe("f", step, ())
        kernel.dies_at = dies_at
        survived = False
        try:
            backend.apply("f", step, prior, ())
            kernel.pass_(60 * S)
            backend.undo("f", step, prior, ())
            survived = True
        except Killed:
            kernel.pass_(S)
        if ClockBackend().status(step, prior, ()) is Status.OURS:
            ClockBackend().undo("f", step, prior, ())
        assert ClockBackend().status(step, prior, ()) is Status.PRIOR, dies_at
        reading = ClockReading.model_validate(prior["reading"])
        assert abs(skew_ns(reading, read_clock())) < 40_000_000
        assert words(kernel) == before, dies_at
        if survived:
            assert dies_at > 2
            return
    raise AssertionError("it never survived: count the writes again")


def test_a_long_fault_leaves_an_unsynchronized_clock_unsynchronized(
    boot: Callable[..., Kernel],
) -> None:
    """Without a daemon the error grows to 16 s in 9 h: to call it synchronized would be a lie."""
    kernel, step, backend = boot(), STEPS[0], ClockBackend()
    prior = backend.observe("f", step, ())
    backend.apply("f", step, prior, ())
    kernel.pass_(10 * 3600 * S)
    backend.undo("f", step, prior, ())
    assert kernel.status & timex.STA_UNSYNC
    assert backend.status(step, prior, ()) is Status.PRIOR


def test_leap_seconds_and_the_rtc_are_kept_out_of_it(boot: Callable[..., Kernel]) -> None:
    kernel, step, backend = (
        boot(status=1 | timex.STA_INS),
        ClockSkew(drift_ppb=1000),
        ClockBackend(),
    )
    prior = backend.observe("f", step, ())
    backend.apply("f", step, prior, ())
    assert kernel.status == 1 | timex.STA_UNSYNC
    backend.undo("f", step, prior, ())
    assert kernel.status == 1 | timex.STA_INS


@pytest.mark.parametrize(
    ("step", "tick"),
    [(ClockSkew(offset_ns=-60 * 365 * 86_400 * S), 10_000), (ClockSkew(drift_ppb=10**8), 10_100)],
)
def test_what_the_kernel_would_not_take_is_refused_before(
    boot: Callable[..., Kernel], step: ClockSkew, tick: int
) -> None:
    kernel = boot()
    kernel.tick = tick
    with pytest.raises(Refused, match="the clock cannot"):
        ClockBackend().observe("f", step, ())
    assert kernel.writes == 0


@given(st.lists(st.integers(-(10**15), 10**15), min_size=1, max_size=5))
def test_steps_add_up(steps: list[int]) -> None:
    kernel = Kernel()
    for ns in steps:
        kernel.adjtimex(timex.step_by(ns))
    assert abs(kernel.real - 1_800_000_000 * S - kernel.raw + 5000 * S - sum(steps)) < 10_000


@pytest.mark.parametrize("off_ns", [S, 1800 * S, 10**9 * S], ids=["nearly right", "half", "odd"])
def test_a_clock_that_turns_is_ours_whatever_it_shows(
    boot: Callable[..., Kernel], off_ns: int
) -> None:
    """Whoever sets it by hand is overruled at the next turn: so the turns must end first."""
    kernel, backend = boot(), ClockBackend()
    step = ClockSkew(offset_ns=3600 * S, on_us=3600 * 10**6, off_us=3600 * 10**6)
    before = words(kernel)
    prior = backend.observe("f", step, ())
    backend.apply("f", step, prior, ())
    kernel.real += off_ns - 3600 * S
    assert backend.status(step, prior, ()) is Status.OURS
    backend.undo("f", step, prior, ())
    assert not backend.measure("f", step, prior)["turning"]
    assert backend.status(step, prior, ()) is Status.PRIOR
    assert words(kernel) == before


def test_turns_that_ended_by_themselves_do_not_stand_in_for_the_next_faults(
    boot: Callable[..., Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    boot()
    backend = ClockBackend()
    step = ClockSkew(offset_ns=3600 * S, on_us=1000, off_us=1000)
    prior = backend.observe("f", step, ())
    with monkeypatch.context() as broken:
        broken.setattr(backend_module, "_turn", lambda prior, skew: False)
        backend.apply("f", step, prior, ())
        assert backend._pulse is not None
        backend._pulse._thread.join(10)
    slow = ClockSkew(offset_ns=3600 * S, on_us=3600 * 10**6, off_us=3600 * 10**6)
    prior = backend.observe("g", slow, ())
    backend.apply("g", slow, prior, ())
    assert backend.measure("g", slow, prior)["turning"]
    backend.undo("g", slow, prior, ())


def test_a_clock_that_does_not_take_the_step_does_not_begin_to_turn(
    boot: Callable[..., Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    boot()
    backend = ClockBackend()
    step = ClockSkew(offset_ns=3600 * S, on_us=3600 * 10**6, off_us=3600 * 10**6)
    prior = backend.observe("f", step, ())
    monkeypatch.setattr(backend_module, "set_skew", lambda prior, wanted: None)
    with pytest.raises(BackendError, match="was not set"):
        backend.apply("f", step, prior, ())
    assert backend._pulse is None
