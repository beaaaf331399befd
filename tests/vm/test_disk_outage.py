"""disk-outage: a read, a write and a flush on each rung; what file systems make of it."""

from __future__ import annotations

import pytest
from agentkit import Bench, prepared_volume
from disk_kit import (
    DEVICE,
    FLAVOURS,
    completed,
    dd,
    fsck,
    io,
    quiet_ext4,
    raw_volume,
    results,
    wait_until,
)

from controller.lab import Node
from nodeagent.model.errors import Conflict, Refused


def in_log(bench: Bench, words: str) -> int:
    """How many of the last lines of the kernel log have these words."""
    return int(bench.node.sh(f"dmesg | tail -40 | grep -ci '{words}' || true"))


OK, EIO = "ok", "EIO"
# (mechanism, what fails) -> (read, write, flush)
EXPECTED = {
    ("dm-flakey", "all"): (EIO, EIO, EIO),
    ("dm-flakey", "reads"): (EIO, OK, OK),
    ("dm-flakey", "writes"): (OK, EIO, EIO),
    ("bpf-bio", "all"): (EIO, EIO, OK),
    ("bpf-bio", "reads"): (EIO, OK, OK),
    ("bpf-bio", "writes"): (OK, EIO, OK),
    ("dm-delay", "reads"): (EIO, OK, OK),
    ("dm-delay", "writes"): (OK, EIO, OK),
    ("dm-error", "all"): (EIO, EIO, OK),
}
LACKS = {
    "debian-12": {("dm-flakey", "reads"): "no error_reads"},
    "debian-13": {},
    "full": {},
}
for _stock in ("debian-12", "debian-13"):
    LACKS[_stock] |= {key: "should_fail_bio" for key in EXPECTED if key[0] == "bpf-bio"}


@pytest.mark.vm(*FLAVOURS)
def test_each_mechanism_fails_what_it_says_and_comes_back(vm_node: Node, bench: Bench) -> None:
    flavour = vm_node.config.flavour
    with raw_volume(bench) as path:
        before = bench.tables()
        for (mechanism, fail), expected in EXPECTED.items():
            request = {"spec": {"fail": fail}, "mechanism": mechanism}
            lacking = LACKS[flavour].get((mechanism, fail))
            if lacking:
                with pytest.raises(Refused, match=lacking):
                    bench.inject("disk-outage", DEVICE, **request)
                continue
            fault = bench.inject("disk-outage", DEVICE, **request)
            assert results(bench) == expected, (mechanism, fail)
            found = bench.evidence(fault.id)
            assert found["counted"], (mechanism, fail, found)
            assert found["hits"] == expected[:2].count(EIO), (mechanism, fail, found["counters"])
            assert {r["comm"] for r in found["records"]} == {"python3"}
            assert "biting" in bench.events(fault.id)
            assert bench.client.revert(fault.id).fault.end_reason == "reverted"
            assert bench.tables() == before
            assert results(bench, path) == (OK, OK, OK)
        assert bench.residue() == []


@pytest.mark.vm(*FLAVOURS)
def test_the_best_mechanism_is_taken_and_the_disk_below_sees_nothing(
    vm_node: Node, bench: Bench
) -> None:
    with raw_volume(bench, "k4") as path:  # 4096-byte sectors
        assert dd(bench, path, 0) == OK
        fault = bench.inject("disk-outage", DEVICE)
        assert fault.mechanism == "dm-flakey"
        seen = completed(bench, "k4")
        for block in (0, 512, 1000):
            assert dd(bench, path, block) == "Input/output error"
            assert dd(bench, path, block, op="write") == "Input/output error"
        assert completed(bench, "k4") == seen
        counters = bench.evidence(fault.id)["counters"]
        assert (counters["reads_failed"], counters["writes_failed"]) == (3, 3)
        bench.client.revert(fault.id)
        assert dd(bench, path, 512) == OK


@pytest.mark.vm(*FLAVOURS)
def test_a_disk_that_is_not_device_mapper(vm_node: Node, bench: Bench) -> None:
    path = "/dev/disk/by-id/virtio-d1"
    target = {"type": "device", "device": path}
    if vm_node.config.flavour != "full":
        with pytest.raises(Refused, match="volume prepare"):
            bench.inject("disk-outage", target)
        return
    fault = bench.inject("disk-outage", target)
    assert fault.mechanism == "bpf-bio"
    assert results(bench, path)[:2] == (EIO, EIO)
    bench.client.revert(fault.id)
    assert results(bench, path) == (OK, OK, OK)


@pytest.mark.vm(*FLAVOURS)
def test_failing_reads_leave_a_mounted_file_system_clean(vm_node: Node, bench: Bench) -> None:
    with prepared_volume(bench) as mount:
        quiet_ext4(bench, mount)
        bench.node.sh(f"head -c 1M /dev/urandom > {mount}/f; sync; md5sum < {mount}/f > /run/sum")
        before = bench.tables()
        fault = bench.inject(
            "disk-outage", {"type": "volume", "volume": mount}, spec={"fail": "reads"}
        )
        bench.node.sh(f"cat {mount}/f | md5sum | cmp - /run/sum")  # from the page cache
        assert bench.errno(f"{mount}/f", 0, 8) == "Input/output error"
        bench.node.sh(f"dd if=/dev/zero of={mount}/g bs=4k count=4 conv=fsync", timeout=30)
        bench.client.revert(fault.id)
        assert bench.tables() == before
        assert fsck(bench, "/dev/mapper/data", mount) == "clean"
        bench.node.sh(f"cat {mount}/f | md5sum | cmp - /run/sum")
        assert bench.node.sh(f"stat -c %s {mount}/g").strip() == "16384"


@pytest.mark.vm("debian-13")
def test_the_collateral_is_what_ext4_and_xfs_do(vm_node: Node, bench: Bench) -> None:
    fsync = "dd if=/dev/zero of={}/g bs=4k count=4 conv=notrunc,fsync"
    with prepared_volume(bench) as mount:
        quiet_ext4(bench, mount)
        bench.node.sh(fsync.format(mount), timeout=30)
        fault = bench.inject("disk-outage", {"type": "volume", "volume": mount})
        assert bench.node.run(fsync.format(mount), check=False, timeout=30).code == 1
        bench.node.run(f"touch {mount}/h; sync -f {mount}", check=False, timeout=30)
        wait_until(bench, lambda: bool(in_log(bench, "Aborting journal")))
        log = bench.evidence(fault.id)["kernel_log"]
        bench.client.revert(fault.id)
        assert any("dm-" in line for line in log)
        assert bench.node.run(f"touch {mount}/h", check=False).code == 1  # until mounted anew
        assert fsck(bench, "/dev/mapper/data", mount) == "clean"
        bench.node.sh(fsync.format(mount), timeout=30)
    with prepared_volume(bench, fs="xfs") as mount:
        bench.node.sh(fsync.format(mount), timeout=30)
        fault = bench.inject(
            "disk-outage", {"type": "volume", "volume": mount}, spec={"fail": "writes"}
        )
        bench.node.run(f"touch {mount}/h; sync -f {mount}", check=False, timeout=60)
        wait_until(bench, lambda: bool(in_log(bench, "log I/O error")))
        bench.client.revert(fault.id)
        assert bench.node.run(f"touch {mount}/h", check=False).code == 1
        bench.node.sh(f"umount {mount} && mount /dev/mapper/data {mount}", timeout=60)
        bench.node.sh(fsync.format(mount), timeout=30)


@pytest.mark.vm("debian-13")
def test_swap_and_what_the_kubelet_needs_are_held_back(vm_node: Node, bench: Bench) -> None:
    def held_back_by(guard: str, target: dict[str, str]) -> None:
        with pytest.raises(Refused, match="guard rail") as caught:
            bench.plan("disk-outage", target)
        assert f"--i-know {guard}" in caught.value.hint
        plan = bench.plan("disk-outage", target, acknowledge=[guard])
        assert plan.guards == (guard,)

    node = bench.node
    with raw_volume(bench) as path:
        node.sh(f"mkswap {path} && swapon {path}")
        try:
            held_back_by("swap", DEVICE)
        finally:
            node.sh(f"swapoff {path}")
    with prepared_volume(bench) as mount:
        node.sh(f"mkdir -p /var/lib/kubelet && mount --bind {mount} /var/lib/kubelet")
        try:
            held_back_by("protected-path", {"type": "volume", "volume": mount})
        finally:
            node.sh("umount /var/lib/kubelet && rmdir /var/lib/kubelet")


@pytest.mark.vm("debian-13")
def test_a_second_fault_is_refused_with_the_name_of_the_first(vm_node: Node, bench: Bench) -> None:
    with raw_volume(bench):
        fault = bench.inject("disk-outage", DEVICE)
        for kind, spec in [
            ("disk-delay", {"read": "5ms"}),
            ("latent-sector", {"sectors": "8+8"}),
            ("disk-outage", {}),
        ]:
            with pytest.raises(Conflict, match=fault.id):
                bench.inject(kind, DEVICE, spec=spec)
        assert io(bench, "read")["result"] == EIO
