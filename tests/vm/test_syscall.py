"""syscall on real kernels: programs that make the calls say what they got; bpftool counts hooks."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest
import syscall_kit as kit
from agentkit import Bench, Benches

from controller.lab import Node
from nodeagent.model.errors import FaultError, InvalidSpec, Refused
from nodeagent.model.plan import Lease

EIO, EACCES = errno.EIO, errno.EACCES
PREAD = {"call": ["pread64"], "errno": "EIO"}
PREADV = {"call": ["preadv", "preadv2"], "errno": "EIO"}
ALL = ("debian-12", "debian-13", "full")
STOCK = ("debian-12", "debian-13")


@pytest.fixture
def bench(vm_node: Node, benches: Benches) -> Iterator[Bench]:
    with kit.hookless_after(benches.of(vm_node)) as found:
        yield found


@pytest.mark.vm(*ALL)
def test_all_threads_of_a_process_and_nobody_else(vm_node: Node, bench: Bench) -> None:
    """By fmod_ret where there is error injection, by the LSM hook on stock kernels."""
    with kit.worker(bench, "pread", 8, 5) as hit, kit.worker(bench, "pread", 2, 5) as other:
        fault = bench.inject("syscall", hit.target, spec=PREAD)
        assert hit.go() == [[EIO] * 5] * 8
        assert other.go() == [[0] * 5] * 2
        assert len(kit.hooks(bench)) >= 1
        evidence = bench.evidence(fault.id)
        assert (evidence["counted"], evidence["hits"]) == (True, 40)
        assert evidence["counters"]["seen"] == 40
        assert 0 < evidence["first_hit_ns"] <= evidence["last_hit_ns"]
        assert evidence["details"]["calls"]["pread64"]["hits"] == 40
        assert [p["pid"] for p in evidence["details"]["processes"]] == [hit.pid]
        assert any("io_uring" in line for line in evidence["statements"])
        assert bench.client.revert(fault.id).fault.end_reason == "reverted"
        assert hit.failed() == 0
        assert bench.evidence(fault.id)["hits"] == 40
    assert bench.residue() == []


@pytest.mark.vm("full")
def test_how_often(vm_node: Node, bench: Bench) -> None:
    with kit.worker(bench, "pread", 4, 25) as hit:
        cases: list[tuple[dict[str, Any], int]] = [
            ({"every": 4}, 25),
            ({"first": 7}, 7),
            ({"at_most": 9}, 9),
            ({"every": 2, "at_most": 11}, 11),
            ({"first": 30, "every": 3}, 10),
        ]
        for how, count in cases:
            fault = bench.inject("syscall", hit.target, spec={**PREAD, **how})
            assert hit.failed() == count, how
            assert bench.evidence(fault.id)["hits"] == count
            bench.client.revert(fault.id)
    with kit.worker(bench, "pread", 1, 200) as hit:
        drawn = []
        for seed in (7, 7, 8):
            fault = bench.inject("syscall", hit.target, spec={**PREAD, "rate": "30%", "seed": seed})
            drawn.append(hit.go()[0])
            bench.client.revert(fault.id)
        assert drawn[0] == drawn[1] != drawn[2]
        assert 35 <= sum(map(bool, drawn[0])) <= 85


@pytest.mark.vm("debian-13", "full")
def test_a_cgroup_with_who_is_born_into_it(vm_node: Node, bench: Bench) -> None:
    kit.need_cgroup2(bench)
    with kit.cgroup(bench, "pod.slice") as path:
        bench.node.sh(f"mkdir {path}/container")
        target = {"type": "cgroup", "cgroup": path}
        fault = bench.inject("syscall", target, spec=PREADV)  # nobody is in it yet
        with kit.worker(bench, "preadv", 2, 3, cgroup=f"{path}/container") as born:
            assert born.go() == [[EIO] * 3] * 2
        with kit.worker(bench, "preadv", 1, 3, cgroup=path) as again:  # a restart
            assert again.go() == [[EIO] * 3]
        with kit.worker(bench, "grandchild", 1, 10, cgroup=path) as bomb:
            assert bomb.go() == [[EIO] * 10]
        with kit.worker(bench, "preadv", 1, 3) as outside:
            assert outside.failed() == 0
        details = bench.evidence(fault.id)["details"]
        assert len(details["processes"]) >= 12
        bench.client.revert(fault.id)


@pytest.mark.vm("full")
def test_a_tree_with_grandchildren_and_without(vm_node: Node, bench: Bench) -> None:
    with kit.worker(bench, "grandchild", 1, 4) as hit:
        alone = bench.inject("syscall", hit.target, spec=PREADV)
        assert hit.go() == [[0] * 4]
        bench.client.revert(alone.id)
        tree = bench.inject("syscall", hit.target, spec={**PREADV, "tree": True})
        assert hit.go() == [[EIO] * 4]
        assert "fc_tree_fork" in kit.hooks(bench)
        assert bench.evidence(tree.id)["hits"] == 4
        bench.client.revert(tree.id)
        assert hit.failed() == 0


@pytest.mark.vm("full")
def test_chosen_values_and_after_the_call(vm_node: Node, bench: Bench) -> None:
    with kit.worker(bench, "pread", 2, 3) as hit:
        plan = bench.plan("syscall", hit.target, spec={"call": ["pread64"], "value": 0})
        assert plan.mechanism == "bpf-kprobe"
        assert any("return 0" in rejected.reason for rejected in plan.rejected)
        fault = bench.inject("syscall", hit.target, spec={"call": ["pread64"], "value": 0})
        assert hit.go() == [[-1] * 3] * 2
        bench.client.revert(fault.id)
    with kit.worker(bench, "open", 1, 5) as hit:
        files = f"ls /proc/{hit.pid}/fd | wc -l"
        before = int(bench.node.sh(files))
        spec = {"call": ["open-family"], "errno": "EPERM", "after": True}
        fault = bench.inject("syscall", hit.target, spec=spec)
        assert hit.go() == [[errno.EPERM] * 5]
        assert int(bench.node.sh(files)) == before + 5  # the side effect is kept
        bench.client.revert(fault.id)
        assert hit.failed() == 0


@pytest.mark.vm("full")
def test_a_static_program_and_its_32_bit_calls(vm_node: Node, bench: Bench) -> None:
    with kit.static_program(bench) as hit:
        assert hit.go() == [[0, 0]]
        fault = bench.inject("syscall", hit.target, spec={"call": ["read"], "errno": "EIO"})
        assert hit.go() == [[EIO, EIO]]
        assert bench.evidence(fault.id)["hits"] == 2
        bench.client.revert(fault.id)
        assert hit.go() == [[0, 0]]


@pytest.mark.vm(*STOCK)
def test_a_stock_kernel_by_its_security_hooks(vm_node: Node, bench: Bench) -> None:
    with kit.worker(bench, "open", 2, 3) as hit:
        spec = {"call": ["openat"], "errno": "EACCES"}
        plan = bench.plan("syscall", hit.target, spec=spec)
        assert plan.mechanism == "bpf-lsm"
        assert all("CONFIG_FUNCTION_ERROR_INJECTION" in r.reason or
                   "CONFIG_BPF_KPROBE_OVERRIDE" in r.reason for r in plan.rejected)  # fmt: skip
        fault = bench.inject("syscall", hit.target, spec=spec)
        assert hit.go() == [[EACCES] * 3] * 2
        bench.client.revert(fault.id)
        for bad, words in (
            ({"call": ["fsync"], "errno": "EIO"}, "no security hook stands for fsync"),
            ({"call": ["openat"], "value": 0}, "only return an errno"),
            ({"call": ["openat"], "errno": "EACCES", "after": True}, "before the call"),
        ):
            with pytest.raises(Refused, match=words):
                bench.plan("syscall", hit.target, spec=bad)
    with kit.worker(bench, "exec", 1, 2) as hit:  # exec's own opens are no openat
        spec = {"call": ["open-family"], "errno": "EACCES"}
        fault = bench.inject("syscall", hit.target, spec=spec)
        assert hit.go() == [[0, 0]]
        bench.client.revert(fault.id)


@pytest.mark.vm(*ALL)
def test_a_call_of_a_family_counts_once(vm_node: Node, bench: Bench) -> None:
    """Its members may pass one and the same hook."""
    with kit.worker(bench, "pread", 2, 10) as hit:
        spec = {"call": ["read-family"], "errno": "EIO", "every": 2}
        fault = bench.inject("syscall", hit.target, spec=spec)
        assert hit.failed() == 10
        evidence = bench.evidence(fault.id)
        assert (evidence["hits"], evidence["counters"]["seen"]) == (10, 20)
        bench.client.revert(fault.id)


@pytest.mark.vm(*ALL)
def test_who_is_never_a_target(vm_node: Node, bench: Bench) -> None:
    agent, guardian = bench.pids()
    kthread = int(bench.node.sh("pgrep -o kthreadd"))
    cases: list[tuple[dict[str, Any], dict[str, Any], type[FaultError], str]] = [
        ({"type": "pid", "pid": 1}, PREAD, Refused, "PID 1"),
        ({"type": "pid", "pid": agent}, PREAD, Refused, "faultd itself"),
        ({"type": "pid", "pid": guardian}, PREAD, Refused, "guardian"),
        ({"type": "pid", "pid": kthread}, PREAD, Refused, "kernel thread"),
        ({"type": "pid", "pid": 4000000}, PREAD, Refused, "no such process"),
        ({"type": "cgroup", "cgroup": "/sys/fs/cgroup"}, PREAD, Refused, "every process"),
        ({"type": "cgroup", "cgroup": "/sys/fs/cgroup/../../etc"}, PREAD, Refused, "not below"),
        ({"type": "cgroup", "cgroup": "/never/was"}, PREAD, Refused, "no such cgroup"),
    ]
    for target, spec, error, words in cases:
        with pytest.raises(error, match=words):
            bench.plan("syscall", target, spec=spec)
    with kit.worker(bench, "pread") as hit:
        for spec, words in (
            ({"call": ["raed"], "errno": "EIO"}, "did you mean read"),
            ({"call": ["read"], "errno": "EIEIO"}, "unknown errno"),
            ({"call": ["read"], "errno": "ECHILD"}, "never returns ECHILD"),
            ({"call": ["read"]}, "one of errno and value"),
            ({"call": ["read"], "errno": "EIO", "rate": "101%"}, "between 0% and 100%"),
            ({"call": [], "errno": "EIO"}, "call"),
        ):
            with pytest.raises(InvalidSpec, match=words):
                bench.plan("syscall", hit.target, spec=spec)
        request = bench.request("syscall", hit.target, spec=PREAD)
        _, digest = bench.client.plan(request)
    bench.node.run(f"while kill -0 {hit.pid} 2>/dev/null; do sleep 0.1; done", check=False)
    with pytest.raises(FaultError, match=r"no such process|ended"):
        bench.client.apply(request, Lease.model_validate({"duration": "1m"}), digest)
    assert kit.hooks(bench) == []


@pytest.mark.vm("full")
def test_a_story_is_one_fault_with_one_revert(vm_node: Node, bench: Bench) -> None:
    with kit.worker(bench, "pread", 2, 3) as hit:
        fault = bench.inject("khaos:storage_controller_read_failure", hit.target)
        assert hit.go() == [[EIO] * 3] * 2
        assert bench.evidence(fault.id)["details"]["calls"]["pread64"]["hits"] == 6
        bench.client.revert(fault.id)
        assert kit.hooks(bench) == []
        plan = bench.plan("khaos:dram_module_failure", hit.target)
        assert len(plan.steps) == 1  # one effect under three names
