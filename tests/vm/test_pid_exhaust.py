"""pid-exhaust: no more forks in the target, counted where they fail; the neighbour forks on."""

from __future__ import annotations

import time
from typing import Any

import pytest
from agentkit import Bench
from cgroup_kit import ROOT, cat, cgroups, start

from nodeagent.model.errors import ForeignState, Refused

pytestmark = pytest.mark.vm("debian-12", "debian-13")
VICTIM: dict[str, Any] = {"type": "cgroup", "cgroup": "/victim"}


def forks(bench: Bench, cgroup: str) -> bool:
    """Whether a shell that is moved there can fork: it becomes one process more itself."""
    script = f"echo $$ > {ROOT}/{cgroup}/cgroup.procs && (sleep 0.1); echo forked"
    return "forked" in bench.node.run(["sh", "-c", script], check=False).out


def test_no_further_process_in_it_and_below_it(bench: Bench) -> None:
    with cgroups(bench, "victim", "neighbour"):
        bench.node.sh(f"echo '+pids' > {ROOT}/victim/cgroup.subtree_control; "
                      f"mkdir {ROOT}/victim/inner; echo 500 > {ROOT}/victim/pids.max")  # fmt: skip
        start(bench, "victim/inner", "sleep 1000 & sleep 1000 & exec sleep 1000")
        bench.node.sh(f"until [ $(cat {ROOT}/victim/pids.current) = 3 ]; do sleep 0.1; done")
        assert forks(bench, "victim/inner")
        fault = bench.inject("pid-exhaust", VICTIM, spec={"leave": 0})
        assert cat(bench, "victim", "pids.max") == cat(bench, "victim", "pids.current") == "3"
        assert not forks(bench, "victim/inner")
        assert forks(bench, "neighbour")
        seen = bench.evidence(fault.id)
        assert seen["hits"] >= 1, "the kernel counts it below on 6.1, in the limited one on 6.12"
        with pytest.raises(Refused, match=fault.id):
            bench.plan("throttle", VICTIM, spec={"pids": 2})
        bench.client.revert(fault.id)
        assert cat(bench, "victim", "pids.max") == "500"
        assert forks(bench, "victim/inner")
        bench.node.sh(f"echo 3 > {ROOT}/victim/pids.max")
        with pytest.raises(Refused, match="3 already"):
            bench.inject("pid-exhaust", VICTIM)
    assert bench.residue() == []


def test_a_foreign_change_is_left_and_the_guardian_puts_it_back(bench: Bench) -> None:
    with cgroups(bench, "victim"):
        start(bench, "victim", "sleep 1000")
        fault = bench.inject("pid-exhaust", VICTIM, spec={"leave": 1})
        bench.node.sh(f"echo 40 > {ROOT}/victim/pids.max")
        with pytest.raises(ForeignState):
            bench.client.revert(fault.id)
        assert cat(bench, "victim", "pids.max") == "40"
        bench.node.sh(f"echo max > {ROOT}/victim/pids.max")
        bench.client.revert(fault.id)
        bench.inject("pid-exhaust", VICTIM)
        bench.node.sh(f"kill -9 {bench.pids()[0]}")
        end = time.monotonic() + 60
        while cat(bench, "victim", "pids.max") != "max":
            assert time.monotonic() < end, "it is not put back"
            time.sleep(0.2)
