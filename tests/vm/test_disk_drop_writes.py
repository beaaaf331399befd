"""disk-drop-writes: acknowledged and lost, counted, and honest about what follows."""

from __future__ import annotations

import json

import pytest
from agentkit import Bench, prepared_volume
from disk_kit import DEVICE, FLAVOURS, completed, io, quiet_ext4, raw_volume, results

from controller.lab import Node
from nodeagent.model.errors import Refused

ACK = {"acknowledge": ["data-loss"]}


@pytest.mark.vm(*FLAVOURS)
def test_writes_succeed_and_never_reach_the_disk(vm_node: Node, bench: Bench) -> None:
    with raw_volume(bench) as path:
        assert io(bench, "write", path, fill=65)["result"] == "ok"
        before = bench.tables()
        with pytest.raises(Refused, match="guard rail") as caught:
            bench.inject("disk-drop-writes", DEVICE)
        assert "--i-know data-loss" in caught.value.hint
        fault = bench.inject("disk-drop-writes", DEVICE, **ACK)
        _, written = completed(bench)
        bench.node.sh(f"dd if=/dev/zero of={path} bs=4096 count=25 oflag=direct conv=notrunc,fsync")
        assert completed(bench)[1] == written
        assert io(bench, "read", path, fill=65)["odd"] == {}
        assert results(bench, path) == ("ok", "ok", "ok")
        found = bench.evidence(fault.id)
        assert (found["counted"], found["hits"]) == (True, 26)
        assert "biting" in bench.events(fault.id)
        reply = bench.client.revert(fault.id)
        said = bench.evidence(reply.fault.id)["statements"]
        assert any("unmount the file system and run fsck" in line for line in said)
        assert bench.tables() == before
        assert io(bench, "read", path, fill=65)["odd"] == {}
        assert io(bench, "write", path, fill=66)["result"] == "ok"
        assert io(bench, "read", path, fill=66)["odd"] == {}
        assert completed(bench)[1] > written
        assert bench.residue() == []


@pytest.mark.vm(*FLAVOURS)
def test_the_disk_is_as_after_a_power_failure_at_the_moment_of_arming(
    vm_node: Node, bench: Bench
) -> None:
    node, device = bench.node, "/dev/mapper/data"
    with prepared_volume(bench) as mount:
        quiet_ext4(bench, mount)
        node.sh(f"echo kept > {mount}/old; sync")
        target = {"type": "volume", "volume": mount}
        fault = bench.inject("disk-drop-writes", target, **ACK)
        plan = json.loads(bench.client.fault(fault.id).plan_json)
        assert any("unmount" in line for line in plan["collateral"])
        node.sh(f"dd if=/dev/zero of={mount}/new bs=4k count=4 conv=fsync && sync")
        assert node.sh(f"cat {mount}/old") == "kept\n"
        node.sh(f"umount {mount}", timeout=60)
        hits = bench.evidence(fault.id)["hits"]
        assert hits > 0
        bench.client.revert(fault.id)
        assert node.run(f"e2fsck -f -p {device}", check=False, timeout=60).code in (0, 1)
        node.sh(f"mount {device} {mount}")
        assert node.sh(f"cat {mount}/old") == "kept\n"
        assert node.run(f"test -e {mount}/new", check=False).code == 1


@pytest.mark.vm("debian-13")
def test_a_plain_disk_and_a_guarded_one_are_refused(vm_node: Node, bench: Bench) -> None:
    target = {"type": "device", "device": "/dev/disk/by-id/virtio-d1"}
    with pytest.raises(Refused, match="volume prepare"):
        bench.inject("disk-drop-writes", target, **ACK)
