"""latent-sector through the stacks that real nodes have: xfs, 4096-byte sectors, LVM, dm-crypt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from agentkit import Bench, prepared_volume

from controller.lab import Node
from nodeagent.model.errors import InvalidSpec, Refused

EIO = "Input/output error"


def write_file(bench: Bench, path: str, kib: int = 256) -> None:
    bench.node.sh(f"head -c {kib}K /dev/urandom > '{path}'; sync")


def file_errors(bench: Bench, path: str, blocks: range) -> list[str]:
    """How an O_DIRECT read of each 4096-byte block of a file ends."""
    return [
        "ok"
        if bench.node.run(
            [
                "dd",
                f"if={path}",
                "of=/dev/null",
                "bs=4096",
                f"skip={block}",
                "count=1",
                "iflag=direct",
            ],
            check=False,
        ).code
        == 0
        else EIO
        for block in blocks
    ]


@pytest.mark.vm("debian-13")
def test_a_file_on_xfs(vm_node: Node, bench: Bench) -> None:
    with prepared_volume(bench, fs="xfs") as mount:
        write_file(bench, f"{mount}/f")
        bench.inject(
            "latent-sector",
            {"type": "file", "file": f"{mount}/f", "offset": "8Ki", "length": "4Ki"},
        )
        assert file_errors(bench, f"{mount}/f", range(1, 4)) == ["ok", EIO, "ok"]


@pytest.mark.vm("debian-12", "debian-13")
def test_a_device_with_4096_byte_sectors(vm_node: Node, bench: Bench) -> None:
    with prepared_volume(bench, disk="k4") as mount:
        write_file(bench, f"{mount}/f")
        device = {"type": "device", "device": "/dev/mapper/data"}
        with pytest.raises(InvalidSpec, match="4096"):
            bench.plan("latent-sector", device, spec={"sectors": "200001+8"})
        bench.inject(
            "latent-sector",
            {"type": "file", "file": f"{mount}/f", "offset": "9000B", "length": "1B"},
        )
        assert file_errors(bench, f"{mount}/f", range(1, 4)) == ["ok", EIO, "ok"]


@contextmanager
def logical_volume(bench: Bench, *, crypt: bool) -> Iterator[str]:
    """ext4 on LVM, with dm-crypt between them or not; a volume that nobody prepared for us."""
    node, disk, top = bench.node, "/dev/disk/by-id/virtio-d1", "/dev/mapper/vg-lv"
    node.sh(
        f"wipefs -qa {disk}; pvcreate -qq -y {disk} && vgcreate -qq vg {disk} && "
        "lvcreate -qq -y -Wn -Zn -L 128M -n lv vg && vgmknodes -qq",
        timeout=120,
    )
    try:
        if crypt:
            node.run(
                f"cryptsetup open --type plain --cipher aes-xts-plain64 --key-size 256 "
                f"--key-file - {top} secret",
                stdin=b"k" * 32,
                timeout=120,
            )
            top = "/dev/mapper/secret"
        node.sh(f"mkfs.ext4 -q -F {top} && mkdir -p /mnt/lv && mount {top} /mnt/lv", timeout=60)
        yield "/mnt/lv"
    finally:
        bench.revert_all()
        node.run(
            "umount /mnt/lv; cryptsetup close secret 2>/dev/null; vgremove -qq -f vg; "
            f"pvremove -qq -f {disk}; wipefs -qa {disk}; rm -rf /dev/vg; true",
            timeout=120,
        )


@pytest.mark.vm("debian-13")
@pytest.mark.parametrize("crypt", [False, True], ids=["lvm", "dm-crypt on lvm"])
def test_a_mounted_volume_that_is_device_mapper_needs_no_preparation(
    vm_node: Node, bench: Bench, crypt: bool
) -> None:
    with logical_volume(bench, crypt=crypt) as mount:
        write_file(bench, f"{mount}/f")
        before = bench.tables()
        fault = bench.inject(
            "latent-sector",
            {"type": "file", "file": f"{mount}/f", "offset": "8Ki", "length": "4Ki"},
        )
        assert file_errors(bench, f"{mount}/f", range(1, 4)) == ["ok", EIO, "ok"]
        assert bench.evidence(fault.id)["hits"] >= 1
        bench.client.revert(fault.id)
        assert bench.tables() == before
        assert file_errors(bench, f"{mount}/f", range(1, 4)) == ["ok"] * 3


@pytest.mark.vm("debian-13")
def test_a_plain_mounted_disk_is_refused_with_the_way_out(vm_node: Node, bench: Bench) -> None:
    disk = "/dev/disk/by-id/virtio-d1"
    vm_node.sh(f"mkfs.ext4 -q -F {disk} && mkdir -p /mnt/p && mount {disk} /mnt/p", timeout=60)
    try:
        write_file(bench, "/mnt/p/f")
        with pytest.raises(Refused, match="volume prepare") as refusal:
            bench.plan("latent-sector", {"type": "file", "file": "/mnt/p/f"})
        assert "should_fail_bio" in str(refusal.value)
    finally:
        vm_node.sh("umount /mnt/p")


@pytest.mark.vm("full")
def test_a_plain_mounted_partition_fails_by_bpf(vm_node: Node, bench: Bench) -> None:
    disk = "/dev/disk/by-id/virtio-d1"
    vm_node.sh(
        f"printf '2048,200000\\n' | sfdisk -q --label dos {disk} && sleep 1 && "
        f"p=$(readlink -f {disk})1 && mkfs.ext4 -q -F $p && mkdir -p /mnt/p && mount $p /mnt/p",
        timeout=60,
    )
    try:
        write_file(bench, "/mnt/p/f")
        fault = bench.inject(
            "latent-sector", {"type": "file", "file": "/mnt/p/f", "offset": "8Ki", "length": "4Ki"}
        )
        assert fault.mechanism == "bpf-bio"
        assert file_errors(bench, "/mnt/p/f", range(1, 4)) == ["ok", EIO, "ok"]
        bench.client.revert(fault.id)
        assert file_errors(bench, "/mnt/p/f", range(1, 4)) == ["ok"] * 3
    finally:
        vm_node.sh(f"umount /mnt/p; wipefs -qa {disk}; blockdev --rereadpt {disk}")


@pytest.mark.vm("full")
def test_one_cgroups_reads_fail_and_everybody_elses_do_not(vm_node: Node, bench: Bench) -> None:
    """dd is the witness, inside the cgroup, in one below it, and outside."""
    group = "/sys/fs/cgroup/fc-only"
    device = "/dev/disk/by-id/virtio-d1"
    vm_node.sh(f"mkdir -p {group}/below")
    spec = {"sectors": "2048+8", "cgroup": "/fc-only"}
    try:
        with pytest.raises(Refused, match="no such cgroup"):
            bench.plan(
                "latent-sector",
                {"type": "device", "device": device},
                spec=spec | {"cgroup": "/fc-none"},
            )
        fault = bench.inject("latent-sector", {"type": "device", "device": device}, spec=spec)
        assert fault.mechanism == "bpf-bio"
        read = f"dd if={device} of=/dev/null bs=4096 count=1 iflag=direct"
        for place, skip, works in (
            (group, 256, False),
            (f"{group}/below", 256, False),
            (group, 257, True),
            ("/sys/fs/cgroup", 256, True),
        ):
            entered = f"echo $$ > {place}/cgroup.procs && exec {read} skip={skip}"
            done = vm_node.run(["sh", "-c", entered], check=False)
            assert (done.code == 0) is works, (place, skip, done.err)
            assert works or EIO in done.err, done.err
        assert bench.evidence(fault.id)["hits"] == 2
        bench.client.revert(fault.id)
        vm_node.sh(f"echo $$ > {group}/cgroup.procs && {read} skip=256")
    finally:
        vm_node.sh(f"rmdir {group}/below {group}")


@pytest.mark.vm("debian-13")
def test_a_device_that_holds_a_protected_directory_is_guarded(vm_node: Node, bench: Bench) -> None:
    with prepared_volume(bench) as mount:
        vm_node.sh(
            f"mkdir -p /var/lib/kubelet {mount}/k && mount --bind {mount}/k /var/lib/kubelet"
        )
        try:
            target = {"type": "device", "device": "/dev/mapper/data"}
            spec = {"sectors": "1000000+8"}
            with pytest.raises(Refused, match="kubelet"):
                bench.plan("latent-sector", target, spec=spec)
            plan = bench.plan("latent-sector", target, spec=spec, acknowledge=("protected-path",))
            assert "protected-path" in plan.guards
        finally:
            vm_node.sh("umount /var/lib/kubelet")
