"""Runs in the guest: what a 512-byte direct read costs with the block-layer programs armed.

Meant for the instruction-counting clock, where a nanosecond is an instruction. All reads
miss the bad sectors, so they are what everybody else pays. Prints one JSON object.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import time

from nodeagent.backends.bio_fail import BioFailer, FailSpec
from nodeagent.backends.bio_trace import BioTracer
from nodeagent.encode.bpf_maps import Emit
from nodeagent.model.ranges import Range, Ranges

DISK, OTHER = "/dev/nullb0", "/dev/vda"
READS = 1500
DRAW = random.Random(1)  # noqa: S311
# Even sectors are read, odd ones are bad.
OFFSETS = [DRAW.randrange(0, 1 << 20) * 2 * 512 for _ in range(READS)]
FD = os.open(DISK, os.O_RDONLY | os.O_DIRECT)
BUFFER = [memoryview(mmap.mmap(-1, 4096))[:512]]


def read_ns() -> int:
    best = 1 << 62
    for _ in range(2):
        begin = time.perf_counter_ns()
        for offset in OFFSETS:
            os.preadv(FD, BUFFER, offset)
        best = min(best, time.perf_counter_ns() - begin)
    return best // READS


def dev(path: str) -> tuple[int, int]:
    found = os.stat(path).st_rdev
    return os.major(found), os.minor(found)


def odd(count: int) -> Ranges:
    chosen = DRAW.sample(range(1 << 20), count)
    return tuple(Range(start=2 * sector + 1, length=1) for sector in chosen)


def failing(found: dict[str, int]) -> None:
    begin = time.perf_counter_ns()
    failer = BioFailer()
    found["load bio_fail"] = time.perf_counter_ns() - begin
    found["loaded, nothing armed"] = read_ns()
    for name, path, count in (
        ("armed on another disk", OTHER, 1),
        ("1 range", DISK, 1),
        ("1,000 ranges", DISK, 1000),
        ("100,000 ranges", DISK, 100_000),
    ):
        ranges = odd(count) if path == DISK else (Range(start=1, length=1),)
        begin = time.perf_counter_ns()
        slot = failer.arm(FailSpec(*dev(path), ranges))
        found[f"arm: {name}"] = time.perf_counter_ns() - begin
        found[name] = read_ns()
        failer.disarm(slot)
    slots = [failer.arm(FailSpec(*dev(DISK), odd(1))) for _ in range(50)]
    found["50 faults on this disk"] = read_ns()
    for slot in slots:
        failer.disarm(slot)
    failer.close()


def tracing(found: dict[str, int]) -> None:
    begin = time.perf_counter_ns()
    tracer = BioTracer()
    found["load bio_trace"] = time.perf_counter_ns() - begin
    for name, path, ranges in (
        ("watch on another disk", OTHER, (Range(start=1, length=1),)),
        ("watch of 3,000 ranges, missed", DISK, odd(3000)),
        ("watch that counts every read", DISK, (Range(start=0, length=1 << 21),)),
    ):
        watch = tracer.add_watch(*dev(path), ranges, Emit(0))
        found[name] = read_ns()
        tracer.remove_watch(watch)
    tracer.close()


def main() -> None:
    found = {"unhooked": read_ns()}
    failing(found)
    tracing(found)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
