"""Runs inside a lab node as root: the block-layer tracer, with dm-error as what fails."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time

from guest_bio import (
    check,
    collect,
    dd,
    dev,
    io,
    links,
    loop,
    main,
    programs,
    ranges,
    sh,
)

from nodeagent.backends.bio_trace import BioTracer, kernel_release
from nodeagent.encode.bpf_maps import Emit, Submitter, TraceHealth
from nodeagent.model.errors import Refused

TRACER = BioTracer()
KERNEL = kernel_release()
BAD = 40000


def broken() -> tuple[str, tuple[int, int]]:
    """A dm device whose sectors BAD .. BAD+7 fail, made once."""
    path = "/dev/mapper/broken"
    if not os.path.exists(path):
        under = loop("broken.img")
        table = (
            f"0 {BAD} linear {under} 0\n{BAD} 8 error\n{BAD + 8} 40000 linear {under} {BAD + 8}\n"
        )
        subprocess.run(
            ["dmsetup", "create", "broken", "--noudevsync"], input=table, text=True, check=True
        )
        if not os.path.exists(path):
            sh("dmsetup", "mknodes")
    return path, dev(path)


@check
def nothing_is_attached_at_rest() -> object:
    assert "fc_bio_queue" in programs()
    assert links() == 0
    return programs()


@check
def failing_dd_is_seen() -> object:
    path, (major, minor) = broken()
    watch = TRACER.add_watch(major, minor, ranges((BAD, 8)))
    assert links() == 4
    pid, code, words = dd(path, BAD + 3, "iflag=direct")
    assert code == 1 and "Input/output error" in words, words
    for beside in (BAD - 1, BAD + 8):
        assert dd(path, beside, "iflag=direct")[1] == 0
    (event,) = collect(TRACER.events, 1)
    record = event.record(KERNEL)
    assert (record.device, record.sector, record.sectors) == (f"{major}:{minor}", BAD + 3, 1), (
        record
    )
    assert (record.op, record.status, record.pid, record.comm) == ("read", 5, pid, "dd"), record
    assert event.slot == watch and event.submitter is Submitter.WORKLOAD
    assert event.queued_ns <= event.ts_ns <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    stats = TRACER.remove_watch(watch)
    assert (stats.workload.reads_failed, stats.workload.reads_ok) == (1, 0), stats
    assert stats.workload.first_failed_ns == stats.workload.last_failed_ns == event.ts_ns
    assert links() == 0
    return [record.model_dump(), event.end_io]


@check
def buffered_large_and_written() -> object:
    path, (major, minor) = broken()
    watch = TRACER.add_watch(major, minor, ranges((BAD, 8)))
    sh("blockdev", "--flushbufs", path)
    assert dd(path, BAD)[1] == 1
    buffered = collect(TRACER.events, 1)
    assert all(
        e.status == 10 and e.sector <= BAD + 7 and e.sector + e.nr_sectors > BAD for e in buffered
    )
    assert any("buffered" in e.flag_words() or "buffer-head" in e.flag_words() for e in buffered), (
        buffered
    )
    assert io(path, [BAD - 1024], size=2048) == {BAD - 1024: 5}
    large = collect(TRACER.events, 1)
    assert [(e.sector, e.nr_sectors, e.status) for e in large] == [(BAD - 1024, 2048, 10)], large
    assert io(path, [BAD + 1], op="write") == {BAD + 1: 5}
    (write,) = collect(TRACER.events, 1)
    assert write.record(KERNEL).op == "write" and write.direction == 1
    stats = TRACER.remove_watch(watch)
    assert stats.workload.writes_failed == 1 and stats.workload.reads_failed == len(buffered) + 1
    return [e.flag_words() for e in (*buffered, *large, write)] + [
        buffered[0].end_io,
        large[0].end_io,
    ]


@check
def partition_is_its_disk() -> object:
    disk = loop("parts.img", 64, "--partscan")
    subprocess.run(
        ["sfdisk", "-q", disk], input="start=2048,size=20000\nstart=30000\n", text=True, check=True
    )
    sh("partx", "-u", disk, ok=False)
    part = f"{disk}p2"
    end = time.monotonic() + 5
    while not os.path.exists(part) and time.monotonic() < end:
        time.sleep(0.1)
    watch = TRACER.add_watch(*dev(part), ranges((5, 2)), Emit.READ_OK)
    assert io(part, [4, 5, 7]) == {4: 0, 5: 0, 7: 0}
    assert io(disk, [5, 30006]) == {5: 0, 30006: 0}
    seen = collect(TRACER.events, 2)
    where = ":".join(map(str, dev(disk)))
    assert [(e.sector, e.record().device) for e in seen] == [
        (30005, where),
        (30006, where),
    ], seen
    major, minor = dev(part)
    assert seen[0].part_dev == major << 20 | minor and seen[1].part_dev == seen[1].dev
    stats = TRACER.remove_watch(watch)
    assert stats.workload.reads_ok == 2, stats
    sh("losetup", "-d", disk)
    return [e.end_io for e in seen]


@check
def udev_and_own_reads_are_counted_apart() -> object:
    path, (major, minor) = broken()
    watch = TRACER.add_watch(major, minor, ranges((BAD, 8)), Emit.FAILED)
    for name in ("(udev-worker)", "systemd-udevd", "udev-worker"):
        assert io(path, [BAD], name=name) == {BAD: 5}
    fd = os.open(path, os.O_RDONLY)
    try:
        os.pread(fd, 512, BAD * 512)
    except OSError as exc:
        assert exc.errno == 5
    else:
        raise AssertionError("a bad sector was read")
    finally:
        os.close(fd)
    seen = collect(TRACER.events, 1)
    assert [e.comm for e in seen] == ["udev-worker"], seen
    stats = TRACER.remove_watch(watch)
    assert stats.udev.reads_failed == 2 and stats.workload.reads_failed == 1, stats
    assert stats.excluded.reads_failed >= 1, stats
    return str(stats)


@check
def thousands_of_ranges() -> object:
    disk = loop("many.img")
    draw = random.Random(3)  # noqa: S311
    sectors = sorted(draw.sample(range(1000, 100000), 5000))
    watch = TRACER.add_watch(*dev(disk), ranges(*((s, 1) for s in sectors)), Emit.READ_OK)
    other = TRACER.add_watch(*dev(disk), ranges((0, 131072)), Emit(0))
    tried = draw.sample(sectors, 300) + draw.sample(range(0, 131072), 700)
    tried += [sectors[0], sectors[-1], sectors[0] - 1, sectors[-1] + 1]
    tried = sorted(set(tried))
    io(disk, tried)
    expected = sorted(set(sectors) & set(tried))
    seen = sorted(e.sector for e in collect(TRACER.events, len(expected)))
    assert seen == expected
    # Four MiB are several requests: each is an event of its own, and none is missed.
    assert io(disk, [0], size=8192) == {0: 0}
    time.sleep(0.2)
    parts = sorted(collect(TRACER.events, 1), key=lambda e: e.sector)
    assert len(parts) > 1 and parts[0].sector == 0, parts
    assert [p.sector + p.nr_sectors for p in parts] == [*(p.sector for p in parts[1:]), 8192], parts
    assert TRACER.remove_watch(other).workload.reads_ok == len(tried) + len(parts)
    assert TRACER.remove_watch(watch).workload.reads_ok == len(seen) + len(parts)
    sh("losetup", "-d", disk)
    return [len(seen), len(parts)]


@check
def slots_run_out_by_name() -> object:
    disk = loop("slots.img")
    major, minor = dev(disk)
    ids = [TRACER.add_watch(major, minor, ranges((n, 1)), Emit(0)) for n in range(64)]
    assert len(set(ids)) == 64
    try:
        TRACER.add_watch(major, minor, ranges((99, 1)))
    except Refused as exc:
        said = str(exc)
    else:
        raise AssertionError("a 65th watch was taken")
    io(disk, [0, 5, 63, 64])
    io(disk, [0], size=64)
    stats = [TRACER.remove_watch(n).workload.reads_ok for n in ids]
    assert stats == [2 if n in (0, 5, 63) else 1 for n in range(64)], stats
    assert links() == 0
    sh("losetup", "-d", disk)
    return said


@check
def lost_events_are_counted() -> object:
    """64 watches see each read, so that 100 reads are more than the ring buffer holds."""
    disk = loop("lost.img")
    ids = [TRACER.add_watch(*dev(disk), ranges((0, 131072)), Emit.READ_OK) for _ in range(64)]
    assert select.select([TRACER.fileno()], [], [], 0)[0] == []
    io(disk, list(range(100)))
    assert select.select([TRACER.fileno()], [], [], 5)[0] == [TRACER.fileno()]
    seen = len(TRACER.events())
    stats = [TRACER.remove_watch(watch) for watch in ids]
    lost = sum(one.lost_events for one in stats)
    assert lost > 0 and seen + lost == 6400, (seen, lost)
    assert {one.workload.reads_ok for one in stats} == {100}
    assert TRACER.events() == []
    sh("losetup", "-d", disk)
    return [seen, lost]


@check
def parallel_writers_all_counted() -> object:
    disk = loop("par.img")
    watch = TRACER.add_watch(*dev(disk), ranges((0, 64)), Emit.WRITE_OK)
    children = [
        subprocess.Popen(
            [
                "dd",
                "if=/dev/zero",
                f"of={disk}",
                "bs=512",
                f"seek={n * 8}",
                "count=200",
                "oflag=direct",
            ],
            stderr=subprocess.DEVNULL,
        )
        for n in range(8)
    ]
    assert [child.wait(60) for child in children] == [0] * 8
    stats = TRACER.remove_watch(watch)
    expected = sum(sum(n * 8 + i < 64 for i in range(200)) for n in range(8))
    assert stats.workload.writes_ok == expected, (stats, expected)
    assert TRACER.health() == TraceHealth()
    sh("losetup", "-d", disk)
    return [expected, TRACER.recursion_misses()]


HOLDER = """
import os, sys, time
from nodeagent.backends.bio_trace import BioTracer
from nodeagent.model.ranges import Range
tracer = BioTracer()
tracer.add_watch(int(sys.argv[1]), int(sys.argv[2]), [Range(start=0, length=8)])
print("armed", flush=True)
time.sleep(100)
"""


@check
def nothing_outlives_a_killed_holder() -> object:
    TRACER.close()
    TRACER.close()
    assert wait_gone() == []
    disk = loop("kill.img")
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, *map(str, dev(disk))], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "armed\n"
    assert links() == 4
    spawned = subprocess.run(["ls", f"/proc/{child.pid}/fd"], capture_output=True, text=True).stdout
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert wait_gone() == []
    return spawned.split()


def wait_gone() -> list[str]:
    """Programs are freed after a grace period."""
    end = time.monotonic() + 5
    while programs() and time.monotonic() < end:
        time.sleep(0.05)
    return programs()


def end_watches() -> None:
    for watch in TRACER.watches():
        TRACER.remove_watch(watch)
    if programs():
        TRACER.events()


if __name__ == "__main__":
    main(end_watches)
