"""disk-fill: what df and dd find, on each file system; gone after revert, death and reboot."""

from __future__ import annotations

import time
from typing import Any

import pytest
from agentkit import Bench
from fill_kit import mounted

from nodeagent.model.errors import Refused

pytestmark = pytest.mark.vm("debian-12", "debian-13")
DISK = "/dev/disk/by-id/virtio-d0"
MOUNT = "/mnt/fill"
MIB = 1 << 20
TARGET: dict[str, Any] = {"type": "volume", "volume": MOUNT}
MAKE = {
    "ext4": f"mkfs.ext4 -q -F -m 5 {DISK} && mount {DISK} {MOUNT}",
    "xfs": f"mkfs.xfs -q -f {DISK} && mount {DISK} {MOUNT}",
    "tmpfs": f"mount -t tmpfs -o size=64M tmpfs {MOUNT}",
}


def df(bench: Bench) -> int:
    """Bytes free to users, by df."""
    return int(bench.node.sh(f"df -B1 --output=avail {MOUNT} | tail -1"))


def size(bench: Bench) -> int:
    return int(bench.node.sh(f"df -B1 --output=size {MOUNT} | tail -1"))


@pytest.mark.parametrize("fs", sorted(MAKE))
def test_as_much_as_asked_is_left_and_all_comes_back(bench: Bench, fs: str) -> None:
    with mounted(bench, MAKE[fs], MOUNT):
        before, whole = df(bench), size(bench)
        for spec, left in (
            ({"leave_free": "0B"}, 0),
            ({"leave_free": "20Mi"}, 20 * MIB),
            ({"bytes": "32Mi"}, before - 32 * MIB),
        ):
            fault = bench.inject("disk-fill", TARGET, spec=spec)
            assert df(bench) == pytest.approx(left, abs=whole / 100), spec
            if not left:
                said = bench.node.run(
                    f"su nobody -s /bin/sh -c 'head -c 20M /dev/zero > {MOUNT}/more'", check=False
                )
                assert "No space left" in said.out + said.err
                bench.node.sh(f"rm -f {MOUNT}/more")
            assert bench.evidence(fault.id)["hits"] == 1
            assert bench.node.sh(f"ls -A {MOUNT}").split().count(f".faultctl-{fault.id}") == 1
            bench.client.revert(fault.id)
            assert df(bench) == pytest.approx(before, abs=MIB)
            assert ".faultctl" not in bench.node.sh(f"ls -A {MOUNT}")
    assert bench.residue() == []


def test_percent_and_refusals(bench: Bench) -> None:
    with mounted(bench, MAKE["ext4"], MOUNT):
        fault = bench.inject("disk-fill", TARGET, spec={"percent": "90%"})
        out = bench.node.sh(f"df --output=pcent {MOUNT} | tail -1").strip()
        assert out in ("89%", "90%", "91%")
        with pytest.raises(Refused):  # a second one on the same file system
            bench.inject("disk-fill", TARGET, spec={"leave_free": "0B"})
        bench.client.revert(fault.id)
        with pytest.raises(Refused, match="more than the file system has"):
            bench.plan("disk-fill", TARGET, spec={"bytes": "100Gi"})
        with pytest.raises(Refused, match="no mount point"):
            bench.plan("disk-fill", {"type": "volume", "volume": "/usr"}, spec={"bytes": "1Mi"})
        with pytest.raises(Refused, match="none of"):
            bench.plan("disk-fill", {"type": "volume", "volume": "/proc"}, spec={"bytes": "1Mi"})
        bench.node.sh(f"mount -o remount,ro {MOUNT}")
        with pytest.raises(Refused, match="read-only"):
            bench.plan("disk-fill", TARGET, spec={"bytes": "1Mi"})
        bench.node.sh(f"mount -o remount,rw {MOUNT}")


def test_an_unmounted_file_system_is_waited_for(bench: Bench) -> None:
    with mounted(bench, MAKE["ext4"], MOUNT):
        fault = bench.inject("disk-fill", TARGET, spec={"bytes": "32Mi"})
        bench.node.sh(f"umount {MOUNT}")
        with pytest.raises(Exception, match="not mounted"):
            bench.client.revert(fault.id)
        assert bench.client.fault(fault.id).state == "reverting"
        bench.node.sh(f"mount {DISK} {MOUNT}")
        bench.client.revert(fault.id)
        assert ".faultctl" not in bench.node.sh(f"ls -A {MOUNT}")


def test_the_guardian_removes_it(bench: Bench) -> None:
    with mounted(bench, MAKE["ext4"], MOUNT):
        bench.inject("disk-fill", TARGET, spec={"leave_free": "0B"})
        bench.node.sh(f"kill -9 {bench.pids()[0]}")
        end = time.monotonic() + 60
        while ".faultctl" in bench.node.sh(f"ls -A {MOUNT}"):
            assert time.monotonic() < end, "the file is still there"
            time.sleep(0.2)
