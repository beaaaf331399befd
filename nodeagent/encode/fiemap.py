"""FS_IOC_FIEMAP and FS_IOC_GETFSMAP: the bytes of the requests and of the answers.

Layouts: include/uapi/linux/fiemap.h, include/uapi/linux/fsmap.h, include/uapi/linux/fs.h.
Native byte order; ioctl numbers are those of asm-generic/ioctl.h (x86, arm, riscv, s390).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

FS_IOC_FIEMAP = 0xC020660B
FS_IOC_GETFSMAP = 0xC0C0583B
FS_IOC_FSGETXATTR = 0x801C581F
FS_IOC_GETVERSION = 0x80087601

FIEMAP_FLAG_SYNC = 0x1
FIEMAP_MAX_OFFSET = (1 << 64) - 1
EXTENT_LAST = 0x1
EXTENT_UNWRITTEN = 0x800
EXTENT_MERGED = 0x1000
EXTENT_FLAGS = {
    0x1: "LAST",
    0x2: "UNKNOWN",
    0x4: "DELALLOC",
    0x8: "ENCODED",
    0x80: "DATA_ENCRYPTED",
    0x100: "NOT_ALIGNED",
    0x200: "DATA_INLINE",
    0x400: "DATA_TAIL",
    0x800: "UNWRITTEN",
    0x1000: "MERGED",
    0x2000: "SHARED",
}
HARMLESS_FLAGS = EXTENT_LAST | EXTENT_MERGED
"""Flags that leave fe_physical exact and the sectors the file's own."""

XFLAG_REALTIME = 0x1
XFLAG_DAX = 0x8000

FMR_OF_ATTR_FORK = 0x2
FMR_OF_EXTENT_MAP = 0x4
FMR_OF_SPECIAL_OWNER = 0x10
FMR_OF_LAST = 0x20
FMR_OWN_FREE = 1
FMR_OWN_UNKNOWN = 2

_FIEMAP = struct.Struct("=QQIIII")
_EXTENT = struct.Struct("=QQQ16xI12x")
_FSMAP_HEAD = struct.Struct("=IIII48x")
_FSMAP = struct.Struct("=IIQQQQ24x")
_FSXATTR = struct.Struct("=IIIII8x")
_U32, _U64 = (1 << 32) - 1, (1 << 64) - 1


class RawExtent(NamedTuple):
    """struct fiemap_extent; offsets and length in bytes, physical on the file system's device."""

    logical: int
    physical: int
    length: int
    flags: int


class Fsmap(NamedTuple):
    """struct fsmap; bytes on `device` (a 32-bit dev_t where FMH_OF_DEV_T is set)."""

    device: int
    flags: int
    physical: int
    owner: int
    offset: int
    length: int


def flag_names(flags: int) -> tuple[str, ...]:
    """Names of FIEMAP_EXTENT_ flags, without the prefix; unknown bits as hex."""
    known = tuple(name for bit, name in EXTENT_FLAGS.items() if flags & bit)
    rest = flags & ~sum(EXTENT_FLAGS)
    return (*known, f"{rest:#x}") if rest else known


def pack_fiemap(start: int, length: int, extents: int, *, sync: bool = True) -> bytearray:
    """A struct fiemap with room for so many extents. Raises struct.error out of range."""
    head = _FIEMAP.pack(start, length, FIEMAP_FLAG_SYNC if sync else 0, 0, extents, 0)
    return bytearray(head + bytes(extents * _EXTENT.size))


def unpack_fiemap(buffer: bytes | bytearray) -> tuple[RawExtent, ...]:
    """The extents that the kernel wrote. Raises ValueError when the buffer is too short."""
    if len(buffer) < _FIEMAP.size:
        raise ValueError("struct fiemap is cut off")
    mapped = _FIEMAP.unpack_from(buffer)[3]
    if len(buffer) < _FIEMAP.size + mapped * _EXTENT.size:
        raise ValueError(f"{mapped} extents do not fit into {len(buffer)} bytes")
    offsets = range(_FIEMAP.size, _FIEMAP.size + mapped * _EXTENT.size, _EXTENT.size)
    return tuple(RawExtent(*_EXTENT.unpack_from(buffer, at)) for at in offsets)


def pack_fsmap(low: Fsmap | None, records: int) -> bytearray:
    """A struct fsmap_head that asks for everything after `low` (None: from the start).

    `low` is the last record of the answer before, as fsmap_advance() has it.
    """
    first = _FSMAP.pack(*(low or Fsmap(0, 0, 0, 0, 0, 0)))
    last = _FSMAP.pack(_U32, _U32, _U64, _U64, _U64, 0)
    head = _FSMAP_HEAD.pack(0, 0, records, 0)
    return bytearray(head + first + last + bytes(records * _FSMAP.size))


def unpack_fsmap(buffer: bytes | bytearray) -> tuple[Fsmap, ...]:
    """The records that the kernel wrote. Raises ValueError when the buffer is too short."""
    start = _FSMAP_HEAD.size + 2 * _FSMAP.size
    if len(buffer) < start:
        raise ValueError("struct fsmap_head is cut off")
    entries = _FSMAP_HEAD.unpack_from(buffer)[3]
    if len(buffer) < start + entries * _FSMAP.size:
        raise ValueError(f"{entries} records do not fit into {len(buffer)} bytes")
    offsets = range(start, start + entries * _FSMAP.size, _FSMAP.size)
    return tuple(Fsmap(*_FSMAP.unpack_from(buffer, at)) for at in offsets)


def unpack_xflags(buffer: bytes | bytearray) -> int:
    """fsx_xflags of a struct fsxattr (FS_XFLAG_*)."""
    return int(_FSXATTR.unpack_from(buffer)[0])


def new_fsxattr() -> bytearray:
    """An empty struct fsxattr for FS_IOC_FSGETXATTR to fill."""
    return bytearray(_FSXATTR.size)


def fsmap_dev(major: int, minor: int) -> int:
    """The 32-bit dev_t of struct fsmap: new_encode_dev(), include/linux/kdev_t.h."""
    return (minor & 0xFF) | (major << 8) | ((minor & ~0xFF) << 12)
