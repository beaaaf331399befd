"""kill: who dies, who comes back and dies again, and who is left alone."""

from __future__ import annotations

from typing import Any

import pytest
from agentkit import Bench
from cgroup_kit import cgroups, start, until

from nodeagent.model.errors import Refused

pytestmark = pytest.mark.vm("debian-12", "debian-13")
VICTIM: dict[str, Any] = {"type": "cgroup", "cgroup": "/victim"}


def alive(bench: Bench, pid: int) -> bool:
    """By ps, which knows nothing of us."""
    out = bench.node.run(f"ps -o stat= -p {pid}", check=False).out.strip()
    return bool(out) and out[0] not in "ZX"


def test_one_process_and_then_a_whole_cgroup(bench: Bench) -> None:
    with cgroups(bench, "victim", "neighbour"):
        first = start(bench, "victim", "exec sleep 1000")
        second = start(bench, "victim", "exec sleep 1000")
        other = start(bench, "neighbour", "exec sleep 1000")
        fault = bench.inject("kill", {"type": "pid", "pid": first}, spec={"signal": "TERM"})
        until(lambda: not alive(bench, first))
        assert alive(bench, second)
        assert bench.evidence(fault.id)["hits"] == 1
        bench.client.revert(fault.id)
        fault = bench.inject("kill", VICTIM)
        until(lambda: not alive(bench, second))
        assert alive(bench, other)
        bench.client.revert(fault.id)
        with pytest.raises(Refused, match="nothing to kill"):
            bench.inject("kill", VICTIM)
        for pid in (1, bench.pids()[0]):
            with pytest.raises(Refused, match="never hit"):
                bench.plan("kill", {"type": "pid", "pid": pid})
    assert bench.residue() == []


def test_what_comes_back_is_killed_again_until_the_revert(bench: Bench) -> None:
    with cgroups(bench, "victim", "keeper"):
        start(
            bench,
            "keeper",
            'while :; do sh -c "echo 0 > /sys/fs/cgroup/victim/cgroup.procs; exec sleep 1000"; '
            "sleep 0.2; done",
        )
        sleeping = "cat /sys/fs/cgroup/victim/cgroup.procs"
        until(lambda: bench.node.sh(sleeping).strip())
        fault = bench.inject("kill", VICTIM, spec={"every": "500ms"})
        until(lambda: bench.evidence(fault.id)["hits"] >= 3)
        bench.client.revert(fault.id)
        until(lambda: bench.node.sh(sleeping).strip())
        pid = int(bench.node.sh(sleeping).split()[0])
        bench.node.sh("sleep 3")
        assert alive(bench, pid)


def test_the_rounds_end_with_the_agent(bench: Bench) -> None:
    with cgroups(bench, "victim"):
        bench.inject("kill", VICTIM, spec={"every": "500ms"})
        bench.node.sh(f"kill -9 {bench.pids()[0]}")
        bench.node.sh("sleep 1")
        pid = start(bench, "victim", "exec sleep 1000")
        bench.node.sh("sleep 3")
        assert alive(bench, pid)
