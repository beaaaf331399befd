"""Runs inside a lab node as root: sectors failed by BPF on should_fail_bio."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from guest_bio import (
    check,
    collect,
    dd,
    dev,
    io,
    links,
    loop,
    main,
    pairs,
    programs,
    ranges,
    sh,
    spec,
)

from nodeagent.backends.bio_fail import BioFailer
from nodeagent.backends.bio_trace import BioTracer
from nodeagent.encode.bpf_maps import Submitter
from nodeagent.model.errors import InvalidSpec

FAILER = BioFailer()
EIO = 5


@check
def exact_sectors_of_a_plain_disk() -> object:
    assert links() == 0 and programs() == ["fc_should_fail_bio"], programs()
    disk = loop("exact.img")
    slot = FAILER.arm(spec(disk, (1000, 3), (5000, 1)))
    assert links() == 1 and FAILER.armed() == (slot,)
    pid, code, words = dd(disk, 1001, "iflag=direct")
    assert code == 1 and "Input/output error" in words, words
    (event,) = collect(FAILER.events, 1)
    record = event.record()
    assert (record.sector, record.sectors, record.status, record.pid) == (1001, 1, 5, pid), record
    assert (record.op, record.comm, event.submitter) == ("read", "dd", Submitter.WORKLOAD)
    found = io(disk, [999, 1000, 1001, 1002, 1003, 4999, 5000, 5001])
    assert [s for s, code in found.items() if code] == [1000, 1001, 1002, 5000], found
    assert set(found.values()) == {0, EIO}
    assert io(disk, [1001, 5000], op="write") == {1001: 0, 5000: 0}
    assert io(disk, [1001, 5000]) == {1001: EIO, 5000: EIO}
    assert io(disk, [0, 2000, 5000 - 64, 936], size=64) == {0: 0, 2000: 0, 4936: 0, 936: 0}
    assert io(disk, [937, 1002, 4990], size=64) == {937: EIO, 1002: EIO, 4990: EIO}
    stats = FAILER.disarm(slot)
    assert stats.workload.reads_failed == 1 + 4 + 2 + 3 and stats.workload.writes_failed == 0, stats
    assert stats.workload.first_failed_ns == event.ts_ns < stats.workload.last_failed_ns
    assert links() == 0 and FAILER.armed() == ()
    assert set(io(disk, [1000, 1001, 1002, 5000]).values()) == {0}
    sh("losetup", "-d", disk)
    return record.model_dump()


@check
def another_disk_with_the_same_number_is_not_hit() -> object:
    disk = loop("first.img")
    slot = FAILER.arm(spec(disk, (1000, 8)))
    assert io(disk, [1000]) == {1000: EIO}
    sh("losetup", "-d", disk)
    again = loop("second.img")
    assert dev(again) == dev(disk), (disk, again)
    assert io(again, [1000]) == {1000: 0}
    other = FAILER.arm(spec(again, (2000, 8)))
    assert io(again, [1000, 2000]) == {1000: 0, 2000: EIO}
    FAILER.disarm(slot)
    assert io(again, [1000, 2000]) == {1000: 0, 2000: EIO}
    FAILER.disarm(other)
    assert io(again, [2000]) == {2000: 0} and FAILER.armed() == ()
    sh("losetup", "-d", again)
    return "told apart by diskseq"


@check
def buffered_and_mapped_readers() -> object:
    disk = loop("cached.img")
    slot = FAILER.arm(spec(disk, (8192, 1)))
    assert dd(disk, 8192)[1] == 1 and dd(disk, 8200)[1] == 0
    touch = f"import mmap; f = open('{disk}', 'rb'); m = mmap.mmap(f.fileno(), 1 << 23, prot=1)"
    touch += "; m[8192 * 512]"
    child = subprocess.run([sys.executable, "-c", touch], capture_output=True)
    assert child.returncode == -signal.SIGBUS, child
    paths = [e.flag_words() for e in collect(FAILER.events, 2)]
    FAILER.disarm(slot)
    assert dd(disk, 8192)[1] == 0
    sh("losetup", "-d", disk)
    return paths


@check
def writes_heal_exactly_what_they_cover() -> object:
    disk = loop("heal.img")
    slot = FAILER.arm(spec(disk, (100, 60), (1000, 1), heal=True))
    assert io(disk, [100, 130, 159, 1000]) == dict.fromkeys([100, 130, 159, 1000], EIO)
    assert io(disk, [120], op="write", size=16) == {120: 0}
    assert pairs(FAILER.still_bad(slot)) == [(100, 20), (136, 24), (1000, 1)]
    assert io(disk, [119, 120, 127, 135, 136]) == {119: EIO, 120: 0, 127: 0, 135: 0, 136: EIO}
    assert io(disk, [90], op="write", size=2048) == {90: 0}
    assert FAILER.still_bad(slot) == ()
    assert set(io(disk, list(range(98, 162))).values()) == {0}
    collect(FAILER.events, 1)
    stats = FAILER.disarm(slot)
    assert stats.healed_sectors == 61 and stats.workload.writes_ok == 2, stats
    slot = FAILER.arm(spec(disk, (100, 1), heal=True))
    sh("blkdiscard", disk)
    assert io(disk, [100]) == {100: EIO}
    sh("blkdiscard", "--zeroout", "--offset", "0", "--length", "1048576", disk)
    assert io(disk, [100]) == {100: 0}
    FAILER.disarm(slot)
    sh("losetup", "-d", disk)
    return str(stats)


@check
def failing_writes_heal_nobody() -> object:
    disk = loop("wfail.img")
    fail = FAILER.arm(spec(disk, (10, 4), writes=True))
    heal = FAILER.arm(spec(disk, (0, 64), heal=True))
    only = FAILER.arm(spec(disk, (100, 1), reads=False, writes=True))
    assert io(disk, [10], op="write") == {10: EIO}
    assert pairs(FAILER.still_bad(heal)) == [(0, 64)]
    assert io(disk, [100], op="write") == {100: EIO} and io(disk, [100]) == {100: 0}
    assert io(disk, [0], op="write", size=10) == {0: 0}
    assert pairs(FAILER.still_bad(heal)) == [(10, 54)]
    counts = [FAILER.disarm(slot).workload for slot in (fail, heal, only)]
    assert [(c.reads_failed, c.writes_failed, c.writes_ok) for c in counts] == [
        (0, 1, 0),
        (0, 0, 1),
        (0, 1, 0),
    ], counts
    assert io(disk, [10], op="write") == {10: 0}
    for bad in (
        spec(disk, (1, 1), writes=True, heal=True),
        spec(disk),
        spec(disk, (1, 1), rate_ppm=0),
    ):
        try:
            FAILER.arm(bad)
        except InvalidSpec:
            continue
        raise AssertionError(f"{bad} was taken")
    assert links() == 0
    sh("losetup", "-d", disk)
    return str(counts)


@check
def partition_and_split_bios() -> object:
    disk = loop("parts.img", 128, "--partscan")
    table = "start=2048,size=20000\nstart=32768\n"
    subprocess.run(["sfdisk", "-q", disk], input=table, text=True, check=True)
    sh("partx", "-u", disk, ok=False)
    part = f"{disk}p2"
    end = time.monotonic() + 5
    while not os.path.exists(part) and time.monotonic() < end:
        time.sleep(0.1)
    slot = FAILER.arm(spec(part, (7, 1)))
    assert pairs(FAILER.still_bad(slot)) == [(32775, 1)]
    assert io(part, [6, 7, 8]) == {6: 0, 7: EIO, 8: 0}
    assert io(disk, [7, 32774, 32775, 32776]) == {7: 0, 32774: 0, 32775: EIO, 32776: 0}
    FAILER.disarm(slot)
    # The rest of a split bio comes again, remapped: adding the start twice would hit this.
    slot = FAILER.arm(spec(disk, (2 * 32768 + 6000, 1)))
    assert io(part, [0], size=8192) == {0: 0}
    assert io(part, [32768 + 6000]) == {32768 + 6000: EIO}
    FAILER.disarm(slot)
    sh("losetup", "-d", disk)
    return True


@check
def one_layer_of_a_stack() -> object:
    disk = loop("stack.img")
    table = f"0 50000 linear {disk} 3000\n"
    subprocess.run(["dmsetup", "create", "st", "--noudevsync"], input=table, text=True, check=True)
    sh("dmsetup", "mknodes")
    top = "/dev/mapper/st"
    below = FAILER.arm(spec(disk, (3100, 1)))
    found = io(top, [99, 100, 101, 3100])
    assert found == {99: 0, 100: EIO, 101: 0, 3100: 0}, found
    assert FAILER.disarm(below).workload.reads_failed == 1
    above = FAILER.arm(spec(top, (3100, 1)))
    assert io(top, [100, 3100]) == {100: 0, 3100: EIO}
    assert set(io(disk, [100, 3100, 6100]).values()) == {0}
    assert FAILER.disarm(above).workload.reads_failed == 1
    both = [FAILER.arm(spec(top, (5, 1))), FAILER.arm(spec(disk, (3005, 1)))]
    assert io(top, [5]) == {5: EIO}
    assert [FAILER.disarm(slot).workload.reads_failed for slot in both] == [1, 0]
    sh("dmsetup", "remove", "--noudevsync", "st")
    sh("losetup", "-d", disk)
    return True


@check
def tracer_beside_it_sees_no_failed_bio() -> object:
    """What KERNEL.md says of the order: a bio failed here is never queued."""
    disk = loop("both.img")
    with_tracer = BioTracer()
    watch = with_tracer.add_watch(*dev(disk), ranges((70, 2)))
    slot = FAILER.arm(spec(disk, (70, 1)))
    assert io(disk, [70, 71]) == {70: EIO, 71: 0}
    traced, failed = with_tracer.remove_watch(watch).workload, FAILER.disarm(slot).workload
    with_tracer.close()
    assert (traced.reads_ok, traced.reads_failed, failed.reads_failed) == (1, 0, 1)
    sh("losetup", "-d", disk)
    return True


@check
def a_file_system_lives_through_it() -> object:
    """ext4 on the disk: the file with the bad sector fails, a copy over it heals."""
    disk = loop("fs.img", 128)
    sh("mkfs.ext4", "-q", disk)
    mount = Path("/tmp/bio/mnt")
    mount.mkdir(exist_ok=True)
    sh("mount", disk, str(mount))
    data = bytes(range(256)) * 256
    (mount / "f").write_bytes(data)
    sh("sync")
    first = (
        sh("filefrag", "-v", str(mount / "f")).splitlines()[3].split(":")[2].strip().split(".")[0]
    )
    sector = int(first) * (int(sh("stat", "-f", "-c", "%S", str(mount))) // 512) + 24
    slot = FAILER.arm(spec(disk, (sector, 1), heal=True))
    sh("sysctl", "-q", "vm.drop_caches=3")
    (mount / "other").write_bytes(data)
    done = subprocess.run(["cat", str(mount / "f")], capture_output=True)
    assert done.returncode == 1 and b"Input/output error" in done.stderr, done.stderr
    assert done.stdout == data[: len(done.stdout)] and len(done.stdout) <= 24 * 512
    sh("dd", "if=/dev/zero", f"of={mount}/f", "bs=4096", "seek=3", "count=1", "conv=notrunc,fsync")
    assert FAILER.still_bad(slot) == ()
    sh("sysctl", "-q", "vm.drop_caches=3")
    assert (mount / "f").read_bytes() == data[:12288] + bytes(4096) + data[16384:]
    stats = FAILER.disarm(slot)
    sh("umount", str(mount))
    sh("fsck.ext4", "-fn", disk)
    sh("losetup", "-d", disk)
    return [str(stats), [e.flag_words() for e in FAILER.events()]]


HOLDER = """
import sys, time
from nodeagent.backends.bio_fail import BioFailer, FailSpec
from nodeagent.model.ranges import Range
BioFailer().arm(FailSpec(int(sys.argv[1]), int(sys.argv[2]), (Range(start=9, length=1),)))
failer = None
print("armed", flush=True)
time.sleep(100)
"""


@check
def nothing_outlives_a_killed_holder() -> object:
    FAILER.close()
    FAILER.close()
    disk = loop("kill.img")
    assert gone() == []
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, *map(str, dev(disk))], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "armed\n"
    assert links() == 1 and io(disk, [9]) == {9: EIO}
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert io(disk, [9]) == {9: 0}
    assert links() == 0 and gone() == []
    maps = [line for line in sh("bpftool", "map", "list").splitlines() if " fc_" in line]
    sh("losetup", "-d", disk)
    assert maps == [], maps
    return True


def gone() -> list[str]:
    """Programs are freed after a grace period."""
    end = time.monotonic() + 5
    while programs() and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.2)
    return programs()


def disarm_all() -> None:
    for slot in FAILER.armed():
        FAILER.disarm(slot)
    if programs():
        FAILER.events()


if __name__ == "__main__":
    main(disarm_all)
