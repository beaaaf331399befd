"""stress: what was asked is measured, limits hold, deaths are told, nothing stays behind."""

from __future__ import annotations

import time
from typing import Any

import pytest
from agentkit import STATE, Bench, undisturbed
from cgroup_kit import BUSY, ROOT, cat, cgroups, keeps, start, until

from nodeagent.model.errors import BackendError, InvalidSpec, Refused

pytestmark = pytest.mark.vm("debian-12", "debian-13")
VICTIM: dict[str, Any] = {"type": "cgroup", "cgroup": "/victim"}
MIB = 1 << 20


def nothing_left(bench: Bench) -> None:
    """By ps and ls, which know nothing of us."""
    assert bench.node.run("pgrep -a stress-ng", check=False).out == ""
    assert bench.node.sh(f"find {ROOT} -name 'faultctl-*'") == ""
    assert bench.node.run(f"ls -d {STATE}/scratch", check=False).out == ""
    assert bench.residue() == []


def usage(bench: Bench, cgroup: str) -> tuple[int, float]:
    """(usage_usec, uptime) of a cgroup, by grep."""
    out = bench.node.sh(
        f"grep usage_usec {ROOT}/{cgroup}/cpu.stat | cut -d' ' -f2; cut -d' ' -f1 /proc/uptime"
    ).split()
    return int(out[0]), float(out[1])


def measured(bench: Bench, cgroup: str, seconds: int) -> float:
    """CPUs that a cgroup used."""
    before = usage(bench, cgroup)
    bench.node.sh(f"sleep {seconds}")
    after = usage(bench, cgroup)
    return (after[0] - before[0]) / 1e6 / (after[1] - before[1])


def test_a_share_of_the_targets_quota_and_not_of_the_nodes_cores(bench: Bench) -> None:
    with cgroups(bench, "victim", "neighbour"):
        bench.node.sh(f"echo '50000 100000' > {ROOT}/victim/cpu.max")
        other = start(bench, "neighbour", BUSY)
        fault = bench.inject("stress", VICTIM, spec={"cpu_percent": "50%"})
        share = undisturbed(lambda: measured(bench, "victim", 20) / 0.5, 0.45)
        print(f"\nasked 50 %, measured {share:.1%}")
        assert share == pytest.approx(0.5, abs=0.05)
        seen = bench.evidence(fault.id)
        assert seen["details"]["cpus"] == pytest.approx(0.25, abs=0.03)
        assert seen["details"]["asked_cpus"] == 0.25
        assert any("asked for 0.25 CPUs, measured 0.2" in line for line in seen["statements"])
        assert seen["details"]["stalled_us"].keys() == {"cpu", "io", "memory"}
        assert keeps(bench, other) > 0.9, "the neighbour is slower"
        assert seen["hits"] >= 1
        bench.client.revert(fault.id)
        nothing_left(bench)


def test_memory_is_touched_and_given_back(bench: Bench) -> None:
    with cgroups(bench, "victim"):
        bench.node.sh(f"echo 100M > {ROOT}/victim/memory.max")
        before = int(cat(bench, "victim", "memory.current"))
        fault = bench.inject("stress", VICTIM, spec={"memory_percent": "70%"})
        grown = int(cat(bench, "victim", "memory.current")) - before
        print(f"\nasked 70 MiB, grown by {grown / MIB:.1f} MiB")
        assert grown == pytest.approx(70 * MIB, abs=5 * MIB)
        assert bench.evidence(fault.id)["counters"]["memory_grown"] > 64 * MIB
        bench.client.revert(fault.id)
        assert int(cat(bench, "victim", "memory.current")) < before + 5 * MIB
        nothing_left(bench)


def test_out_of_memory_goes_where_it_was_promised(bench: Bench) -> None:
    with cgroups(bench, "victim"):
        bench.node.sh(f"echo 64M > {ROOT}/victim/memory.max")
        bench.node.sh(f"echo 1 > {ROOT}/victim/memory.oom.group")
        innocent = start(bench, "victim", "sleep 1000")
        asked = {"memory": "200Mi"}
        with pytest.raises(Refused, match="guard rail"):
            bench.plan("stress", VICTIM, spec=asked)
        spec = {"cpu": 1, "load": "10%", **asked}
        fault = bench.inject("stress", VICTIM, spec=spec, acknowledge=["oom"])
        end = time.monotonic() + 60
        while bench.evidence(fault.id)["counters"]["oom_kill"] == 0:
            assert time.monotonic() < end, "nobody ran out of memory"
            time.sleep(0.5)
        assert bench.node.sh(f"ps -o comm= -p {innocent}").strip()
        assert cat(bench, "victim", "memory.oom.group") == "0"
        assert any("ran out of memory" in line for line in bench.evidence(fault.id)["statements"])
        bench.client.revert(fault.id)
        assert cat(bench, "victim", "memory.oom.group") == "1"
        nothing_left(bench)


def test_the_target_dies_first_where_that_is_asked(bench: Bench) -> None:
    with cgroups(bench, "victim"):
        bench.node.sh(f"echo 96M > {ROOT}/victim/memory.max")
        script = 'exec python3 -c "x = bytearray(50 << 20); import time; time.sleep(1000)"'
        target = start(bench, "victim", script)
        until(lambda: int(cat(bench, "victim", "memory.current")) > 50 * MIB)
        spec = {"memory": "96Mi", "oom_victim": "target"}
        fault = bench.inject("stress", VICTIM, spec=spec, acknowledge=["oom"])
        until(lambda: not bench.node.run(f"kill -0 {target}", check=False).ok)
        assert bench.evidence(fault.id)["counters"]["oom_kill"] >= 1
        assert bench.node.run("pgrep stress-ng", check=False).ok, "and not the load"
        bench.client.revert(fault.id)
        nothing_left(bench)


def test_died_workers_are_told_and_started_again_where_asked(bench: Bench) -> None:
    with cgroups(bench, "victim"):
        spec = {"cpu": 1, "load": "10%"}
        fault = bench.inject("stress", VICTIM, spec=spec)
        bench.node.sh("pkill -9 stress-ng; sleep 0.5")
        said = "; ".join(bench.evidence(fault.id)["statements"])
        assert "stress-ng has ended with" in said
        bench.client.revert(fault.id)
        fault = bench.inject("stress", VICTIM, spec={**spec, "restart": True})
        before = bench.evidence(fault.id)["counters"]["usage_usec"]
        for times in (1, 2):
            bench.node.sh("pkill -9 stress-ng")
            until(lambda n=times: bench.evidence(fault.id)["counters"].get("restarts", 0) >= n)  # type: ignore[misc]
        seen = bench.evidence(fault.id)
        assert seen["counters"]["usage_usec"] > before, "what it used before counts too"
        assert "started again 2 times" in seen["statements"]
        assert bench.node.run("pgrep stress-ng", check=False).ok
        bench.node.sh("pkill -9 stress-ng")
        bench.client.revert(fault.id)
        bench.node.sh("sleep 3")
        nothing_left(bench)


def test_out_of_memory_again_and_again(bench: Bench) -> None:
    with cgroups(bench, "victim"):
        bench.node.sh(f"echo 64M > {ROOT}/victim/memory.max")
        spec = {"memory": "200Mi", "restart": True}
        fault = bench.inject("stress", VICTIM, spec=spec, acknowledge=["oom"])
        until(lambda: bench.evidence(fault.id)["counters"].get("oom_kill", 0) >= 2)
        bench.client.revert(fault.id)
        nothing_left(bench)


NODE: dict[str, Any] = {"type": "node"}


def test_on_the_node_a_cap_keeps_it_reachable(bench: Bench) -> None:
    with cgroups(bench, "neighbour"):
        with pytest.raises(Refused, match="leave it reachable"):
            bench.plan("stress", NODE, spec={"cpu_percent": "100%"})
        fault = bench.inject("stress", NODE, spec={"cpu_percent": "80%", "memory": "64Mi"})
        mine = f"faultctl-stress-{fault.id}"
        assert cat(bench, mine, "cpu.max") == "180000 100000"
        share = undisturbed(lambda: measured(bench, mine, 20) / 2, 0.75)
        print(f"\nasked 80 % of the node, measured {share:.1%}")
        assert share == pytest.approx(0.8, abs=0.05)
        assert bench.client.fault(fault.id).state == "armed", "the agent answers"
        assert cat(bench, "neighbour", "cgroup.procs") == "", "the load is in a cgroup of others"
        innocent = start(bench, "neighbour", "sleep 1000")
        bench.node.sh(f"echo 8M > {ROOT}/{mine}/memory.max")  # as if the node ran out of memory
        until(lambda: bench.evidence(fault.id)["counters"].get("oom_kill", 0) >= 1)
        assert bench.node.sh(f"ps -o comm= -p {innocent}").strip()
        bench.client.revert(fault.id)
        nothing_left(bench)


def test_files_are_written_where_asked_and_are_gone(bench: Bench) -> None:
    with cgroups(bench, "victim"):
        bench.node.sh("mkdir -p /srv/here")
        spec = {"hdd": 1, "hdd_size": "2Mi", "stressor": ["matrix=1"], "folder": "/srv/here"}
        fault = bench.inject("stress", VICTIM, spec=spec)
        assert bench.node.sh("ls /srv/here").strip() == f"faultctl-stress-{fault.id}"
        names = bench.node.sh("ps -eo args | grep '[s]tress-ng'")
        assert "hdd" in names
        assert "matrix" in names
        bench.client.revert(fault.id)
        assert bench.node.sh("ls /srv/here") == ""
        nothing_left(bench)


def test_a_stress_ng_that_will_not_run_is_an_error_with_its_words(bench: Bench) -> None:
    with cgroups(bench, "victim"):
        with pytest.raises(BackendError) as caught:
            bench.inject("stress", VICTIM, spec={"stressor": ["nosuch=1"]})
        assert "nosuch" in str(caught.value)
        with pytest.raises(BackendError) as caught:
            bench.inject("stress", VICTIM, spec={"cpu": 1, "cpu_method": "nosuch"})
        assert "ended at once" in str(caught.value)
        with pytest.raises(InvalidSpec):
            bench.plan("stress", VICTIM, spec={})
        bench.node.sh(f"echo 1 > {ROOT}/victim/cgroup.freeze")
        with pytest.raises(Refused, match="frozen"):
            bench.plan("stress", VICTIM, spec={"cpu": 1})
        nothing_left(bench)


def test_stressors_that_left_their_parent_go_with_the_cgroup(bench: Bench) -> None:
    """As a stressor that forks twice and makes a session of its own would."""
    with cgroups(bench, "victim"):
        fault = bench.inject("stress", VICTIM, spec={"cpu": 1, "load": "10%"})
        child = f"victim/faultctl-stress-{fault.id}"
        bench.node.sh(f"mkdir {ROOT}/{child}/deeper")
        lost = start(bench, f"{child}/deeper", "sleep 1000")
        bench.client.revert(fault.id)
        assert bench.node.run(f"ps -o stat= -p {lost}", check=False).out.strip() in ("", "Z", "Zs")
        nothing_left(bench)


def test_the_guardian_ends_it(bench: Bench) -> None:
    with cgroups(bench, "victim"):
        start(bench, "victim", "exec sleep 1000")
        bench.inject("stress", VICTIM, spec={"cpu": 1, "load": "20%", "hdd": 1})
        bench.node.sh(f"kill -9 {bench.pids()[0]}")
        end = time.monotonic() + 60
        while bench.node.run("pgrep stress-ng", check=False).ok:
            assert time.monotonic() < end, "it still runs"
            time.sleep(0.2)
        bench.node.sh(
            f"for i in $(seq 100); do [ -z \"$(find {ROOT} -name 'faultctl-*')\" ] && "
            f"[ ! -e {STATE}/scratch ] && exit 0; sleep 0.1; done; exit 1"
        )
        assert len(cat(bench, "victim", "cgroup.procs").split()) == 1
