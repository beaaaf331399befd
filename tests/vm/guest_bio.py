"""Runs inside a lab node as root: helpers of guest_bio_trace.py and guest_bio_fail.py.

Each prints one JSON line a check: {"check", "ok", "detail"}; dd, dmsetup, losetup and bpftool
are the witnesses.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from nodeagent.backends.bio_fail import FailSpec
from nodeagent.encode.bpf_maps import BioEvent
from nodeagent.model.ranges import Range, Ranges

WORK = Path("/tmp/bio")
CHECKS: list[Callable[[], object]] = []
Check = Callable[[], object]

# Reads or writes single sectors in a process of its own; prints sector -> errno.
WORKER = """
import ctypes, json, mmap, os, sys
path, op, size, name = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
sectors = sys.stdin.read()
if name:
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)
buffer = mmap.mmap(-1, size * 512 + 4096)
view = memoryview(buffer)[: size * 512]
fd = os.open(path, os.O_RDWR | os.O_DIRECT)
done = {}
for sector in json.loads(sectors):
    try:
        if op == "read":
            os.preadv(fd, [view], sector * 512)
        else:
            os.pwritev(fd, [view], sector * 512)
        done[sector] = 0
    except OSError as exc:
        done[sector] = exc.errno
print(json.dumps([os.getpid(), done]))
"""


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


def sh(*argv: str, ok: bool = True) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    if ok and done.returncode:
        raise AssertionError(f"{argv}: rc {done.returncode}: {done.stderr}")
    return done.stdout


def io(
    path: str, sectors: list[int], op: str = "read", size: int = 1, name: str = ""
) -> dict[int, int]:
    """errno by sector, from a process that is not this one."""
    return io_pid(path, sectors, op, size, name)[1]


def io_pid(
    path: str, sectors: list[int], op: str = "read", size: int = 1, name: str = ""
) -> tuple[int, dict[int, int]]:
    done = subprocess.run(
        [sys.executable, "-c", WORKER, path, op, str(size), name],
        input=json.dumps(sectors),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    pid, found = json.loads(done.stdout)
    return pid, {int(sector): code for sector, code in found.items()}


def dd(path: str, sector: int, *more: str) -> tuple[int, int, str]:
    """dd's pid, exit status and words for one 512-byte read."""
    child = subprocess.Popen(
        ["dd", f"if={path}", "of=/dev/null", "bs=512", f"skip={sector}", "count=1", *more],
        stderr=subprocess.PIPE,
        text=True,
    )
    _, words = child.communicate(timeout=60)
    return child.pid, child.returncode, words


def loop(name: str, mib: int = 64, *more: str) -> str:
    """A loop device on a file in memory."""
    WORK.mkdir(exist_ok=True)
    path = WORK / name
    with path.open("wb") as file:
        file.truncate(mib << 20)
    return sh("losetup", "--find", "--show", *more, str(path)).strip()


def dev(path: str) -> tuple[int, int]:
    found = os.stat(path).st_rdev
    return os.major(found), os.minor(found)


def ranges(*pairs: tuple[int, int]) -> list[Range]:
    return [Range(start=start, length=length) for start, length in pairs]


def spec(path: str, *pairs: tuple[int, int], **more: object) -> FailSpec:
    major, minor = dev(path)
    return FailSpec(major, minor, tuple(ranges(*pairs)), **more)  # type: ignore[arg-type]


def pairs(found: Ranges) -> list[tuple[int, int]]:
    return [(one.start, one.length) for one in found]


def collect(events: Callable[[], list[BioEvent]], count: int) -> list[BioEvent]:
    """At least so many events, or what came within 5 s."""
    found: list[BioEvent] = []
    end = time.monotonic() + 5
    while len(found) < count and time.monotonic() < end:
        found += events()
        time.sleep(0.01)
    return found


def programs() -> list[str]:
    """Names of our BPF programs that the kernel has, by bpftool."""
    return [
        p["name"]
        for p in json.loads(sh("bpftool", "-j", "prog", "list"))
        if "fc_" in p.get("name", "")
    ]


def links() -> int:
    """How many of our programs are attached, by bpftool."""
    progs = {
        p["id"]
        for p in json.loads(sh("bpftool", "-j", "prog", "list"))
        if "fc_" in p.get("name", "")
    }
    return sum(
        link.get("prog_id") in progs for link in json.loads(sh("bpftool", "-j", "link", "list"))
    )


def main(tidy: Callable[[], None]) -> None:
    """Run all checks; `tidy` after each, so that a failed one does not fail the next."""
    WORK.mkdir(exist_ok=True)
    for module in ("loop", "dm_mod"):  # nothing to do where they are built in
        sh("modprobe", "-q", module, ok=False)
    for function in CHECKS:
        line: dict[str, object] = {"check": function.__name__}
        started = time.monotonic()
        try:
            line |= {"ok": True, "detail": function()}
        except Exception:  # noqa: BLE001
            line |= {"ok": False, "detail": traceback.format_exc()}
        tidy()
        line["seconds"] = round(time.monotonic() - started, 2)
        print(json.dumps(line), flush=True)
    print(json.dumps({"check": "all", "ok": True, "detail": None}), flush=True)
