"""disk-throttle: one cgroup reads and writes a volume as slowly as asked; others do not."""

from __future__ import annotations

from typing import Any

import pytest
from agentkit import Bench
from cgroup_kit import ROOT, cat, cgroups

from nodeagent.model.errors import Refused

pytestmark = pytest.mark.vm("debian-12", "debian-13")
VICTIM: dict[str, Any] = {"type": "cgroup", "cgroup": "/victim"}
DISK = "/dev/disk/by-id/virtio-d1"
MOUNT = "/mnt/slow"
MIB = 1 << 20


def seconds(bench: Bench, cgroup: str, command: str) -> float:
    """How long a command takes in a cgroup, by date(1)."""
    out = bench.node.sh(
        f"a=$(date +%s%N); sh -c 'echo $$ > {ROOT}/{cgroup}/cgroup.procs; exec {command}' "
        "2>/dev/null; b=$(date +%s%N); echo $(((b - a) / 1000))",
        timeout=60,
    )
    return int(out) / 1e6


def test_the_disk_below_a_volume_on_a_partition(bench: Bench) -> None:
    with cgroups(bench, "victim", "neighbour"):
        bench.node.sh(
            f"printf '2048,131072\\n' | sfdisk -q --label dos {DISK} && sleep 1; "
            f"d=$(readlink -f {DISK}); mkfs.ext4 -q -F ${{d}}1; mkdir -p {MOUNT}; "
            f"mount ${{d}}1 {MOUNT}",
            timeout=60,
        )
        try:
            _slow_as_asked(bench)
        finally:
            bench.node.sh(f"umount {MOUNT}; wipefs -qa {DISK}; partx -d {DISK} 2>/dev/null; true")
    assert bench.residue() == []


def _in_time(took: float, free: float) -> None:
    """Never faster than 4 s less a quarter; at most twice as slow, beside what dd needs anyway.

    dd has one request at a time, so each of 32 waits begins when the last one's timer and answer
    were seen: late on a busy host that emulates the node (measured there: 4.4, 5.2 and 6.9 s).
    """
    print(f"{took:.2f} s, without a limit {free:.2f} s")
    assert 3 <= took <= 8 + free


def _slow_as_asked(bench: Bench) -> None:
    write = f"dd if=/dev/zero of={MOUNT}/f bs=128k count=32 oflag=direct"
    read = f"dd if={MOUNT}/f of=/dev/null bs=128k count=32 iflag=direct"
    free_write, free_read = [seconds(bench, "victim", command) for command in (write, read)]
    assert free_write < 3
    number = bench.node.sh(f"lsblk -dno MAJ:MIN {DISK}").strip()
    asked = {"volume": MOUNT, "write_bytes": "1Mi", "read_ops": 8}
    fault = bench.inject("disk-throttle", VICTIM, spec=asked)
    assert f"{number} rbps=max wbps=1048576 riops=8 wiops=max" in cat(bench, "victim", "io.max")
    took = seconds(bench, "victim", write)
    print(f"\nasked 1 MiB/s: 4 MiB took {took:.2f} s, before {free_write:.2f} s")
    _in_time(took, free_write)
    _in_time(seconds(bench, "victim", read), free_read)  # 32 reads at 8 a second
    assert seconds(bench, "neighbour", read) < 2
    seen = bench.evidence(fault.id)
    assert seen["counters"]["io.max:wbytes"] >= 4 * MIB
    assert seen["details"]["io.max"]["stalled_us"]["io"]["some"] > 4_000_000, "PSI saw the waits"
    assert any("waited for" in line for line in seen["statements"])
    with pytest.raises(Refused, match=fault.id):
        bench.plan("throttle", VICTIM, spec={"device": DISK, "read_ops": 5})
    bench.client.revert(fault.id)
    assert cat(bench, "victim", "io.max") == ""
    assert seconds(bench, "victim", read) < 2


def test_what_is_on_no_disk_is_refused(bench: Bench) -> None:
    with cgroups(bench, "victim"):
        with pytest.raises(Refused, match="no block device"):
            bench.plan("disk-throttle", VICTIM, spec={"volume": "/run", "read_ops": 5})
        with pytest.raises(Refused):
            bench.plan("disk-throttle", VICTIM, spec={"volume": "/usr/bin", "read_ops": 5})
