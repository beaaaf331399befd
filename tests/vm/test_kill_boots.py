"""Deaths of the real faultd under a client's call, and of the whole node in mid-fault."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from agentkit import STATE, Bench, stop_agent

from controller.client import AgentAddress, AgentClient
from controller.lab import Disk, Node, NodeConfig
from controller.lab import agent as lab_agent
from nodeagent.model.errors import FaultError
from nodeagent.model.plan import Lease
from protos import faultd_pb2 as pb

PLACES = "/run/places"
TARGET = {"type": "device", "device": "/dev/mapper/data"}
KIND = "disk-delay"
SPEC = {"read": "1ms"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@contextmanager
def faultd(node: Node, env: Mapping[str, str] | None = None) -> Iterator[Bench]:
    """A real agent on the state that is there."""
    access = lab_agent.start(node, env=env)
    address = AgentAddress(access.url, access.cert, access.key, access.ca, "localhost")
    with AgentClient(address) as client:
        try:
            yield Bench(node, client, access)
        finally:
            with suppress(FaultError):
                stop_agent(node)


def fingerprint(node: Node, *left_out: str) -> dict[str, Any]:
    text = node.run(["python3", "-m", "nodeagent.fingerprint"], timeout=60).out
    found: dict[str, Any] = json.loads(text)
    for name in left_out:
        found.pop(name)
    return found


def wait_for(node: Node, want: dict[str, Any], *left_out: str) -> None:
    deadline = node.deadline(10)
    while (have := fingerprint(node, *left_out)) != want:
        if time.monotonic() > deadline:
            assert have == want
        time.sleep(0.5)


def make_volume(bench: Bench) -> None:
    bench.client.volumes(pb.VolumeRequest.PREPARE, device="/dev/disk/by-id/virtio-d0", name="data")
    bench.node.sh("mkfs.ext4 -q -F /dev/mapper/data && mkdir -p /mnt/data")
    bench.node.sh("mount /dev/mapper/data /mnt/data; head -c 1M /dev/urandom > /mnt/data/f; sync")


def drop_volume(node: Node) -> None:
    node.sh("umount /mnt/data; e2fsck -f -n /dev/mapper/data >&2; dmsetup remove data", timeout=60)


# --- over the real interface ------------------------------------------------------


@pytest.mark.vm("debian-13", "full")
def test_killed_while_a_client_waits(vm_node: Node) -> None:
    """The real faultd over mutual TLS dies in Apply; a real guardian, or the next start, cleans."""
    vm_node.push_code()
    vm_node.sh(f"rm -rf {STATE} {PLACES}")
    with faultd(vm_node, {"FAULTD_CRASHPOINT_LOG": PLACES}) as bench:
        make_volume(bench)
        before_apply = len(places(vm_node))
        fault = bench.inject(KIND, TARGET, spec=SPEC)
        passed = places(vm_node)[before_apply:]
        bench.client.revert(fault.id)
    started = count_start(vm_node)
    idle = fingerprint(vm_node, "files")
    for place, both in (
        ("journal.begin:after", False),
        ("dm:DEV_SUSPEND", False),
        ("dm:TABLE_LOAD", True),
        ("journal.state:armed", True),
    ):
        at = started + passed.index(place) + 1
        with faultd(vm_node, {"FAULTD_CRASHPOINT": str(at)}) as bench:
            asked = die_in_apply(bench, both)
        wait_for(vm_node, idle, "files") if not both else None
        with faultd(vm_node) as bench:
            assert bench.client.fault(asked).end_reason == "agent-lost"
            assert bench.residue() == []
        wait_for(vm_node, idle, "files")
    drop_volume(vm_node)


def places(node: Node) -> list[str]:
    return [line.split(" ", 1)[1] for line in node.sh(f"cat {PLACES}").splitlines()]


def count_start(node: Node) -> int:
    """How many places an agent passes until it is ready."""
    node.sh(f"rm -f {PLACES}")
    with faultd(node, {"FAULTD_CRASHPOINT_LOG": PLACES}):
        return len(places(node))


def die_in_apply(bench: Bench, both: bool) -> str:
    agent, guardian = bench.pids()
    asked = bench.request(KIND, TARGET, spec=SPEC)
    _, digest = bench.client.plan(asked)
    if both:
        bench.node.sh(f"kill -STOP {guardian}")
    with pytest.raises(FaultError):
        bench.client.apply(asked, Lease(), digest)
    bench.node.sh(f"! test -d /proc/{agent} || grep -q '^State:.Z' /proc/{agent}/status")
    if both:
        bench.node.sh(f"kill -KILL {guardian}")
    return asked.id


# --- boots ------------------------------------------------------------------------


@pytest.fixture
def node(fresh_node: Callable[[NodeConfig], Node], flavour: str) -> Node:
    """A node whose state directory is on a disk that outlives a boot."""
    disks = (Disk("d0", 1 << 29), Disk("state", 1 << 27))
    made = fresh_node(NodeConfig(flavour=flavour, disks=disks))
    made.sh("mkfs.ext4 -q -F /dev/disk/by-id/virtio-state")
    mount_state(made)
    return made


def mount_state(node: Node) -> None:
    node.sh(f"mkdir -p {STATE} && mount /dev/disk/by-id/virtio-state {STATE}")


@pytest.mark.parametrize("flavour", ["debian-13", "full"])
def test_reset_and_power_cuts_in_mid_fault(node: Node) -> None:
    """After a boot on the same disks nothing is left, and the journal says why it ended."""
    with faultd(node):
        pass
    idle = fingerprint(node)
    draw = random.Random(3)  # noqa: S311
    with faultd(node) as bench:
        make_volume(bench)
        want = node.sh("sha256sum /mnt/data/f")
        fault = bench.inject("latent-sector", {"type": "file", "file": "/mnt/data/f"})
        assert fault.state == "armed"
        node.reset()
        check_boot(node, idle, want, {fault.id: "rebooted"})
    for _ in range(3):
        with faultd(node) as bench:
            remount(bench)
            ids = [f"cut-{draw.getrandbits(32):x}" for _ in range(3)]
            worker = threading.Thread(target=keep_busy, args=(bench, ids), daemon=True)
            worker.start()
            time.sleep(draw.uniform(0.1, 4.0))
            node.kill()
            worker.join(120)
            node.power_on()
            check_boot(node, idle, want, dict.fromkeys(ids))


def remount(bench: Bench) -> None:
    bench.client.volumes(pb.VolumeRequest.PREPARE, device="/dev/disk/by-id/virtio-d0", name="data")
    bench.node.sh("mkdir -p /mnt/data && mount /dev/mapper/data /mnt/data")


def keep_busy(bench: Bench, ids: list[str]) -> None:
    """Inject and revert until the node is gone."""
    with suppress(FaultError):
        for ident in ids:
            bench.inject(KIND, TARGET, spec=SPEC, id=ident)
            bench.client.revert(ident)


def check_boot(node: Node, idle: dict[str, Any], want: str, ends: Mapping[str, str | None]) -> None:
    """ends: fault -> the reason that it must have ended for; None: none in particular."""
    mount_state(node)
    with faultd(node) as bench:
        assert list(bench.client.faults(active_only=True)) == []
        found = {fault.id: fault for fault in bench.client.faults()}
        for ident, reason in ends.items():
            if reason is not None or ident in found:
                assert found[ident].state == "ended"
            if reason is not None:
                assert found[ident].end_reason == reason
            elif ident in found:
                assert found[ident].end_reason in ("rebooted", "reverted")
        assert bench.residue() == []
    # sysctl values are of a boot: random/boot_id, what is sized by the memory that is free
    assert fingerprint(node, "sysctls") == {k: v for k, v in idle.items() if k != "sysctls"}
    disk = "/dev/disk/by-id/virtio-d0"
    node.sh(f"e2fsck -p {disk} >&2 || test $? = 1; e2fsck -f -n {disk} >&2", timeout=60)
    node.sh(f"mkdir -p /mnt/data && mount -o ro {disk} /mnt/data")
    assert node.sh("sha256sum /mnt/data/f") == want
    node.sh("umount /mnt/data")
