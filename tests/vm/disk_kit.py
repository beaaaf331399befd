"""What the VM tests of disk kinds share: raw volumes, and tools that know nothing of us."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from agentkit import Bench

from protos import faultd_pb2 as pb

FLAVOURS = ("debian-12", "debian-13", "full")
DEVICE = {"type": "device", "device": "/dev/mapper/raw"}

# One O_DIRECT operation by plain system calls; prints its errno and its milliseconds.
_IO = r"""
import errno, json, mmap, os, sys, time
path, op, offset, length, fill = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
fd = os.open(path, os.O_RDWR | os.O_DIRECT)
buffer = mmap.mmap(-1, length)
if op == "write":
    buffer[:] = bytes([fill]) * length
started, name = time.monotonic(), "ok"
try:
    if op == "read":
        os.preadv(fd, [buffer], offset)
    elif op == "write":
        os.pwritev(fd, [buffer], offset)
    else:
        os.fsync(fd)
except OSError as exc:
    name = errno.errorcode[exc.errno]
took = (time.monotonic() - started) * 1000
odd = {at: value for at, value in enumerate(buffer[:]) if value != fill}
print(json.dumps({"result": name, "ms": took, "odd": odd if len(odd) < 20 else len(odd)}))
"""


def io(
    bench: Bench,
    op: str,
    path: str = "/dev/mapper/raw",
    *,
    at: int = 0,
    size: int = 4096,
    fill: int = 0,
) -> dict[str, Any]:
    """read, write or flush: its errno, its milliseconds, and bytes that are not `fill`."""
    words = ["python3", "-c", _IO, path, op, str(at), str(size), str(fill)]
    found: dict[str, Any] = json.loads(bench.node.run(words, timeout=60).out)
    return found


def results(bench: Bench, path: str = "/dev/mapper/raw") -> tuple[str, str, str]:
    """How a read, a write and a flush of a device fare."""
    read, write, flush = (io(bench, op, path)["result"] for op in ("read", "write", "flush"))
    return read, write, flush


@contextmanager
def raw_volume(bench: Bench, disk: str = "d1", name: str = "raw") -> Iterator[str]:
    """A prepared volume without a file system; its faults and itself gone afterwards."""
    bench.client.volumes(
        pb.VolumeRequest.PREPARE, device=f"/dev/disk/by-id/virtio-{disk}", name=name
    )
    try:
        yield f"/dev/mapper/{name}"
    finally:
        for fault in reversed(bench.client.faults(active_only=True)):
            bench.client.revert(fault.id)
        bench.client.volumes(pb.VolumeRequest.RELEASE, name=name)


def dd(bench: Bench, path: str, block: int, count: int = 1, op: str = "read") -> str:
    """dd of 4 KiB blocks with O_DIRECT: `ok` or its error."""
    how = f"if={path} of=/dev/null skip={block} iflag=direct"
    if op == "write":
        how = f"if=/dev/zero of={path} seek={block} oflag=direct conv=notrunc"
    result = bench.node.run(f"dd bs=4096 count={count} {how} 2>&1", check=False, timeout=60)
    return "ok" if result.code == 0 else result.out.strip().splitlines()[0].rpartition(": ")[2]


def completed(bench: Bench, disk: str = "d1") -> tuple[int, int]:
    """(reads, writes) that a disk itself has completed: fields 1 and 5 of its stat file."""
    name = bench.node.sh(f"basename $(readlink -f /dev/disk/by-id/virtio-{disk})").strip()
    words = bench.node.sh(f"cat /sys/block/{name}/stat").split()
    return int(words[0]), int(words[4])


def fio(bench: Bench, path: str, rw: str, ios: int) -> dict[str, Any]:
    """So many 4 KiB direct I/Os by fio, one at a time; fio's own numbers of that direction."""
    out = bench.node.sh(
        f"fio --name=t --filename={path} --rw={rw} --bs=4k --size={ios * 4}k --direct=1 "
        "--ioengine=psync --allow_mounted_write=1 --output-format=json",
        timeout=120,
    )
    found: dict[str, Any] = json.loads(out[out.index("{") :])["jobs"][0][rw]
    return found


def fsck(bench: Bench, device: str, mount: str) -> str:
    """Unmount, e2fsck -f, mount again; `clean`, or what it said.

    Exit code 1 with nothing but a replayed journal is clean: the node was not shut down.
    """
    node = bench.node
    node.sh(f"umount {mount}", timeout=60)
    result = node.run(f"e2fsck -f -p {device}", check=False, timeout=120)
    node.sh(f"mount {device} {mount}", timeout=60)
    said = [
        line
        for line in result.out.splitlines()
        if line and not re.search(r"recovering journal|\d+/\d+ files", line)
    ]
    return "clean" if result.code in (0, 1) and not said else result.out + result.err


def quiet_ext4(bench: Bench, mount: str) -> None:
    """No background initialisation of inode tables, which writes for minutes after mkfs."""
    bench.node.sh(f"mount -o remount,noinit_itable {mount} && sync")


def wait_until(bench: Bench, done: Callable[[], bool], timeout: float = 10.0) -> None:
    deadline = bench.node.deadline(timeout)
    while not done():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.1)
