"""pause: the target stands still by a witness of its own, and goes on, whoever reverts."""

from __future__ import annotations

import time
from typing import Any

import pytest
from agentkit import Bench
from cgroup_kit import BUSY, ROOT, cat, cgroups, cpu_share, start

from nodeagent.model.errors import Refused

pytestmark = pytest.mark.vm("debian-12", "debian-13")
VICTIM: dict[str, Any] = {"type": "cgroup", "cgroup": "/victim"}


def state(bench: Bench, pid: int) -> str:
    """By ps, which knows nothing of us."""
    return bench.node.sh(f"ps -o stat= -p {pid}").strip()[0]


def test_a_cgroup_stands_still_with_what_comes_later(bench: Bench) -> None:
    with cgroups(bench, "victim", "neighbour"):
        victim, other = start(bench, "victim", BUSY), start(bench, "neighbour", BUSY)
        fault = bench.inject("pause", VICTIM)
        late = start(bench, "victim", BUSY)
        assert cpu_share(bench, victim, 2) == 0
        assert cpu_share(bench, other, 2) > 0.3
        assert bench.node.sh(f"cut -d' ' -f14,15 /proc/{late}/stat") == bench.node.sh(
            f"sleep 1; cut -d' ' -f14,15 /proc/{late}/stat"
        )
        assert bench.evidence(fault.id)["hits"] == 1
        with pytest.raises(Refused, match="frozen already"):
            bench.plan("pause", VICTIM)
        bench.client.revert(fault.id)
        assert cat(bench, "victim", "cgroup.freeze") == "0"
        assert cpu_share(bench, victim, 3) > 0.1
    assert bench.residue() == []


def test_a_process_is_stopped_and_continued(bench: Bench) -> None:
    with cgroups(bench, "victim"):
        pid = start(bench, "victim", BUSY)
        fault = bench.inject("pause", {"type": "pid", "pid": pid})
        assert state(bench, pid) == "T"
        bench.client.revert(fault.id)
        assert state(bench, pid) == "R"
        bench.node.sh(f"kill -STOP {pid}")
        with pytest.raises(Refused, match="stopped already"):
            bench.inject("pause", {"type": "pid", "pid": pid})
        bench.node.sh(f"kill -CONT {pid}")
        fault = bench.inject("pause", {"type": "pid", "pid": pid})
        bench.node.sh(f"kill -9 {pid}")
        bench.client.revert(fault.id)
        assert bench.client.fault(fault.id).state == "ended"


def test_in_turns_it_runs_for_its_share_of_the_time(bench: Bench) -> None:
    """Over whole cycles, so that it does not matter where in one the look begins."""
    with cgroups(bench, "victim"):
        pid = start(bench, "victim", BUSY)
        process = {"type": "pid", "pid": pid}
        for target, on, off in ((VICTIM, 1500, 500), (VICTIM, 1000, 1000), (process, 500, 1500)):
            fault = bench.inject("pause", target, spec={"on": f"{on}ms", "off": f"{off}ms"})
            share = cpu_share(bench, pid, 12)
            print(f"\nasked to run {off / (on + off):.0%} of the time, ran {share:.1%}")
            assert share == pytest.approx(off / (on + off), abs=0.1)
            assert bench.evidence(fault.id)["hits"] >= 4
            bench.client.revert(fault.id)
            assert cpu_share(bench, pid, 3) > 0.8


@pytest.mark.parametrize("way", ["cgroup", "pid"])
def test_the_guardian_lets_it_go_on(bench: Bench, way: str) -> None:
    with cgroups(bench, "victim"):
        pid = start(bench, "victim", BUSY)
        bench.inject("pause", VICTIM if way == "cgroup" else {"type": "pid", "pid": pid})
        bench.node.sh(f"kill -9 {bench.pids()[0]}")
        end = time.monotonic() + 60
        while state(bench, pid) == "T" or cat(bench, "victim", "cgroup.freeze") == "1":
            assert time.monotonic() < end, "it still stands still"
            time.sleep(0.2)
        assert cpu_share(bench, pid, 2) > 0.3
        bench.node.sh(f"test -d {ROOT}/victim")
