"""Runs inside a lab node as root: many, long, random and scoped ranges of bio_fail."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from guest_bio import (
    WORK,
    WORKER,
    check,
    io,
    loop,
    main,
    pairs,
    programs,
    sh,
    spec,
)

from nodeagent.backends.bio_fail import BioFailer
from nodeagent.bind.process import cgroup_at, scope_at
from nodeagent.model.errors import Refused

FAILER = BioFailer()
EIO = 5


@check
def hundred_thousand_ranges() -> object:
    disk = loop("many.img", 512)
    draw = random.Random(11)  # noqa: S311
    sectors = sorted(draw.sample(range(0, 1 << 20), 100_000))
    wanted = spec(disk, *((s, 1) for s in sectors))
    started = time.monotonic()
    slot = FAILER.arm(wanted)
    armed = time.monotonic() - started
    started = time.monotonic()
    back = FAILER.still_bad(slot)
    read = time.monotonic() - started
    assert sum(one.length for one in back) == 100_000
    bad = set(sectors)
    tried = draw.sample(sectors, 400) + draw.sample(range(0, 1 << 20), 600)
    tried += [sectors[0], sectors[-1], sectors[-1] + 1]
    found = io(disk, tried)
    assert all((code == EIO) == (sector in bad) for sector, code in found.items())
    assert set(found.values()) == {0, EIO}
    FAILER.disarm(slot)
    FAILER.events()
    sh("losetup", "-d", disk)
    return {"arm_s": round(armed, 3), "read_back_s": round(read, 3)}


@check
def long_ranges_and_mixtures() -> object:
    disk = loop("long.img", 256)
    size = 256 << 11
    slot = FAILER.arm(spec(disk, (10, 1), (1000, 40000), (200000, 100000), (size - 1, 1)))
    edges = {9: 0, 10: EIO, 11: 0, 999: 0, 1000: EIO, 40999: EIO, 41000: 0}
    edges |= {199999: 0, 200000: EIO, 299999: EIO, 300000: 0, size - 2: 0, size - 1: EIO}
    assert io(disk, list(edges)) == edges
    assert io(disk, [41000, 300000], size=2048) == {41000: 0, 300000: 0}
    assert io(disk, [990], size=2048) == {990: EIO}
    assert pairs(FAILER.still_bad(slot)) == [
        (10, 1),
        (1000, 40000),
        (200000, 100000),
        (size - 1, 1),
    ]
    FAILER.disarm(slot)
    slot = FAILER.arm(spec(disk, (0, size), heal=True))
    assert io(disk, [77777], op="write", size=100) == {77777: 0}
    assert pairs(FAILER.still_bad(slot)) == [(0, 77777), (77877, size - 77877)]
    FAILER.disarm(slot)
    FAILER.events()
    sh("losetup", "-d", disk)
    return True


@check
def rate_is_seeded() -> object:
    disk = loop("rate.img")
    sectors = list(range(1000))
    runs = []
    for seed in (1, 1, 2):
        slot = FAILER.arm(spec(disk, (0, 1000), rate_ppm=300_000, seed=seed, events=False))
        found = io(disk, sectors)
        stats = FAILER.disarm(slot)
        assert stats.draws == 1000 and stats.lost_events == 0
        runs.append([s for s in sectors if found[s]])
        assert stats.workload.reads_failed == len(runs[-1])
    assert runs[0] == runs[1] != runs[2]
    assert all(240 < len(run) < 360 for run in runs), [len(run) for run in runs]
    sh("losetup", "-d", disk)
    return [len(run) for run in runs]


@check
def only_a_cgroup() -> object:
    disk = loop("scope.img")
    inner = Path("/sys/fs/cgroup/fc-test/inner")
    beside = Path("/sys/fs/cgroup/fc-test-other")
    for group in (inner, beside):
        group.mkdir(parents=True, exist_ok=True)
    scope = scope_at(inner.parent)
    assert scope.level == 1
    slot = FAILER.arm(spec(disk, (50, 1), scope=scope))
    assert io(disk, [50]) == {50: 0}
    codes = []
    for group in (inner, inner.parent, beside):
        enter = f"open('{group}/cgroup.procs','w').write('0')\n"
        done = subprocess.run(
            [sys.executable, "-c", enter + WORKER, disk, "read", "1", ""],
            input="[50, 51]",
            capture_output=True,
            text=True,
        )
        codes.append(done.stdout.split("] ")[-1].strip())
    assert ['"50": 5' in code for code in codes] == [True, True, False], codes
    assert all('"51": 0' in code for code in codes), codes
    assert FAILER.disarm(slot).workload.reads_failed == 2
    for group in (inner, inner.parent, beside):
        group.rmdir()
    try:
        cgroup_at(str(WORK), "no scope")
    except Refused as exc:
        sh("losetup", "-d", disk)
        return str(exc)
    raise AssertionError("a plain folder was taken as a cgroup")


def disarm_all() -> None:
    for slot in FAILER.armed():
        FAILER.disarm(slot)
    if programs():
        FAILER.events()


if __name__ == "__main__":
    main(disarm_all)
