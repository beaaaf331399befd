"""throttle: each limit bites, the neighbour runs on, what was there comes back."""

from __future__ import annotations

import time
from typing import Any

import pytest
from agentkit import Bench, undisturbed
from cgroup_kit import BUSY, ROOT, cat, cgroups, cpu_share, keeps, start

from nodeagent.model.errors import ForeignState, InvalidSpec, Refused

pytestmark = pytest.mark.vm("debian-12", "debian-13")
VICTIM: dict[str, Any] = {"type": "cgroup", "cgroup": "/victim"}
DISK = "/dev/disk/by-id/virtio-d1"


def test_cpu_is_taken_from_the_target_and_not_from_its_neighbour(bench: Bench) -> None:
    with cgroups(bench, "victim", "neighbour"):
        bench.node.sh(f"echo '80000 100000' > {ROOT}/victim/cpu.max")
        victim, other = start(bench, "victim", BUSY), start(bench, "neighbour", BUSY)
        fault = bench.inject("throttle", VICTIM, spec={"cpu_percent": "25%"})
        assert cat(bench, "victim", "cpu.max") == "20000 100000"
        share = undisturbed(lambda: cpu_share(bench, victim), 0.15)
        assert share == pytest.approx(0.2, abs=0.05)
        assert keeps(bench, other) > 0.9
        seen = bench.evidence(fault.id)
        assert seen["hits"] > 0
        assert seen["counters"]["cpu.max:throttled_usec"] > 0
        assert seen["details"]["cpu.max"]["stalled_us"]["cpu"]["some"] > 0
        assert any("waited for cpu" in line for line in seen["statements"])
        bench.client.revert(fault.id)
        assert cat(bench, "victim", "cpu.max") == "80000 100000"
        assert cpu_share(bench, victim) > 0.4
    assert bench.residue() == []


def test_processes_and_memory(bench: Bench) -> None:
    with cgroups(bench, "victim"):
        start(bench, "victim", "sleep 1000 & sleep 1000 & sleep 1000")
        bench.node.sh(f"echo 999 > {ROOT}/victim/pids.max")
        fault = bench.inject("throttle", VICTIM, spec={"pids": 4, "memory": "16Mi"})
        script = f"echo $$ > {ROOT}/victim/cgroup.procs; (sleep 0.1); echo forked"
        said = bench.node.run(["sh", "-c", script], check=False)
        assert "forked" not in said.out, "a fifth process could be made"
        read = f"dd if={DISK} of=/dev/null bs=1M count=64"
        bench.node.sh("echo 3 > /proc/sys/vm/drop_caches")
        bench.node.sh(f"echo $$ > {ROOT}/victim/cgroup.procs; exec {read}", timeout=60)
        assert int(cat(bench, "victim", "memory.current")) < 20 << 20
        seen = bench.evidence(fault.id)["counters"]
        assert seen["pids.max:max"] > 0
        assert seen["memory.high:high"] > 0
        bench.client.revert(fault.id)
        assert cat(bench, "victim", "pids.max") == "999"
        assert cat(bench, "victim", "memory.high") == "max"


def test_reads_of_one_disk_are_slowed_and_other_limits_stay(bench: Bench) -> None:
    with cgroups(bench, "victim"):
        number = bench.node.sh(f"lsblk -dno MAJ:MIN {DISK}").strip()
        bench.node.sh(f"echo '{number} wiops=500' > {ROOT}/victim/io.max")
        prior = cat(bench, "victim", "io.max")
        read = f"dd if={DISK} of=/dev/null bs=128k count=32 iflag=direct"
        asked = {"device": DISK, "read_bytes": "1Mi"}
        fault = bench.inject("throttle", VICTIM, spec=asked)
        slow = _seconds(bench, f"echo $$ > {ROOT}/victim/cgroup.procs; exec {read}")
        free = _seconds(bench, read)
        assert slow > 3.0 > free
        assert f"{number} rbps=1048576 wbps=max riops=max wiops=500" in cat(
            bench, "victim", "io.max"
        )
        seen = bench.evidence(fault.id)
        assert seen["counters"]["io.max:rbytes"] == 4 << 20
        assert not seen["counted"]
        bench.client.revert(fault.id)
        assert cat(bench, "victim", "io.max") == prior


def _seconds(bench: Bench, script: str) -> float:
    out = bench.node.sh(
        f"a=$(date +%s%N); sh -c '{script}' 2>/dev/null; b=$(date +%s%N); echo $(((b - a) / 1000))"
    )
    return int(out) / 1e6


@pytest.mark.parametrize(
    ("spec", "why"),
    [({"cpu": "0.001"}, "1000 us"), ({"pids": 4, "memory": "1000Gi"}, "no less than it has")],
)
def test_refusals(bench: Bench, spec: dict[str, Any], why: str) -> None:
    with cgroups(bench, "victim"):
        with pytest.raises(Refused) as caught:
            bench.plan("throttle", VICTIM, spec=spec)
        assert why in f"{caught.value}"


def test_what_the_kernel_would_not_take_or_would_not_be_there(bench: Bench) -> None:
    with cgroups(bench, "victim"):
        with pytest.raises(InvalidSpec):
            bench.plan("throttle", VICTIM, spec={"device": DISK, "read_ops": 1})
        said = bench.node.run(
            f"echo '{_number(bench)} riops=1' > {ROOT}/victim/io.max", check=False
        )
        assert not said.ok, "the kernel takes what we refuse"
        bench.node.sh(f"echo -io > {ROOT}/cgroup.subtree_control")
        with pytest.raises(Refused, match="controller io is not enabled"):
            bench.plan("throttle", VICTIM, spec={"device": DISK, "read_ops": 2})
    agent, _ = bench.pids()
    with cgroups(bench, "ours"):
        bench.node.sh(f"echo {agent} > {ROOT}/ours/cgroup.procs")
        try:
            with pytest.raises(Refused, match="faultd itself"):
                bench.plan("throttle", {"type": "cgroup", "cgroup": "/ours"}, spec={"pids": 99})
        finally:
            bench.node.sh(f"echo {agent} > {ROOT}/cgroup.procs")


def _number(bench: Bench) -> str:
    return bench.node.sh(f"lsblk -dno MAJ:MIN {DISK}").strip()


def test_a_foreign_change_is_left_and_a_cgroup_that_went_is_done(bench: Bench) -> None:
    with cgroups(bench, "victim"):
        fault = bench.inject("throttle", VICTIM, spec={"cpu": "0.5", "pids": 50})
        bench.node.sh(f"echo '30000 100000' > {ROOT}/victim/cpu.max")
        with pytest.raises(ForeignState):
            bench.client.revert(fault.id)
        assert cat(bench, "victim", "cpu.max") == "30000 100000"
        assert cat(bench, "victim", "pids.max") == "max", "the other step was not taken back"
        bench.node.sh(f"rmdir {ROOT}/victim")
        bench.client.revert(fault.id)
        assert bench.client.fault(fault.id).state == "ended"


def test_the_guardian_takes_it_back(bench: Bench) -> None:
    with cgroups(bench, "victim"):
        bench.inject("throttle", VICTIM, spec={"cpu": "0.5"})
        bench.node.sh(f"kill -9 {bench.pids()[0]}")
        end = time.monotonic() + 60
        while cat(bench, "victim", "cpu.max") != "max 100000":
            assert time.monotonic() < end, "the limit is still there"
            time.sleep(0.2)
