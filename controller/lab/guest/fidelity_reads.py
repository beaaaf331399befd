"""Reads a block device in every way that matters and says how each one ended.

Runs in the guest, shares no code with faultctl. Standard input: {"device": path, "sector": first
bad 512-byte sector, "sectors": how many, "toggle_on": shell command that makes them bad,
"toggle_off": the way back, "write": whether to try write-then-read}. Output: a list of
{"row", "result", "log", "note"}; `log` has the kernel's lines, digits replaced.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

PAGE = 4096
Asked = dict[str, Any]


def named(exc: OSError) -> str:
    return errno.errorcode.get(exc.errno or 0, str(exc.errno))


def direct(device: str, offset: int, length: int, write: bool = False) -> str:
    flags = os.O_DIRECT | (os.O_WRONLY if write else os.O_RDONLY)
    fd = os.open(device, flags)
    buffer = mmap.mmap(-1, length)
    try:
        done = os.pwritev(fd, [buffer], offset) if write else os.preadv(fd, [buffer], offset)
        return f"{done} bytes"
    except OSError as exc:
        return named(exc)
    finally:
        os.close(fd)


def drop(device: str) -> None:
    fd = os.open(device, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def buffered(device: str, offset: int, length: int, advice: int | None = None) -> str:
    fd = os.open(device, os.O_RDONLY)
    try:
        if advice is not None:
            os.posix_fadvise(fd, 0, 0, advice)
        return f"{len(os.pread(fd, length, offset))} bytes"
    except OSError as exc:
        return named(exc)
    finally:
        os.close(fd)


def sequential(device: str, start: int, bad: int, step: int = PAGE) -> str:
    """How far a reader comes that goes on from `start` in pages, relative to the bad sector."""
    fd = os.open(device, os.O_RDONLY)
    at = start
    try:
        while at < bad + 2 * PAGE:
            os.pread(fd, step, at)
            at += step
        return "no error"
    except OSError as exc:
        return f"{named(exc)} at {at - bad:+d} bytes"
    finally:
        os.close(fd)


def mapped(device: str, offset: int) -> str:
    """The signal that a touch of a mapped page gets."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGBUS, signal.SIG_DFL)
        fd = os.open(device, os.O_RDONLY)
        view = mmap.mmap(fd, PAGE, mmap.MAP_SHARED, mmap.PROT_READ, offset=offset // PAGE * PAGE)
        os._exit(view[offset % PAGE] & 0)
    _, status = os.waitpid(pid, 0)
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "read"


def by_fio(device: str, engine: str, offset: int) -> str:
    argv = ["fio", "--name=x", f"--filename={device}", "--rw=read", "--bs=4096", "--direct=1"]
    argv += [f"--ioengine={engine}", f"--offset={offset}", "--size=4096", "--output-format=json"]
    argv += ["--allow_file_create=0", "--readonly"]
    out = subprocess.run(argv, capture_output=True, text=True).stdout
    try:
        error = json.loads(out[out.index("{") :])["jobs"][0]["error"]
    except (ValueError, KeyError, IndexError):
        return "fio gave no result"
    return errno.errorcode.get(error, str(error)) if error else "4096 bytes"


class Log:
    """Kernel log lines that a read caused."""

    def __init__(self) -> None:
        self.fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self.fd, 0, os.SEEK_END)

    def new(self) -> list[str]:
        time.sleep(0.05)
        lines: list[str] = []
        while True:
            try:
                line = os.read(self.fd, 8192).decode(errors="replace")
            except BlockingIOError:
                return lines
            except OSError:
                continue
            text = line.partition(";")[2].split("\n")[0]
            if "error" in text.lower() and "callbacks suppressed" not in text:
                lines.append(re.sub(r"\d+", "N", re.sub(r"dev [\w-]+", "dev DEV", text)))


def stats(device: str) -> tuple[int, int]:
    """(reads, sectors read) of a device in /proc/diskstats, by its number."""
    rdev = os.stat(device).st_rdev
    number = [str(os.major(rdev)), str(os.minor(rdev))]
    with open("/proc/diskstats") as lines:
        for line in lines:
            words = line.split()
            if words[:2] == number:
                return int(words[3]), int(words[5])
    return 0, 0


def rows(asked: Asked) -> Iterator[tuple[str, Callable[[], str]]]:
    device, bad = asked["device"], asked["sector"] * 512
    size = asked["sectors"] * 512
    yield "direct 512 B, first bad sector", lambda: direct(device, bad, 512)
    yield "direct 512 B, last bad sector", lambda: direct(device, bad + size - 512, 512)
    yield "direct 512 B, sector before", lambda: direct(device, bad - 512, 512)
    yield "direct 512 B, sector after", lambda: direct(device, bad + size, 512)
    yield "direct 4 KiB, partial overlap", lambda: direct(device, bad - 2048, PAGE)
    yield (
        "direct 1 MiB across the bad sectors",
        lambda: direct(device, bad - (bad % (1 << 19)), 1 << 20),
    )
    yield "buffered 4 KiB", lambda: buffered(device, bad, PAGE)
    yield "buffered 1 byte", lambda: buffered(device, bad + 100, 1)
    yield "buffered, no readahead", lambda: buffered(device, bad, PAGE, os.POSIX_FADV_RANDOM)
    yield "sequential reader with readahead", lambda: sequential(device, bad - 16 * PAGE, bad)
    yield "mmap", lambda: mapped(device, bad)
    yield "io_uring, direct 4 KiB", lambda: by_fio(device, "io_uring", bad)
    yield "libaio, direct 4 KiB", lambda: by_fio(device, "libaio", bad)


def take(
    device: str, log: Log, row: str, action: Callable[[], str], pause: float
) -> dict[str, object]:
    time.sleep(pause)  # the kernel prints ten lines of a kind in 5 s, and no more
    drop(device)
    log.new()
    before = stats(device)
    result = action()
    after = stats(device)
    lines = log.new()
    note = f"{after[0] - before[0]} reads, {after[1] - before[1]} sectors in diskstats"
    return {"row": row, "result": result, "log": sorted(set(lines)), "note": note}


def shell(command: str) -> None:
    if command:
        subprocess.run(command, shell=True, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    asked = json.load(sys.stdin)
    device, bad = asked["device"], asked["sector"] * 512
    log = Log()
    found: list[dict[str, object]] = []
    shell(asked["toggle_off"])
    keeper = os.open(device, os.O_RDONLY)  # the last close of a device drops its page cache
    buffered(device, bad, PAGE)
    shell(asked["toggle_on"])
    log.new()
    cached = buffered(device, bad, PAGE)
    found.append(
        {
            "row": "buffered 4 KiB, in the page cache before",
            "result": cached,
            "log": sorted(set(log.new())),
            "note": "",
        }
    )
    for row, action in rows(asked):
        found.append(take(device, log, row, action, asked["pause"]))
    if asked["write"]:

        def write_then_read() -> str:
            wrote = direct(device, bad, asked["sectors"] * 512, write=True)
            time.sleep(asked.get("settle", 0))
            return f"write {wrote}, read {direct(device, bad, 512)}"

        row = "direct write, then direct read"
        found.append(take(device, log, row, write_then_read, asked["pause"]))
    os.close(keeper)
    shell(asked["toggle_off"])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
