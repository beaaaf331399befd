"""Whether this kernel's dm-flakey really corrupts: tried over a private loop device.

No version tells. On older kernels reads are not corrupted at all: flakey_end_io looks for
data in a bio whose iterator is at its end by then. Before Linux 6.5 a corrupted write changes
the writer's own memory instead of a copy (corrupt_bio_data in drivers/md/dm-flakey.c).
Measured: Debian's 6.1.0-57 does both wrong, its 6.12.118 both right. A dm-zero device below
would not do: it leaves the iterator alone, and reads seem to be corrupted on any kernel.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from nodeagent.backends.dm_nodes import private_node
from nodeagent.backends.dmctl import DmControl
from nodeagent.encode.dm import DevNum, Segment, Table
from nodeagent.encode.dm_targets import CorruptByte, FlakeyFeatures, flakey

TRIED = "tried"
CORRUPTS_READS = "corrupts_reads"
CORRUPTS_WRITES = "corrupts_writes"
_BYTES = 4096
_MARK = 0xA5
_DOWN_S = 1 << 30

# include/uapi/linux/loop.h, include/linux/miscdevice.h
_LOOP_CTL_GET_FREE = 0x4C82
_LOOP_CONFIGURE = 0x4C0A
_LO_FLAGS_AUTOCLEAR = 4
_LOOP_CONTROL = DevNum(10, 237)
_LOOP_CONFIG = struct.Struct("=II 40x III I 176x 64x")


def corrupting(control: DmControl) -> frozenset[str]:
    """TRIED, and which of CORRUPTS_READS and CORRUPTS_WRITES hold here.

    Raises OSError where no private device can be made (no loop driver).
    """
    found = {TRIED}
    with _loop() as below:
        with _flakey(control, below, "r") as dev, _open(dev) as (fd, buffer):
            os.preadv(fd, [buffer], 0)
            if buffer[0] == _MARK:
                found.add(CORRUPTS_READS)
        with _flakey(control, below, "w") as dev, _open(dev) as (fd, buffer):
            buffer[0] = 1
            os.pwritev(fd, [buffer], 0)
            if buffer[0] == 1:
                found.add(CORRUPTS_WRITES)
    return frozenset(found)


@contextmanager
def _loop() -> Iterator[DevNum]:
    """A loop device over memory; the kernel clears it at its last close, ours or a crash's."""
    memory = os.memfd_create("faultctl-probe", os.MFD_CLOEXEC)
    try:
        os.ftruncate(memory, _BYTES)
        with private_node(_LOOP_CONTROL, stat.S_IFCHR) as path:
            control = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fd, dev = _configured(control, memory)
        finally:
            os.close(control)
        try:
            yield dev
        finally:
            os.close(fd)
    finally:
        os.close(memory)


def _configured(control: int, memory: int) -> tuple[int, DevNum]:
    """A free loop device, set up. Others may take the free one first: a few tries."""
    config = bytearray(_LOOP_CONFIG.pack(memory, 512, 0, 0, 0, _LO_FLAGS_AUTOCLEAR))
    for attempt in range(5):
        number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
        dev = DevNum.parse(Path(f"/sys/block/loop{number}/dev").read_text().strip())
        with private_node(dev) as path:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, _LOOP_CONFIGURE, config)
        except OSError as exc:
            os.close(fd)
            if exc.errno != errno.EBUSY or attempt == 4:
                raise
            continue
        return fd, dev
    raise AssertionError


@contextmanager
def _flakey(control: DmControl, below: DevNum, direction: Literal["r", "w"]) -> Iterator[DevNum]:
    features = FlakeyFeatures(corrupt=CorruptByte(1, direction, _MARK))
    target = flakey(below, 0, 0, _DOWN_S, features)
    name = f"faultctl-probe-{os.getpid()}-{direction}"
    table = Table((Segment(0, _BYTES // 512, *target),))
    dev = control.create_active(name, f"FAULTCTL-{name}", table)
    try:
        yield dev
    finally:
        control.remove(dev)


@contextmanager
def _open(dev: DevNum) -> Iterator[tuple[int, mmap.mmap]]:
    with private_node(dev) as path:
        fd = os.open(path, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
    try:
        with mmap.mmap(-1, _BYTES) as buffer:
            yield fd, buffer
    finally:
        os.close(fd)
