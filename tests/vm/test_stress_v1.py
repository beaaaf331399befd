"""stress on a node with cgroup v1: in every hierarchy of the target, ended by the freezer."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from agentkit import STATE, Bench, running_agent, undisturbed

from controller.lab import Node, NodeConfig
from nodeagent.model.errors import Refused

pytestmark = pytest.mark.vm("debian-12")
MIB = 1 << 20
ROOT = "/sys/fs/cgroup"
GROUPS = ("cpu,cpuacct", "memory", "pids", "freezer")
V1 = f"umount {ROOT}; mount -t tmpfs cgroups {ROOT}; cd {ROOT}; " + "".join(
    f"mkdir {name}; mount -t cgroup -o {name} cgroup {ROOT}/{name}; mkdir {name}/pod {name}/other; "
    for name in GROUPS
)
"""What a distribution's init does with systemd.unified_cgroup_hierarchy=0."""


def place(controller: str, file: str, group: str = "pod") -> str:
    return f"{ROOT}/{controller}/{group}/{file}"


def nothing_left(node: Node) -> None:
    assert node.run("pgrep -a stress-ng", check=False).out == ""
    assert node.sh(f"find {ROOT} -name 'faultctl-*'") == ""
    assert node.run(f"ls -d {STATE}/scratch", check=False).out == ""


def usage(node: Node) -> tuple[int, float]:
    out = node.sh(
        f"cat {place('cpu,cpuacct', 'cpuacct.usage')}; cut -d' ' -f1 /proc/uptime"
    ).split()
    return int(out[0]), float(out[1])


def test_in_every_hierarchy_of_the_target(fresh_node: Callable[[NodeConfig], Node]) -> None:
    node = fresh_node(NodeConfig(flavour="debian-12"))
    node.sh(V1)
    node.sh(f"echo 50000 > {place('cpu,cpuacct', 'cpu.cfs_quota_us')}; "
            f"echo 100M > {place('memory', 'memory.limit_in_bytes')}")  # fmt: skip
    with running_agent(node) as bench:
        _share_of_the_quota(bench)
        _memory_and_its_end(bench)
        _refusals(bench)
        _the_guardian_ends_it(bench)


def _inject(bench: Bench, **spec: object) -> str:
    target = {"type": "cgroup", "cgroup": "/pod"}
    return str(bench.inject("stress", target, spec=spec).id)


def _share_of_the_quota(bench: Bench) -> None:
    ident = _inject(bench, cpu_percent="50%")

    def of_the_quota() -> float:
        before = usage(bench.node)
        bench.node.sh("sleep 15")
        after = usage(bench.node)
        return (after[0] - before[0]) / 1e9 / (after[1] - before[1]) / 0.5

    share = undisturbed(of_the_quota, 0.45)
    print(f"\nasked 50 %, measured {share:.1%}")
    assert share == pytest.approx(0.5, abs=0.05)
    seen = bench.evidence(ident)
    assert seen["details"]["cpus"] == pytest.approx(0.25, abs=0.03)
    assert seen["counters"].keys() >= {"nr_throttled", "throttled_usec", "oom_kill"}
    bench.client.revert(ident)
    nothing_left(bench.node)


def _memory_and_its_end(bench: Bench) -> None:
    file = place("memory", "memory.usage_in_bytes")
    before = int(bench.node.sh(f"cat {file}"))
    ident = _inject(bench, memory="48Mi", hdd=1, hdd_size="2Mi")
    grown = int(bench.node.sh(f"cat {file}")) - before
    assert grown == pytest.approx(48 * MIB, abs=8 * MIB)
    child = f"faultctl-stress-{ident}"
    for name in GROUPS:
        assert bench.node.sh(f"wc -l < {ROOT}/{name}/pod/{child}/cgroup.procs").strip() != "0", name
    # One that left its parent, in a cgroup further below.
    bench.node.sh(
        f"mkdir {ROOT}/pids/pod/{child}/deep; setsid sleep 1000 >/dev/null 2>&1 </dev/null & "
        f"echo $! > {ROOT}/pids/pod/{child}/deep/cgroup.procs"
    )
    bench.client.revert(ident)
    nothing_left(bench.node)
    assert not bench.node.run("pgrep -f '[s]leep 1000'", check=False).ok


def _refusals(bench: Bench) -> None:
    with pytest.raises(Refused, match="needs v2"):
        bench.plan("stress", {"type": "node"}, spec={"cpu": 1})
    with pytest.raises(Refused, match="it is in none of: /sys/fs/cgroup/"):
        bench.plan("stress", {"type": "cgroup", "cgroup": "/none"}, spec={"cpu": 1})
    bench.node.sh(f"echo FROZEN > {place('freezer', 'freezer.state')}")
    with pytest.raises(Refused, match="frozen"):
        bench.plan("stress", {"type": "cgroup", "cgroup": "/pod"}, spec={"cpu": 1})
    bench.node.sh(f"echo THAWED > {place('freezer', 'freezer.state')}")


def _the_guardian_ends_it(bench: Bench) -> None:
    _inject(bench, cpu=1, load="20%")
    bench.node.sh(f"kill -9 {bench.pids()[0]}")
    end = time.monotonic() + 60
    while bench.node.run(f"pgrep stress-ng || find {ROOT} -name 'faultctl-*' | grep .",
                         check=False).ok:  # fmt: skip
        assert time.monotonic() < end, "it still runs"
        time.sleep(0.3)
