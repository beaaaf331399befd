"""clock as data: plans, what a reading says of a step, whatever daemons and people do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.encode.timex import STA_UNSYNC, rate_ppb, rate_words
from nodeagent.faults import kind_named
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.facts import Facts
from nodeagent.model.kind import Measured
from nodeagent.model.plan import FaultRequest, Plan
from nodeagent.model.planner import make_plan, parse_request
from nodeagent.model.steps import Status
from nodeagent.model.steps.clock import ClockSkew
from nodeagent.model.timekeeping import (
    ClockBinding,
    ClockReading,
    TimeDaemon,
    clock_status,
    skew_ns,
    skewed_rate,
)

S = 1_000_000_000
DAY = 86_400 * S
NODE = Facts(node_id="n", kernel_release="6.12", arch="x86_64", boot_id="b", root=True)
SYNCED = ClockReading(
    real_ns=1_800_000_000 * S,
    raw_ns=1000 * S,
    tick=10_000,
    freq=-1_310_720,  # -20 ppm, as a daemon had found it
    status=1,
    maxerror=2000,
    esterror=100,
)
FORWARD = ClockSkew(offset_ns=30 * DAY)
FAST = ClockSkew(drift_ppb=200_000)


def after(seconds: float, skew: int = 0, **more: Any) -> ClockReading:
    """A reading so many seconds later, off by so much; set clocks count as unsynchronized."""
    elapsed = round(seconds * S)
    right = SYNCED.real_ns + elapsed + elapsed * rate_ppb(SYNCED.tick, SYNCED.freq) // S
    values = {"status": 1 | STA_UNSYNC if skew else 1, **more}
    return SYNCED.model_copy(
        update={"raw_ns": SYNCED.raw_ns + elapsed, "real_ns": right + skew, **values}
    )


def plan(
    spec: dict[str, Any], *daemons: TimeDaemon, tls: tuple[str, ...] = (), **more: Any
) -> Plan:
    kind = kind_named("clock")
    request = FaultRequest.model_validate(
        {"id": "t-1", "kind": "clock", "target": {"type": "node"}, "spec": spec, **more}
    )
    target, checked = parse_request(kind, request)
    binding = ClockBinding(target="the node", daemons=daemons, tls=tls)
    return make_plan(kind, request, target, checked, binding, NODE)


# --- plans ------------------------------------------------------------------------


def test_daemons_are_stopped_before_the_clock_is_touched() -> None:
    made = plan(
        {"offset": "-5m"},
        TimeDaemon(comm="ntpd", pid=7, start_ticks=70),
        TimeDaemon(comm="chronyd", pid=8, start_ticks=80, unit="chrony.service"),
        TimeDaemon(comm="chronyd", pid=9, start_ticks=90, unit="chrony.service"),
    )
    assert [step.summary() for step in made.steps] == [
        "systemctl stop chrony.service",
        "kill -STOP 7",
        "date -s 'now -300 seconds'",
    ]
    assert made.steps[-1].model_dump()["offset_ns"] == -300 * S


def test_turns_are_in_the_step() -> None:
    made = plan({"offset": "+200ms", "on": "100ms", "off": "1s"}).steps[0].model_dump()
    assert (made["offset_ns"], made["on_us"], made["off_us"]) == (200_000_000, 100_000, 1_000_000)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"offset": "30"},
        {"offset": "+1ms"},
        {"offset": "+400d"},
        {"drift": "11%"},
        {"drift": "-100"},
        {"drift": 100},
        {"drift": "+0.1ppm"},
        {"offset": "+1s", "on": "1s"},
        {"drift": "+1%", "on": "1s", "off": "1s"},
        {"offset": "+1s", "on": "1us", "off": "1s"},
    ],
)
def test_what_makes_no_sense_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec):
        plan(spec)


def test_a_time_that_ends_mutual_tls_has_to_be_named() -> None:
    broken = ("the CA of ca.pem is valid from A to B",)
    with pytest.raises(Refused, match="no new TLS connection"):
        plan({"offset": "+30d"}, tls=broken)
    made = plan({"offset": "+30d"}, tls=broken, acknowledge=["tls"])
    assert made.guards == ("tls",)
    assert any("certificates" in line for line in made.collateral)


# --- what a reading says ----------------------------------------------------------


def test_the_right_time_follows_from_the_rate_that_the_clock_had() -> None:
    """At -20 ppm two hours are 144 ms: not to know the rate would be too far off."""
    later = after(7200)
    assert abs(skew_ns(SYNCED, later)) <= 1
    assert later.real_ns - SYNCED.real_ns == 7200 * S - 144_000_000


@pytest.mark.parametrize(
    ("now", "status"),
    [
        (after(0), Status.PRIOR),
        (after(60, 30 * DAY), Status.OURS),
        (after(86_400, 30 * DAY), Status.OURS),
        (after(60, 0, status=1 | STA_UNSYNC), Status.OURS),  # back, its status word not yet
        (after(60, 30_000_000, status=1), Status.PRIOR),
        (after(60, 30_000_000), Status.OURS),  # set by hand, nearly: to be set exactly
        (after(60, 5 * S), Status.GONE),  # date -s, by hand
        (after(60, 30 * DAY + S), Status.FOREIGN),
        (after(60, -DAY), Status.GONE),
        (after(60, -40 * DAY), Status.FOREIGN),
        (after(60, 10_000_000, freq=99), Status.PRIOR),  # a daemon is at work
        (after(40_000, 0, status=1 | STA_UNSYNC), Status.PRIOR),  # after 9 h without a daemon
    ],
)
def test_what_a_clock_that_was_set_is(now: ClockReading, status: Status) -> None:
    assert clock_status(FORWARD, SYNCED, now) is status


def drifting(seconds: float, skew: int) -> ClockReading:
    tick, freq = skewed_rate(FAST, SYNCED)
    return after(seconds, skew, tick=tick, freq=freq)


@pytest.mark.parametrize(
    ("now", "status"),
    [
        (drifting(0, 0), Status.OURS),
        (drifting(3600, 720_000_000), Status.OURS),
        (after(3600, 720_000_000), Status.OURS),  # its rate is back, its time is not
        (after(3600, 500_000_000), Status.OURS),
        (after(3600, 0), Status.PRIOR),
        (after(3600, -100_000_000), Status.GONE),
        (after(3600, 2 * S), Status.FOREIGN),
    ],
)
def test_what_a_clock_that_drifts_is(now: ClockReading, status: Status) -> None:
    assert clock_status(FAST, SYNCED, now) is status


@given(
    st.integers(4_000_000, 365 * DAY),
    st.booleans(),
    st.integers(0, 7 * 86_400),
    st.integers(-500 << 16, 500 << 16),
)
def test_a_step_is_told_from_none_at_any_time(
    size: int, back: bool, seconds: int, freq: int
) -> None:
    prior = SYNCED.model_copy(update={"freq": freq, "status": STA_UNSYNC})
    step = ClockSkew(offset_ns=-size if back else size)
    elapsed = seconds * S
    right = prior.real_ns + elapsed + elapsed * rate_ppb(10_000, freq) // S
    now = prior.model_copy(update={"raw_ns": prior.raw_ns + elapsed, "real_ns": right})
    assert clock_status(step, prior, now) is Status.PRIOR
    off = now.model_copy(update={"real_ns": right + step.offset_ns})
    assert clock_status(step, prior, off) is Status.OURS
    other_way = now.model_copy(update={"real_ns": right - step.offset_ns})
    assert clock_status(step, prior, other_way) is Status.FOREIGN


def test_a_drift_adds_to_the_rate_that_was_there() -> None:
    assert skewed_rate(FAST, SYNCED) == rate_words(180_000)
    assert skewed_rate(FORWARD, SYNCED) == (10_000, -1_310_720)
    with pytest.raises(ValueError):
        skewed_rate(ClockSkew(drift_ppb=100_000_000), SYNCED.model_copy(update={"tick": 10_100}))


# --- evidence ---------------------------------------------------------------------


def test_evidence_says_when_somebody_has_set_it() -> None:
    evidence = kind_named("clock").evidence
    data = {"skew_ns": 300 * S, "seconds": 2.0, "turns": 1, "turning": False,
            "rtc_moved_s": 0, "state": "ours"}  # fmt: skip
    found = evidence(None, (Measured(FORWARD, data),))
    assert (found.biting, found.counters["skew_ms"], found.statements) == (True, 300_000, ())
    found = evidence(None, (Measured(FORWARD, {**data, "state": "gone", "rtc_moved_s": 60}),))
    assert not found.biting
    assert "somebody has set it" in found.statements[0]
    assert "reboot" in found.statements[1]
    assert not evidence(None, ()).counted
