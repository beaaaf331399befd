"""syscall by strace: only when asked for, seen by the process, gone with the agent."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
import syscall_kit as kit
from agentkit import Bench, Benches

from controller.lab import Node
from nodeagent.model.errors import Refused

EIO = errno.EIO
PREADV = {"call": ["preadv", "preadv2"], "errno": "EIO", "tree": True}


@pytest.fixture
def bench(vm_node: Node, benches: Benches) -> Iterator[Bench]:
    found = benches.of(vm_node)
    yield found
    found = benches.of(vm_node)  # another one, when the test has killed it
    found.revert_all()
    assert tracers(found) == ""


def tracers(bench: Bench) -> str:
    return bench.node.run("pgrep -x strace", check=False).out.strip()


def tracer_of(bench: Bench, pid: int) -> int:
    return int(bench.node.sh(f"grep TracerPid /proc/{pid}/status").split()[1])


@pytest.mark.vm("debian-13")
def test_a_process_and_its_children_fail_by_a_tracer(vm_node: Node, bench: Bench) -> None:
    with kit.worker(bench, "preadv", 2, 3) as hit, kit.worker(bench, "preadv", 1, 3) as other:
        fault = bench.inject("syscall", hit.target, spec=PREADV, mechanism="strace")
        assert tracer_of(bench, hit.pid) == int(tracers(bench))
        assert hit.go() == [[EIO] * 3] * 2
        assert other.go() == [[0] * 3]
        evidence = bench.evidence(fault.id)
        assert (evidence["counted"], evidence["hits"]) == (True, 6)
        assert any("traces it" in line for line in evidence["statements"])
        bench.client.revert(fault.id)
        assert tracer_of(bench, hit.pid) == 0
        assert hit.failed() == 0
    with kit.worker(bench, "grandchild", 1, 2) as hit:
        spec = {"call": ["preadv", "preadv2"], "value": 0, "tree": True}
        fault = bench.inject("syscall", hit.target, spec=spec, mechanism="strace")
        assert hit.go() == [[255] * 2]  # -1 of the grandchild: an end of file
        bench.client.revert(fault.id)


@pytest.mark.vm("debian-13")
def test_it_is_never_picked_by_itself_and_refused_with_the_reason(
    vm_node: Node, bench: Bench
) -> None:
    fsync = {"call": ["fsync"], "errno": "EIO", "tree": True}
    with kit.worker(bench, "fsync") as hit:
        with pytest.raises(Refused, match="only when it is asked for: --mechanism strace"):
            bench.plan("syscall", hit.target, spec=fsync)
        assert bench.plan("syscall", hit.target, spec=fsync, mechanism="strace").steps
        for more, words in (
            ({"tree": False}, "--tree"),
            ({"rate": "50%"}, "counts for each thread"),
            ({"at_most": 3}, "counts for each thread"),
            ({"after": True}, "cannot act after"),
            ({"fd_type": ["regular"]}, "no filter by fd_type"),
        ):
            with pytest.raises(Refused, match=words):
                bench.plan("syscall", hit.target, spec={**fsync, **more}, mechanism="strace")
        bench.node.sh(f"setsid strace -o /dev/null -p {hit.pid} </dev/null >/dev/null 2>&1 &")
        bench.node.sh(f"until grep -q 'TracerPid:.[1-9]' /proc/{hit.pid}/status; do :; done")
        with pytest.raises(Refused, match="traced already"):
            bench.inject("syscall", hit.target, spec=fsync, mechanism="strace")
        bench.node.sh(f"kill {tracers(bench)}; while pgrep -x strace; do sleep 0.1; done")
        bench.node.sh("mv /usr/bin/strace /usr/bin/strace.away")
        try:
            with pytest.raises(Refused, match="not installed"):
                bench.inject("syscall", hit.target, spec=fsync, mechanism="strace")
        finally:
            bench.node.sh("mv /usr/bin/strace.away /usr/bin/strace")


@pytest.mark.vm("debian-13")
def test_the_tracer_dies_with_the_agent(vm_node: Node, bench: Bench) -> None:
    with kit.worker(bench, "preadv", 1, 3) as hit:
        bench.inject("syscall", hit.target, spec=PREADV, mechanism="strace")
        agent, _ = bench.pids()
        gone = "for i in $(seq 100); do pgrep -x strace >/dev/null || exit 0; sleep 0.1; done"
        bench.node.sh(f"kill -9 {agent}; {gone}; exit 1")
        assert tracer_of(bench, hit.pid) == 0
        assert hit.failed() == 0
