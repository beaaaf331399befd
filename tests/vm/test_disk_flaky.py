"""disk-flaky: a disk by turns up and down, by the kernel's own clock."""

from __future__ import annotations

import json
from itertools import groupby

import pytest
from agentkit import Bench, prepared_volume
from disk_kit import DEVICE, FLAVOURS, fsck, quiet_ext4, raw_volume

from controller.lab import Node
from nodeagent.model.errors import Refused

# Reads, writes and flushes ten times a second for some seconds: one letter an operation.
WATCH = r"""
import json, mmap, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
buffer = mmap.mmap(-1, 4096)
seen = {"read": "", "write": "", "flush": ""}
ops = {
    "read": lambda: os.preadv(fd, [buffer], 0),
    "write": lambda: os.pwritev(fd, [buffer], 4096),
    "flush": lambda: os.fsync(fd),
}
end = time.monotonic() + float(sys.argv[2])
times = []
while time.monotonic() < end:
    times.append(time.monotonic())
    for name, op in ops.items():
        try:
            op()
            seen[name] += "."
        except OSError as exc:
            seen[name] += "x" if exc.errno == 5 else "?"
    time.sleep(0.1)
print(json.dumps({"times": times, **seen}))
"""


def watch(bench: Bench, seconds: float) -> dict[str, list[tuple[str, float]]]:
    """For each operation the turns that it saw: (. or x, seconds)."""
    out = bench.node.run(
        ["python3", "-c", WATCH, "/dev/mapper/raw", str(seconds)], timeout=seconds + 60
    ).out
    found = json.loads(out)
    times = found.pop("times")
    turns: dict[str, list[tuple[str, float]]] = {}
    for op, letters in found.items():
        at = 0
        turns[op] = []
        for letter, group in groupby(letters):
            length = len(list(group))
            end = times[min(at + length, len(times) - 1)]
            turns[op].append((letter, end - times[at]))
            at += length
    return turns


def alternates(turns: list[tuple[str, float]], up: float, down: float) -> None:
    """Up and down by turns; whole turns between the first and the last are as long as asked."""
    assert len(turns) >= 4, turns
    assert {letter for letter, _ in turns} == {".", "x"}, turns
    for letter, length in turns[1:-1]:
        asked = up if letter == "." else down
        # The kernel counts whole jiffies; the watcher may lose time on a loaded host.
        assert abs(length - asked) < 1.5, turns


@pytest.mark.vm(*FLAVOURS)
def test_up_and_down_by_turns(vm_node: Node, bench: Bench) -> None:
    with raw_volume(bench) as path:
        before = bench.tables()
        fault = bench.inject("disk-flaky", DEVICE, spec={"up": "3s", "down": "5s"})
        assert " 3 5 " in bench.node.sh("dmsetup table raw")
        turns = watch(bench, 20)
        for op in ("read", "write", "flush"):
            alternates(turns[op], up=3, down=5)
        found = bench.evidence(fault.id)
        assert found["counted"]
        assert found["hits"] > 0
        assert "biting" in bench.events(fault.id)
        assert len(found["records"]) <= 64
        assert bench.client.revert(fault.id).fault.end_reason == "reverted"
        assert bench.tables() == before
        assert {letter for op in watch(bench, 7).values() for letter, _ in op} == {"."}
        assert bench.node.sh(f"blockdev --getsz {path}").strip()
        assert bench.residue() == []


@pytest.mark.vm(*FLAVOURS)
def test_one_direction_only(vm_node: Node, bench: Bench) -> None:
    with raw_volume(bench):
        for fail, bad in (("reads", {"read"}), ("writes", {"write", "flush"})):
            request = {"spec": {"up": "2s", "down": "4s", "fail": fail}}
            if fail == "reads" and vm_node.config.flavour == "debian-12":
                with pytest.raises(Refused, match="dm-flakey has no error_reads"):
                    bench.inject("disk-flaky", DEVICE, **request)
                continue
            fault = bench.inject("disk-flaky", DEVICE, **request)
            turns = watch(bench, 14)
            for op, seen in turns.items():
                if op in bad:
                    alternates(seen, up=2, down=4)
                else:
                    assert [letter for letter, _ in seen] == ["."], (fail, op, seen)
            counters = bench.evidence(fault.id)["counters"]
            assert (counters["reads_failed"] > 0) is (fail == "reads")
            assert (counters["writes_failed"] > 0) is (fail == "writes")
            bench.client.revert(fault.id)


@pytest.mark.vm("debian-13", "full")
def test_reads_that_come_and_go_leave_the_file_system_clean(vm_node: Node, bench: Bench) -> None:
    with prepared_volume(bench) as mount:
        quiet_ext4(bench, mount)
        bench.node.sh(f"head -c 1M /dev/urandom > {mount}/f; sync; md5sum < {mount}/f > /run/sum")
        spec = {"up": "1s", "down": "2s", "fail": "reads"}
        fault = bench.inject("disk-flaky", {"type": "volume", "volume": mount}, spec=spec)
        script = (
            f"for i in $(seq 40); do dd if={mount}/f of=/dev/null bs=64k iflag=direct 2>/dev/null"
            f" && echo ok || echo bad; echo x >> {mount}/g; sync {mount}/g; sleep 0.2; done"
        )
        ends = bench.node.sh(script, timeout=90).split()
        assert {"ok", "bad"} == set(ends)
        bench.client.revert(fault.id)
        assert fsck(bench, "/dev/mapper/data", mount) == "clean"
        bench.node.sh(f"cat {mount}/f | md5sum | cmp - /run/sum")
        assert bench.node.sh(f"wc -l < {mount}/g").strip() == "40"
