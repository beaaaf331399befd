"""Pods as targets on a real kernel: found by their cgroups, held through restarts of containers."""

from __future__ import annotations

import re

import pod_kit
import pytest
from agentkit import Bench, prepared_volume
from pod_kit import HOST_IP, Pod, pod

from nodeagent.model.errors import Refused

BOTH = ("debian-12", "debian-13")
HEAP = "dd if=/srv/pg/base/16384 of=/dev/null bs=4096 iflag=direct"


def rtt(one: Pod) -> float:
    """The least round trip in ms that ping(8) sees from inside the pod; 0 if there is none."""
    code, out = one.run(f"ping -n -i 0.1 -W 3 -c 3 {HOST_IP}")
    times = [float(found) for found in re.findall(r"time=([\d.]+) ms", out)]
    assert bool(times) == (code == 0), out
    return min(times, default=0.0)


@pytest.mark.vm(*BOTH)
@pytest.mark.parametrize("driver", ["cgroupfs", "systemd"])
def test_a_file_of_a_pods_volume_fails_at_every_start_of_the_container(
    bench: Bench, driver: str
) -> None:
    node = bench.node
    with prepared_volume(bench) as mount:
        # subPath: the container sees a directory of the volume.
        node.sh(f"mkdir -p {mount}/pg/base; cd {mount}/pg/base; "
                "dd if=/dev/urandom of=16384 bs=4096 count=16; cp 16384 16385; sync")  # fmt: skip
        before = bench.tables()
        with pod(bench, driver, f"{mount}/pg") as one:
            assert one.run(HEAP)[0] == 0
            asked = one.volume_target(file="base/16384", offset="8Ki", length="4Ki", sub_path="pg")
            fault = bench.inject("latent-sector", asked)
            assert f"{mount}/pg/base/16384 on the node" in fault.plan_json
            for start in range(3):
                assert one.run(HEAP)[1].count("Input/output error") >= 1, start
                assert one.run(f"{HEAP} skip=3")[0] == 0
                assert one.run(HEAP.replace("16384", "16385"))[0] == 0
                one.kill()
                one.start()
            assert bench.client.revert(fault.id).fault.end_reason == "reverted"
            assert one.run(HEAP)[0] == 0
            assert bench.tables() == before
    assert bench.residue() == []


@pytest.mark.vm(*BOTH)
def test_a_delay_holds_through_restarts_and_ends_with_no_process_of_the_app(bench: Bench) -> None:
    with pod(bench, "cgroupfs", "/srv") as one:
        before = bench.node.sh(f"nsenter -t {one.sandbox} -n tc qdisc")
        fault = bench.inject("netem", one.target(), spec={"delay": "200ms"})
        for _ in range(2):
            assert rtt(one) >= 200
            one.kill()
            one.start()
        assert "200ms" in bench.node.sh(f"nsenter -t {one.sandbox} -n tc qdisc")
        one.kill()
        assert bench.client.revert(fault.id).fault.end_reason == "reverted"
        assert bench.node.sh(f"nsenter -t {one.sandbox} -n tc qdisc") == before
        one.start()
        assert 0 < rtt(one) < 200
    assert bench.residue() == []


@pytest.mark.vm(*BOTH)
def test_a_limit_of_the_pods_cgroup_holds_through_restarts(bench: Bench) -> None:
    with pod(bench, "systemd", "/srv") as one:
        fault = bench.inject("throttle", one.target(), spec={"cpu": "0.2"})
        one.kill()
        one.start()
        assert bench.node.sh(f"cat {one.cgroup}/cpu.max").split()[0] == "20000"
        container = one.target(container="app", container_id=one.app)
        mine = bench.inject("throttle", container, spec={"cpu": "0.1"})
        assert bench.node.sh(f"cat {one.cgroup}/{one.app}/cpu.max").split()[0] == "10000"
        for found in (mine, fault):
            bench.client.revert(found.id)
        assert bench.node.sh(f"cat {one.cgroup}/cpu.max").split()[0] == "max"


@pytest.mark.vm("debian-13")
def test_what_cannot_be_hit_is_refused_with_the_reason(bench: Bench) -> None:
    with pod(bench, "cgroupfs", "/run") as one:
        with pytest.raises(Refused, match="no cgroup is named after"):
            bench.plan("netem", {**one.target(), "uid": "f" * 32}, spec={"delay": "1ms"})
        gone = one.app
        one.kill()
        one.start()
        with pytest.raises(Refused, match="does not run"):
            bench.plan("throttle", one.target(container_id=gone), spec={"cpu": "1"})
        with pytest.raises(Refused, match="memory"):
            bench.plan("latent-sector", one.volume_target(file="pod-rootfs/x"))
        host = {**one.target(), "uid": pod_kit.UID.replace("0b", "ff")}
        folder = f"{pod_kit.CGROUPS}/kubepods/burstable/pod{host['uid']}/{'e' * 64}"
        bench.node.sh(
            f"mkdir -p {folder}; setsid sleep 100 >/dev/null 2>&1 </dev/null & "
            f"echo $! > {folder}/cgroup.procs"
        )
        with pytest.raises(Refused, match="own network"):
            bench.plan("netem", host, spec={"delay": "1ms"})
        bench.node.sh(f"echo 1 > {folder}/cgroup.kill")
