"""Whether this kernel's dm-flakey really corrupts: tried on private devices over dm-zero.

No version tells. On older kernels reads are not corrupted at all: flakey_end_io looks for
data in a bio whose iterator is at its end. Before Linux 6.5 a corrupted write changes the
writer's own memory instead of a copy (corrupt_bio_data in drivers/md/dm-flakey.c).
Measured: Debian's 6.1.0-57 does both wrong, its 6.12.118 both right.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

from nodeagent.backends.dm_nodes import private_node
from nodeagent.backends.dmctl import DmControl
from nodeagent.encode.dm import DevNum, Segment, Table
from nodeagent.encode.dm_targets import CorruptByte, FlakeyFeatures, flakey, zero

CORRUPTS_READS = "corrupts_reads"
CORRUPTS_WRITES = "corrupts_writes"
_SECTORS = 8
_MARK = 0xA5
_DOWN_S = 1 << 30


def corrupting(control: DmControl) -> frozenset[str]:
    """Which of CORRUPTS_READS and CORRUPTS_WRITES hold here.

    Raises OSError where a private device cannot be made.
    """
    found = set()
    with _device(control, "zero", Table((Segment(0, _SECTORS, *zero()),))) as below:
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
def _flakey(control: DmControl, below: DevNum, direction: str) -> Iterator[DevNum]:
    byte = CorruptByte(1, "r" if direction == "r" else "w", _MARK)
    target = flakey(below, 0, 0, _DOWN_S, FlakeyFeatures(corrupt=byte))
    with _device(control, direction, Table((Segment(0, _SECTORS, *target),))) as dev:
        yield dev


@contextmanager
def _device(control: DmControl, word: str, table: Table) -> Iterator[DevNum]:
    name = f"faultctl-probe-{os.getpid()}-{word}"
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
        with mmap.mmap(-1, _SECTORS * 512) as buffer:
            yield fd, buffer
    finally:
        os.close(fd)
