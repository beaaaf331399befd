"""Exposure: who can be hit by a fault, as the agent says and as fuser and /proc say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from agentkit import Bench, prepared_volume

from controller.lab import Node

pytestmark = pytest.mark.vm("debian-13")


@contextmanager
def running(node: Node, command: str) -> Iterator[int]:
    """A process that sleeps, started by a shell that has done `command`; its pid."""
    pid = int(node.sh(f"sh -c '{command}; exec sleep 600' >/dev/null 2>&1 & echo $!").strip())
    node.sh(f"for i in $(seq 50); do grep -q sleep /proc/{pid}/comm && exit 0; sleep 0.1; done")
    try:
        yield pid
    finally:
        node.sh(f"kill -KILL {pid} 2>/dev/null; true")


def exposed(bench: Bench, fault_id: str) -> dict[int, str]:
    found = bench.client.exposure(fault_id, timeout=60)
    assert found is not None
    assert found.known
    assert found.complete
    return {w.pid: w.how for w in found.workloads}


def fuser(node: Node, mount: str) -> set[int]:
    """Who uses a file system, by fuser(1), a second tool."""
    return {int(pid) for pid in node.sh(f"fuser -m {mount} 2>/dev/null; true").split()}


def test_of_a_file_on_bad_sectors(vm_node: Node, bench: Bench) -> None:
    node = vm_node
    with prepared_volume(bench) as mount:
        node.sh(f"dd if=/dev/urandom of={mount}/table bs=64k count=1 status=none; "
                f"cp {mount}/table {mount}/other; sync")  # fmt: skip
        spec = {"type": "file", "file": f"{mount}/table", "length": "4Ki"}
        with (
            running(node, f"exec 3<{mount}/table") as reader,
            running(node, f"exec 3<{mount}/other") as neighbour,
            running(node, f"cd {mount}") as visitor,
            running(node, "exec 3</dev/mapper/data") as raw,
            running(node, "cd /tmp") as bystander,
        ):
            fault = bench.inject("latent-sector", spec, spec={"on_write": "keep"})
            found = exposed(bench, fault.id)
            assert found == {
                reader: "file", neighbour: "volume", visitor: "volume", raw: "device"
            }  # fmt: skip
            assert bystander not in found
            assert fuser(node, mount) - {raw} == {reader, neighbour, visitor}
        assert exposed(bench, fault.id) == {}, "all have gone: it can hit nobody"
        assert fuser(node, mount) == set()
        bench.client.revert(fault.id)
        assert bench.client.exposure(fault.id) is None
    assert bench.residue() == []


def test_of_a_cgroup_and_of_a_net_namespace(vm_node: Node, bench: Bench) -> None:
    node = vm_node
    node.sh("mkdir -p /sys/fs/cgroup/shown && ip netns add shown && "
            "ip -n shown link add dummy0 type dummy && ip -n shown link set dummy0 up")  # fmt: skip
    try:
        with (
            running(node, "echo $$ >/sys/fs/cgroup/shown/cgroup.procs") as member,
            running(node, "cd /") as bystander,
        ):
            fault = bench.inject("pause", {"type": "cgroup", "cgroup": "/sys/fs/cgroup/shown"})
            assert exposed(bench, fault.id) == {member: "scope"}
            bench.client.revert(fault.id)
            target = {"type": "netns", "netns": "/run/netns/shown"}
            fault = bench.inject("netem", target, spec={"delay": "10ms"})
            assert exposed(bench, fault.id) == {}, "nobody is in it"
            inside = int(node.sh(
                "ip netns exec shown sleep 600 >/dev/null 2>&1 & echo $!").strip())  # fmt: skip
            node.sh(f"for i in $(seq 50); do "
                    f"grep -q sleep /proc/{inside}/comm && exit 0; sleep 0.1; done")  # fmt: skip
            found = exposed(bench, fault.id)
            assert found == {inside: "netns"}
            assert bystander not in found
            node.sh(f"kill -KILL {inside}")
            bench.client.revert(fault.id)
    finally:
        node.sh("ip netns del shown; for i in $(seq 50); do "
                "rmdir /sys/fs/cgroup/shown && exit 0; sleep 0.1; done; true")  # fmt: skip
    assert bench.residue() == []
