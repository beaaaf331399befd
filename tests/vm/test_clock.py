"""clock: how wrong it is by CLOCK_MONOTONIC_RAW, who keeps it, and that it comes back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from agentkit import Bench

from controller.client import AgentClient
from nodeagent.model.errors import ForeignState, Refused, Unreachable

pytestmark = pytest.mark.vm("debian-12+systemd", "debian-13+systemd")
NODE: dict[str, Any] = {"type": "node"}
DAEMON = "systemd-timesyncd.service"
MS = 1_000_000
WITHIN = 50 * MS
LOOK = """
import json, time
def look():
    best = None
    for _ in range(9):
        a = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        r = time.clock_gettime_ns(time.CLOCK_REALTIME)
        b = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        if best is None or b - a < best[0]:
            best = (b - a, r - (a + b) // 2, (a + b) // 2)
    return best[1:]
"""
"""Nothing of ours: the wall clock minus the raw clock, and the raw clock."""


def look(bench: Bench) -> tuple[int, int]:
    out = bench.node.run(["python3", "-c", f"{LOOK}\nprint(json.dumps(look()))"]).out
    offset, raw = json.loads(out)
    return offset, raw


def state(bench: Bench, unit: str = DAEMON) -> str:
    """Whether it is active, and enabled, by systemctl."""
    return bench.node.sh(f"systemctl show -p ActiveState,UnitFileState {unit}")


def words(bench: Bench) -> dict[str, str]:
    """tick, frequency and status by busybox's adjtimex."""
    lines = bench.node.sh("busybox adjtimex").splitlines()
    pairs = (line.partition(":")[::2] for line in lines)
    keep = ("frequency", "tick", "status")
    return {k.strip(): v.strip() for k, v in pairs if any(one in k for one in keep)}


@contextmanager
def right_again(bench: Bench) -> Iterator[int]:
    """What happens in it leaves the clock, its rate and its status word as they were."""
    before, kept = look(bench)[0], words(bench)
    try:
        yield before
    finally:
        bench.revert_all()
    assert abs(look(bench)[0] - before) < WITHIN
    assert words(bench) == kept
    assert bench.residue() == []


@pytest.fixture
def timesyncd(bench: Bench) -> Iterator[None]:
    bench.node.sh(f"systemctl start {DAEMON}", timeout=60)
    yield
    bench.node.sh(f"systemctl stop {DAEMON}", timeout=60)


@pytest.mark.usefixtures("timesyncd")
def test_a_skew_holds_though_a_daemon_ran_and_both_come_back(bench: Bench) -> None:
    kept = state(bench)
    assert "=active" in kept
    with right_again(bench) as before:
        fault = bench.inject("clock", NODE, spec={"offset": "+5m"})
        assert "=inactive" in state(bench)
        assert abs(look(bench)[0] - before - 300_000 * MS) < WITHIN
        bench.node.sh("sleep 5")
        assert abs(look(bench)[0] - before - 300_000 * MS) < WITHIN
        found = bench.evidence(fault.id)
        assert found["hits"] == 1
        assert abs(found["counters"]["skew_ms"] - 300_000) <= 1
        with pytest.raises(Refused, match=r"already|conflict"):
            bench.inject("clock", NODE, spec={"offset": "+1m"})
        bench.client.revert(fault.id)
        assert state(bench) == kept


def test_a_daemon_that_was_off_stays_off(bench: Bench) -> None:
    kept = state(bench)
    assert "=inactive" in kept
    with right_again(bench) as before:
        fault = bench.inject("clock", NODE, spec={"offset": "-5m"})
        assert abs(look(bench)[0] - before + 300_000 * MS) < WITHIN
        bench.client.revert(fault.id)
        assert state(bench) == kept


def test_a_process_without_a_unit_stands_still_meanwhile(bench: Bench) -> None:
    bench.node.sh("cp /usr/bin/sleep /dev/shm/ntpd")  # known by its name; it need not keep time
    pid = bench.node.sh("setsid /dev/shm/ntpd 100000 >/dev/null 2>&1 & echo $!").strip()
    stat = f"sleep 0.2; ps -o stat= -p {pid}"
    try:
        with right_again(bench):
            fault = bench.inject("clock", NODE, spec={"offset": "+10s"})
            assert bench.node.sh(stat).startswith("T")
            assert bench.node.sh("systemctl is-active lab.service").strip() == "active"
            bench.client.revert(fault.id)
            assert bench.node.sh(stat).startswith("S")
    finally:
        bench.node.sh(f"kill -9 {pid}")


@pytest.mark.parametrize(("drift", "share"), [("+10%", 0.1), ("-2%", -0.02)])
def test_it_runs_wrong_by_what_was_asked(bench: Bench, drift: str, share: float) -> None:
    with right_again(bench):
        fault = bench.inject("clock", NODE, spec={"drift": drift})
        first = look(bench)
        bench.node.sh("sleep 5")
        then = look(bench)
        assert (then[0] - first[0]) / (then[1] - first[1]) == pytest.approx(share, rel=0.02)
        bench.client.revert(fault.id)
        first = look(bench)
        bench.node.sh("sleep 2")
        assert abs(look(bench)[0] - first[0]) < MS


def test_it_jumps_to_and_fro(bench: Bench) -> None:
    sample = f"{LOOK}\ns = [look()[0] for _ in range(4000) if not time.sleep(0.001)]\n"
    sample += "print(json.dumps([min(s), max(s), sum(1 for v in s if v > min(s) + 10**9)]))"
    with right_again(bench) as before:
        fault = bench.inject("clock", NODE, spec={"offset": "+2s", "on": "200ms", "off": "200ms"})
        low, high, wrong = json.loads(bench.node.run(["python3", "-c", sample], timeout=60).out)
        assert abs(low - before) < WITHIN
        assert abs(high - before - 2000 * MS) < WITHIN
        assert 400 < wrong < 3600
        assert bench.evidence(fault.id)["hits"] >= 3
        bench.client.revert(fault.id)


@pytest.mark.usefixtures("timesyncd")
def test_the_guardian_brings_the_time_back(bench: Bench) -> None:
    before, kept, known = look(bench)[0], words(bench), state(bench)
    bench.inject("clock", NODE, spec={"offset": "+30d", "drift": "+5%"}, acknowledge=["tls"])
    bench.node.sh("sleep 3")
    assert look(bench)[0] - before > 30 * 86_400_000 * MS
    bench.node.sh(f"kill -9 {bench.pids()[0]}")
    end = time.monotonic() + 120
    while state(bench) != known:
        assert time.monotonic() < end, "the daemon is not up again"
        time.sleep(0.5)
    assert abs(look(bench)[0] - before) < WITHIN
    assert words(bench) == kept


def test_after_thirty_days_only_tls_is_lost_and_the_lease_is_not(bench: Bench) -> None:
    with right_again(bench) as before:
        with pytest.raises(Refused, match="no new TLS connection"):
            bench.plan("clock", NODE, spec={"offset": "+30d"})
        asked = {"spec": {"offset": "+30d"}, "acknowledge": ["tls"]}
        fault = bench.inject("clock", NODE, **asked)
        assert bench.client.fault(fault.id).state == "armed"  # by the open connection
        with AgentClient(bench.client.address) as stranger, pytest.raises(Unreachable):
            stranger.faults()
        bench.node.run(["faultctl", "revert", fault.id], timeout=60)  # by the Unix socket
        assert abs(look(bench)[0] - before) < WITHIN
        with AgentClient(bench.client.address) as stranger:
            assert stranger.fault(fault.id).end_reason == "reverted"
        fault = bench.inject("clock", NODE, lease="3s", **asked)
        end = time.monotonic() + 60
        while bench.client.fault(fault.id).state != "ended":
            assert time.monotonic() < end, "its lease does not end"
            time.sleep(0.5)
        assert bench.client.fault(fault.id).end_reason == "expired"


def test_a_clock_that_somebody_has_set_is_left_to_him(bench: Bench) -> None:
    with right_again(bench) as before:
        fault = bench.inject("clock", NODE, spec={"offset": "+10h"})
        bench.node.sh("date -s @$(($(cat /sys/class/rtc/rtc0/since_epoch) + 3))")
        kept = look(bench)[0]
        assert 1000 * MS < kept - before < 5000 * MS
        found = bench.evidence(fault.id)
        assert not found["hits"]
        assert "somebody has set it" in found["statements"][0]
        bench.client.revert(fault.id)
        assert abs(look(bench)[0] - kept) < WITHIN
        fault = bench.inject("clock", NODE, spec={"offset": "+10h"})
        bench.node.sh("date -s '+3 days'")
        with pytest.raises(ForeignState):
            bench.client.revert(fault.id)
        set_right = f"{LOOK}\ntime.clock_settime_ns(0, time.clock_gettime_ns(4) + {before})"
        bench.node.run(["python3", "-c", set_right])
        bench.client.revert(fault.id)
        assert bench.client.fault(fault.id).state == "ended"


@pytest.mark.parametrize("target", [{"type": "pid", "pid": 1}, {"type": "cgroup", "cgroup": "/x"}])
def test_no_process_has_a_wall_clock_of_its_own(bench: Bench, target: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="time namespace shifts CLOCK_MONOTONIC"):
        bench.plan("clock", target, spec={"offset": "+1h"})
