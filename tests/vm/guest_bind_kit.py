"""Tools of the checks that run inside a lab node as root: loop devices, mounts, witnesses.

Loop devices lie on memory files, so that no disk is needed.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nodeagent.backends.dmctl import DmControl
from nodeagent.bind.node import Node
from nodeagent.encode.dm import DevNum
from nodeagent.model.binding import BlockBinding, Guard
from nodeagent.model.errors import FaultError, Refused

WORK = Path(os.environ.get("BIND_WORK", "/tmp/bind"))


CHECKS: list[Callable[[], object]] = []


class Skip(Exception):
    """A tool or module that this node does not have."""


def check(function: Callable[[], object]) -> Callable[[], object]:
    CHECKS.append(function)
    return function


def sh(*argv: str, ok: bool = True) -> str:
    if shutil.which(argv[0]) is None:
        raise Skip(f"no {argv[0]}")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    if ok and done.returncode:
        raise AssertionError(f"{argv}: rc {done.returncode}: {done.stderr}")
    return done.stdout


def dm_table(major: int, minor: int) -> tuple[str, ...]:
    with DmControl() as control:
        table = control.table(DevNum(major, minor))
    return () if table is None else tuple(str(segment) for segment in table.segments)


NODE = Node(dm_table=dm_table)


@contextmanager
def loop(size_mib: int, *options: str, path: Path | None = None) -> Iterator[str]:
    path = path or WORK / f"{time.monotonic_ns()}.img"
    with path.open("ab") as file:
        file.truncate(size_mib << 20)
    device = sh("losetup", "--find", "--show", *options, str(path)).strip()
    try:
        yield device
    finally:
        sh("losetup", "-d", device, ok=False)
        path.unlink()


@contextmanager
def mounted(device: str, *mkfs: str, options: str = "defaults", at: str = "mnt") -> Iterator[Path]:
    if mkfs:
        sh(*mkfs, device)
    point = WORK / f"{at}.{time.monotonic_ns()}"
    point.mkdir()
    sh("mount", "-o", options, device, str(point))
    try:
        yield point
    finally:
        sh("umount", str(point))


EXT4 = ("mkfs.ext4", "-qF", "-O", "inline_data", "-I", "256")


XFS = ("mkfs.xfs", "-qf", "-m", "reflink=1,rmapbt=1")


def direct(device: str, start: int, length: int) -> bytes:
    """Sectors straight from a device: what lies there, no page cache in between."""
    fd = os.open(device, os.O_RDONLY | os.O_DIRECT)
    try:
        buffer = mmap.mmap(-1, max(length * 512, 4096))
        got = os.preadv(fd, [memoryview(buffer)[: length * 512]], start * 512)
        return buffer[:got]
    finally:
        os.close(fd)


def holds(binding: BlockBinding, data: bytes) -> None:
    """Every layer whose bytes are not transformed has the file's bytes at the mapped sectors."""
    file = binding.file
    assert file is not None
    encrypted = False
    for item in binding.layers:
        encrypted = encrypted or any(" crypt " in line for line in item.layer.table)
        if item.depth == 0:
            for e in file.extents:
                got = direct(item.layer.name, e.physical // 512, e.length // 512)
                want = data[e.logical : e.logical + e.length].ljust(e.length, b"\0")
                assert got == want, f"{item.layer.name}: other bytes at {e}"
        elif not encrypted and len(file.extents) == 1 and len(item.ranges) == 1:
            one = item.ranges[0]
            want = data[file.offset : file.offset + file.length].ljust(one.length * 512, b"\0")
            got = direct(item.layer.name, one.start, one.length)
            assert got == want, f"{item.layer.name}: other bytes at {one}"


def filefrag(path: Path) -> list[tuple[int, int, int, str]]:
    """(logical, physical, length, flags) in bytes, by the second tool."""
    rows = re.findall(
        r"^\s*\d+:\s*(\d+)\.\.\s*\d+:\s*(\d+)\.\.\s*\d+:\s*(\d+):(.*)$",
        sh("filefrag", "-v", "-b512", str(path)), re.MULTILINE,
    )  # fmt: skip
    return [
        (int(a) * 512, int(b) * 512, int(c) * 512, f.split(":")[-1].strip()) for a, b, c, f in rows
    ]


def fragmented(path: Path, pieces: int = 6, size: int = 16384) -> bytes:
    """A file in several extents: others are written and flushed between its parts."""
    data = b""
    for number in range(pieces):
        part = os.urandom(size)
        with path.open("ab") as file:
            file.write(part)
            os.fsync(file.fileno())
        other = path.with_name(f"{path.name}.{number}")
        other.write_bytes(os.urandom(size))
        fd = os.open(other, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        data += part
    return data


def refused(says: str, call: Callable[[], object], kind: type[FaultError] = Refused) -> None:
    try:
        call()
    except kind as exc:
        text = f"{exc.what} | {exc.why} | {exc.hint}"
        assert re.search(says, text), text
        return
    raise AssertionError(f"not refused: {says}")


def kinds(found: tuple[Guard, ...]) -> dict[tuple[str, str], Guard]:
    return {(g.kind, g.what): g for g in found}


@contextmanager
def dm(name: str, table: str) -> Iterator[str]:
    subprocess.run(
        ["dmsetup", "create", name, "--noudevsync"], input=table, text=True, check=True, timeout=60
    )
    device = f"/dev/mapper/{name}"
    if not Path(device).exists():
        sh("dmsetup", "mknodes", name)
    try:
        yield device
    finally:
        sh("dmsetup", "remove", "--noudevsync", "--retry", name)


def need_dm() -> None:
    sh("modprobe", "dm_mod", ok=False)
    if shutil.which("dmsetup") is None or not Path("/dev/mapper/control").exists():
        raise Skip("no device-mapper")


def run(function: Callable[[], object]) -> dict[str, object]:
    try:
        detail = function()
    except Skip as why:
        return {"check": function.__name__, "ok": True, "skip": str(why)}
    except Exception:  # noqa: BLE001 - whatever it is, it goes to the host as a line
        return {"check": function.__name__, "ok": False, "detail": traceback.format_exc()}
    return {"check": function.__name__, "ok": True, "detail": str(detail)}


def main() -> int:
    ctypes.CDLL(None).unshare(0x20000)  # CLONE_NEWNS: our mounts die with us
    sh("mount", "--make-rprivate", "/")
    if shutil.which("modprobe"):
        sh("modprobe", "-qa", "loop", "dm_mod", ok=False)
    WORK.mkdir(exist_ok=True)
    sh("mount", "-t", "tmpfs", "-o", "size=70%", "bind", str(WORK))
    failed = 0
    wanted = sys.argv[1:]
    for function in CHECKS:
        if wanted and function.__name__ not in wanted:
            continue
        result = run(function)
        failed += not result["ok"]
        print(json.dumps(result), flush=True)
    sh("umount", "-l", str(WORK))
    print(json.dumps({"check": "end", "ok": not failed, "detail": str(failed)}), flush=True)
    return 1 if failed else 0
