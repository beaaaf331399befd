"""inode-exhaust: what df -i and touch find; space is left; gone after revert, death and reboot."""

from __future__ import annotations

import time
from typing import Any

import pytest
from agentkit import Bench
from fill_kit import mounted

from nodeagent.model.errors import Refused

pytestmark = pytest.mark.vm("debian-12", "debian-13")
DISK = "/dev/disk/by-id/virtio-d1"
LARGE = "/dev/disk/by-id/virtio-d0"  # mkfs.xfs makes none below 300 MB
MOUNT = "/mnt/inodes"
TARGET: dict[str, Any] = {"type": "volume", "volume": MOUNT}
MAKE = {
    "ext4": f"mkfs.ext4 -q -F -N 2000 {DISK} && mount {DISK} {MOUNT}",
    "tmpfs": f"mount -t tmpfs -o size=64M,nr_inodes=2000 tmpfs {MOUNT}",
    "xfs": f"mkfs.xfs -q -f {LARGE} && mount {LARGE} {MOUNT}",
}


def df(bench: Bench, field: str = "iavail") -> int:
    """By df(1)."""
    return int(bench.node.sh(f"df --output={field} {MOUNT} | tail -1").strip().rstrip("%"))


@pytest.mark.parametrize("fs", ["ext4", "tmpfs"])
def test_as_many_as_asked_are_left_and_all_come_back(bench: Bench, fs: str) -> None:
    with mounted(bench, MAKE[fs], MOUNT):
        before = df(bench)
        for spec, left in (({"leave_free": 0}, 0), ({"take": 1000}, before - 1000)):
            fault = bench.inject("inode-exhaust", TARGET, spec=spec)
            assert df(bench) == left
            if not left:
                said = bench.node.run(f"touch {MOUNT}/more", check=False)
                assert "No space left" in said.out + said.err
                assert df(bench, "avail") > 10_000, "there is space, in KiB"
            assert bench.evidence(fault.id)["hits"] == 1
            bench.client.revert(fault.id)
            assert df(bench) == before
            assert ".faultctl" not in bench.node.sh(f"ls -A {MOUNT}")
        fault = bench.inject("inode-exhaust", TARGET, spec={"percent": "90%"})
        assert 89 <= df(bench, "ipcent") <= 91
        bench.client.revert(fault.id)
    assert bench.residue() == []


def test_refusals(bench: Bench) -> None:
    with (
        mounted(bench, MAKE["xfs"], MOUNT),
        pytest.raises(Refused, match="disk-fill takes the space"),
    ):
        bench.plan("inode-exhaust", TARGET, spec={"leave_free": 0})
    with mounted(bench, MAKE["tmpfs"], MOUNT):
        with pytest.raises(Refused, match="more than the file system has"):
            bench.plan("inode-exhaust", TARGET, spec={"take": 90_000})
        fault = bench.inject("inode-exhaust", TARGET, spec={"take": 10})
        with pytest.raises(Refused, match=fault.id):
            bench.plan("inode-exhaust", TARGET, spec={"take": 20})


def test_the_guardian_removes_it_and_a_removed_one_is_told(bench: Bench) -> None:
    with mounted(bench, MAKE["ext4"], MOUNT):
        fault = bench.inject("inode-exhaust", TARGET, spec={"take": 100})
        bench.node.sh(f"rm -r {MOUNT}/.faultctl-{fault.id}")
        assert "operator has found it" in bench.evidence(fault.id)["statements"][0]
        bench.client.revert(fault.id)
        before = df(bench)
        bench.inject("inode-exhaust", TARGET, spec={"leave_free": 10})
        bench.node.sh(f"kill -9 {bench.pids()[0]}")
        end = time.monotonic() + 60
        while df(bench) != before or ".faultctl" in bench.node.sh(f"ls -A {MOUNT}"):
            assert time.monotonic() < end, "it is still there"
            time.sleep(0.2)
