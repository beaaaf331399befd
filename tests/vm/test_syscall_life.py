"""A syscall fault from its first hit to the end of its process, as the journal tells it."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator

import pytest
import syscall_kit as kit
from agentkit import Bench, Benches

from controller.lab import Node
from nodeagent.model.errors import FaultError
from nodeagent.model.plan import Lease

EACCES = errno.EACCES
OPEN = {"call": ["openat"], "errno": "EACCES"}
ALL = ("debian-12", "debian-13", "full")
LEASE = Lease.model_validate({"duration": "1m"})


@pytest.fixture
def bench(vm_node: Node, benches: Benches) -> Iterator[Bench]:
    with kit.hookless_after(benches.of(vm_node)) as found:
        yield found


def wait_event(bench: Bench, fault_id: str, event: str, seconds: float = 20) -> None:
    deadline = bench.node.deadline(seconds)
    while event not in bench.events(fault_id):
        assert time.monotonic() < deadline, bench.events(fault_id)
        time.sleep(0.2)


@pytest.mark.vm(*ALL)
def test_the_first_hit_is_an_event_and_comes_once(vm_node: Node, bench: Bench) -> None:
    with kit.worker(bench, "open", 1, 3) as hit:
        fault = bench.inject("syscall", hit.target, spec=OPEN)
        time.sleep(0.5)
        assert "biting" not in bench.events(fault.id)
        assert hit.go() == [[EACCES] * 3]
        wait_event(bench, fault.id, "biting")
        assert bench.client.fault(fault.id).biting
        hit.go()
        time.sleep(0.5)
        assert bench.events(fault.id).count("biting") == 1
        bench.client.revert(fault.id)
        assert bench.evidence(fault.id)["hits"] == 6


@pytest.mark.slow
@pytest.mark.vm("debian-13")
def test_armed_without_a_hit_is_an_event_with_a_hint(vm_node: Node, bench: Bench) -> None:
    """Case 122: attached, running, zero matches, and no sign of it."""
    with kit.worker(bench, "pread") as idle:
        fault = bench.inject("syscall", idle.target, spec=OPEN)
        wait_event(bench, fault.id, "no-hits", 60)
        said = [e for e in bench.client.watch(fault_id=fault.id) if e.type == "no-hits"]
        assert len(said) == 1
        assert "io_uring" in str(said[0])
        bench.client.revert(fault.id)


@pytest.mark.vm(*ALL)
def test_a_fault_on_a_process_ends_with_it(vm_node: Node, bench: Bench) -> None:
    with kit.worker(bench, "open", 1, 3) as hit:
        fault = bench.inject("syscall", hit.target, spec=OPEN)
        assert hit.go() == [[EACCES] * 3]
        assert kit.hooks(bench) != []
    kit.wait_ended(bench, fault.id, "remedied")
    assert {"process-ended", "remedied"} <= set(bench.events(fault.id))
    assert kit.hooks(bench) == []
    assert bench.evidence(fault.id)["hits"] == 3


@pytest.mark.vm(*ALL)
def test_a_fault_on_a_tree_ends_with_its_last_process(vm_node: Node, bench: Bench) -> None:
    setup = "import subprocess\nchild = subprocess.Popen(['sleep', '1000'])"
    with kit.forms(bench, setup, ["os.write(1, b'')"]) as hit:
        fault = bench.inject("syscall", hit.target, spec={**OPEN, "tree": True})
    child = int(bench.node.sh("pgrep -f '^sleep 1000$'"))
    time.sleep(2.5)
    assert bench.client.fault(fault.id).state == "armed"
    bench.node.sh(f"kill -9 {child}")
    kit.wait_ended(bench, fault.id, "remedied")


@pytest.mark.vm("debian-13")
def test_a_pid_that_was_used_again_since_the_plan_is_refused(vm_node: Node, bench: Bench) -> None:
    with kit.worker(bench, "open") as hit:
        request = bench.request("syscall", hit.target, spec=OPEN)
        _, digest = bench.client.plan(request)
        pid = hit.pid
    node = bench.node
    node.run(f"while kill -0 {pid} 2>/dev/null; do sleep 0.1; done", check=False)
    again = f"echo {pid - 1} > /proc/sys/kernel/ns_last_pid; sleep 1000 >/dev/null 2>&1 & echo $!"
    for _ in range(20):
        other = int(node.sh(again))
        if other == pid:
            break
        node.sh(f"kill -9 {other}")
    assert other == pid
    with pytest.raises(FaultError, match=r"plan|another process"):
        bench.client.apply(request, LEASE, digest)
    assert kit.hooks(bench) == []
    assert bench.client.faults(active_only=True) == []
    node.sh(f"kill -9 {pid}")
