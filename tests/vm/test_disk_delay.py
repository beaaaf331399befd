"""disk-delay: as late as asked, in each class, and nothing lost when it is taken back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from agentkit import Bench, prepared_volume
from disk_kit import DEVICE, FLAVOURS, fio, fsck, io, quiet_ext4, raw_volume, results

from controller.lab import Node
from nodeagent.model.errors import Conflict, Refused

TICK_MS = 10
# An emulated machine's ticks come late now and then, and dm-delay counts ticks: it may be
# early by what the clock then catches up. So single operations are tried twice.


def _best(bench: Bench, op: str, path: str, late: bool) -> float:
    """Milliseconds of an operation: the most of two where it should be late, else the least."""
    took = [io(bench, op, path)["ms"] for _ in range(2)]
    return max(took) if late else min(took)


@pytest.mark.vm(*FLAVOURS)
def test_each_class_is_as_late_as_asked(vm_node: Node, bench: Bench) -> None:
    asked = {"read": 300, "write": 500, "flush": 700}
    with raw_volume(bench) as path:
        before = bench.tables()
        plain = {op: min(io(bench, op, path)["ms"] for _ in range(3)) for op in asked}
        for only in asked:
            fault = bench.inject("disk-delay", DEVICE, spec={only: f"{asked[only]}ms"})
            took = {op: _best(bench, op, path, late=op == only) for op in asked}
            for op, late in asked.items():
                if op == only:
                    assert took[op] >= late - TICK_MS, (only, took)
                else:
                    assert took[op] < min(asked.values()) + plain[op], (only, took)
            bench.client.revert(fault.id)
            assert bench.tables() == before
        assert bench.residue() == []


@pytest.mark.vm(*FLAVOURS)
def test_fio_and_the_evidence_agree(vm_node: Node, bench: Bench) -> None:
    spec = {"read": "40ms", "write": "60ms"}
    with raw_volume(bench) as path:
        fault = bench.inject("disk-delay", DEVICE, spec=spec)
        seen = {rw: fio(bench, path, rw, 20) for rw in ("read", "write")}
        assert seen["read"]["clat_ns"]["mean"] >= (40 - TICK_MS) * 1e6
        assert seen["write"]["clat_ns"]["mean"] >= (60 - TICK_MS) * 1e6
        found = bench.evidence(fault.id)
        assert found["counted"]
        assert found["counters"]["writes_ok"] == 20
        # fio itself may read the device's first sectors when it opens it
        assert found["counters"]["reads_ok"] >= 20
        assert found["hits"] == found["counters"]["writes_ok"] + found["counters"]["reads_ok"]
        assert "biting" in bench.events(fault.id)
        said = {line.split()[0]: line.split() for line in found["statements"] if " took " in line}
        for rw in ("read", "write"):
            # "reads took 40.1 to 52.3 ms": bios, a little less than what fio waits for
            least, most = float(said[f"{rw}s"][2]), float(said[f"{rw}s"][4])
            assert least <= seen[rw]["clat_ns"]["min"] / 1e6
            assert most >= int(spec[rw][:-2]) - TICK_MS
        fio(bench, path, "write", 80)
        found = bench.evidence(fault.id)
        assert found["counters"]["writes_ok"] == 100  # counted, though no longer recorded
        assert len(found["records"]) <= 64


@pytest.mark.vm(*FLAVOURS)
def test_what_waits_goes_on_its_way_at_revert(vm_node: Node, bench: Bench) -> None:
    with raw_volume(bench) as path:
        deadline = bench.node.deadline(30)
        fault = bench.inject("disk-delay", DEVICE, spec={"read": "5m", "write": "5m"})
        assert time.monotonic() < deadline  # nobody waits for the whole delay
        bench.node.sh(
            f"(head -c 4096 /dev/zero | tr '\\0' A | dd of={path} bs=4096 count=1 oflag=direct "
            f"conv=notrunc; echo write $? >> /run/late) >/dev/null 2>&1 & "
            f"(dd if={path} of=/dev/null bs=4096 skip=1 count=1 iflag=direct; "
            "echo read $? >> /run/late) >/dev/null 2>&1 &"
        )
        time.sleep(1)
        assert bench.node.sh("cat /run/late 2>/dev/null || true") == ""
        bench.client.revert(fault.id)
        bench.node.sh(
            "for i in $(seq 100); do [ $(cat /run/late 2>/dev/null | wc -l) = 2 ] && break; "
            "sleep 0.1; done"
        )
        assert sorted(bench.node.sh("cat /run/late; rm /run/late").split()) == [
            "0",
            "0",
            "read",
            "write",
        ]
        assert io(bench, "read", path, fill=ord("A"))["odd"] == {}


@pytest.mark.vm(*FLAVOURS)
def test_a_slow_file_system_is_whole_afterwards(vm_node: Node, bench: Bench) -> None:
    with prepared_volume(bench) as mount:
        quiet_ext4(bench, mount)
        spec = {"read": "10ms", "write": "20ms", "flush": "200ms"}
        fault = bench.inject("disk-delay", {"type": "volume", "volume": mount}, spec=spec)
        took = bench.node.sh(
            f"t=$(date +%s%N); dd if=/dev/urandom of={mount}/f bs=64k count=16 conv=fsync "
            f"2>/dev/null; echo $(( ($(date +%s%N) - t) / 1000000 )); "
            f"md5sum < {mount}/f > /run/sum",
            timeout=60,
        )
        assert int(took) >= 20 + 200 - 2 * TICK_MS
        bench.client.revert(fault.id)
        assert fsck(bench, "/dev/mapper/data", mount) == "clean"
        bench.node.sh(f"cat {mount}/f | md5sum | cmp - /run/sum")


@pytest.mark.vm("debian-13")
def test_a_plain_disk_is_refused(vm_node: Node, bench: Bench) -> None:
    target = {"type": "device", "device": "/dev/disk/by-id/virtio-d1"}
    with pytest.raises(Refused, match="volume prepare"):
        bench.inject("disk-delay", target, spec={"read": "5ms"})


@contextmanager
def halves(bench: Bench, path: str) -> Iterator[tuple[str, str]]:
    """Two devices over the halves of one, whose own tables no fault can be put into."""
    half = int(bench.node.sh(f"blockdev --getsz {path}")) // 2 // 8 * 8
    names = ("low", "high")
    for name, start in zip(names, (0, half), strict=True):
        table = f"0 {half} crypt cipher_null-ecb - 0 {path} {start}"
        bench.node.sh(f"modprobe dm_crypt 2>/dev/null; dmsetup create {name} --table '{table}'")
    bench.node.sh("dmsetup mknodes")
    try:
        yield "/dev/mapper/low", "/dev/mapper/high"
    finally:
        bench.revert_all()
        for name in names:
            bench.node.sh(f"dmsetup remove {name}")


@pytest.mark.vm("debian-13")
def test_two_kinds_on_parts_of_one_device_compose(vm_node: Node, bench: Bench) -> None:
    with raw_volume(bench) as path, halves(bench, path) as (low, high):
        before = bench.tables()
        slow = bench.inject(
            "disk-delay", {"type": "device", "device": low}, spec={"write": "400ms"}
        )
        dead = bench.inject("disk-outage", {"type": "device", "device": high})
        assert dead.mechanism == "dm-error"
        with pytest.raises(Conflict, match=f"{slow.id}|{dead.id}"):
            bench.inject("disk-flaky", DEVICE)
        with pytest.raises(Refused, match="delay flushes of all of it"):
            bench.inject("disk-delay", {"type": "device", "device": low}, spec={"flush": "1ms"})
        assert _best(bench, "write", low, late=True) >= 400 - TICK_MS
        assert results(bench, low) == ("ok", "ok", "ok")
        assert results(bench, high)[:2] == ("EIO", "EIO")
        bench.client.revert(slow.id)
        assert results(bench, low) == ("ok", "ok", "ok")
        assert results(bench, high)[:2] == ("EIO", "EIO")
        bench.client.revert(dead.id)
        assert results(bench, high) == ("ok", "ok", "ok")
        assert bench.tables() == before
