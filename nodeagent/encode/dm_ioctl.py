"""Wire form of the device-mapper ioctls: struct dm_ioctl and what follows it.

Source: include/uapi/linux/dm-ioctl.h and drivers/md/dm-ioctl.c, Linux 6.12; native endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from nodeagent.encode.dm_table import BadTable, DevNum, Segment, escape

# version[3] data_size data_start target_count open_count flags event_nr padding dev name uuid
_HEADER = struct.Struct("=3I I I I i I I I Q 128s 129s 7x")
_SPEC = struct.Struct("=Q Q i I 16s")  # sector_start length status next target_type
_NAME = struct.Struct("=Q I")  # dev next
_NAME_TAIL = struct.Struct("=I I")  # event_nr flags
_VERSIONS = struct.Struct("=I 3I")  # next version[3]
_DEPS = struct.Struct("=I 4x")  # count padding

HEADER_SIZE = _HEADER.size  # 312
NAME_MAX = 127  # DM_NAME_LEN 128, with its NUL
UUID_MAX = 128  # DM_UUID_LEN 129, with its NUL
API = (4, 0, 0)  # the kernel accepts any minor up to its own
HAS_UUID = 1  # DM_NAME_LIST_FLAG_HAS_UUID
UUID_IN_LIST = (4, 45, 0)  # interface version whose name list carries uuids (Linux 5.13)


class Cmd(IntEnum):
    """Command numbers; ioctl_number() makes the request from one."""

    VERSION = 0
    LIST_DEVICES = 2
    DEV_CREATE = 3
    DEV_REMOVE = 4
    DEV_SUSPEND = 6  # also resumes: without Flag.SUSPEND
    DEV_STATUS = 7
    TABLE_LOAD = 9
    TABLE_CLEAR = 10
    TABLE_DEPS = 11
    TABLE_STATUS = 12
    LIST_VERSIONS = 13
    TARGET_MSG = 14
    GET_TARGET_VERSION = 17


class Flag(IntFlag):
    """Bits of dm_ioctl.flags. Bit 2 (once "exists") is gone: ENXIO tells."""

    READONLY = 1 << 0
    SUSPEND = 1 << 1
    PERSISTENT_DEV = 1 << 3
    STATUS_TABLE = 1 << 4
    ACTIVE_PRESENT = 1 << 5
    INACTIVE_PRESENT = 1 << 6
    BUFFER_FULL = 1 << 8
    SKIP_LOCKFS = 1 << 10
    NOFLUSH = 1 << 11
    QUERY_INACTIVE_TABLE = 1 << 12
    UEVENT_GENERATED = 1 << 13
    UUID = 1 << 14
    SECURE_DATA = 1 << 15
    DATA_OUT = 1 << 16
    DEFERRED_REMOVE = 1 << 17
    INTERNAL_SUSPEND = 1 << 18


NONE = Flag(0)


class UdevFlag(IntFlag):
    """What udev's rules should leave alone, in the high half of event_nr.

    The kernel hands event_nr back in the uevent's DM_COOKIE; 10-dm.rules reads
    these bits from it (libdevmapper.h, DM_UDEV_*).
    """

    DISABLE_SUBSYSTEM_RULES = 1 << 17
    DISABLE_DISK_RULES = 1 << 18
    DISABLE_OTHER_RULES = 1 << 19
    DISABLE_LIBRARY_FALLBACK = 1 << 21
    PRIMARY_SOURCE = 1 << 22


# No blkid, no links, no LVM or mdadm scan: the device is only for our tables.
UDEV_PRIVATE = (
    UdevFlag.DISABLE_SUBSYSTEM_RULES
    | UdevFlag.DISABLE_DISK_RULES
    | UdevFlag.DISABLE_OTHER_RULES
    | UdevFlag.DISABLE_LIBRARY_FALLBACK
    | UdevFlag.PRIMARY_SOURCE
)


def ioctl_number(cmd: Cmd) -> int:
    """_IOWR(DM_IOCTL, cmd, struct dm_ioctl) of asm-generic/ioctl.h."""
    return 3 << 30 | HEADER_SIZE << 16 | 0xFD << 8 | cmd


def encode_dev(dev: DevNum) -> int:
    """huge_encode_dev() of linux/kdev_t.h."""
    return (dev.minor & 0xFF) | dev.major << 8 | (dev.minor & ~0xFF) << 12


def decode_dev(value: int) -> DevNum:
    """huge_decode_dev() of linux/kdev_t.h."""
    return DevNum((value & 0xFFF00) >> 8, (value & 0xFF) | (value >> 12 & 0xFFF00))


@dataclass(frozen=True, slots=True)
class Header:
    """struct dm_ioctl, unpacked. data_size and data_start are bytes."""

    version: tuple[int, int, int]
    data_size: int
    data_start: int
    target_count: int
    open_count: int
    flags: Flag
    event_nr: int
    dev: DevNum
    name: str
    uuid: str


@dataclass(frozen=True, slots=True)
class DmName:
    """One entry of the device list."""

    dev: DevNum
    name: str
    uuid: str


@dataclass(frozen=True, slots=True)
class Request:
    """What to ask. Name at most one of dev, name and uuid, except to create."""

    cmd: Cmd
    dev: DevNum | None = None
    name: str = ""
    uuid: str = ""
    flags: Flag = NONE
    event_nr: int = 0
    target_count: int = 0
    payload: bytes = b""


def pack(request: Request, size: int = 0) -> bytearray:
    """A buffer for ioctl, at least `size` bytes long. Raises BadTable on long names."""
    total = max(size, HEADER_SIZE + len(request.payload))
    buffer = bytearray(total)
    _HEADER.pack_into(
        buffer,
        0,
        *API,
        total,
        HEADER_SIZE,
        request.target_count,
        0,
        request.flags,
        request.event_nr,
        0,
        encode_dev(request.dev) if request.dev is not None else 0,
        _text(request.name, NAME_MAX, "name"),
        _text(request.uuid, UUID_MAX, "uuid"),
    )
    buffer[HEADER_SIZE : HEADER_SIZE + len(request.payload)] = request.payload
    return buffer


def unpack(buffer: bytes | bytearray) -> Header:
    """The header of an answer."""
    major, minor, patch, size, start, targets, opened, flags, event, _, dev, name, uuid = (
        _HEADER.unpack_from(buffer)
    )
    return Header(
        version=(major, minor, patch),
        data_size=size,
        data_start=start,
        target_count=targets,
        open_count=opened,
        flags=Flag(flags),
        event_nr=event,
        dev=decode_dev(dev),
        name=_until_nul(name),
        uuid=_until_nul(uuid),
    )


def pack_targets(segments: Sequence[Segment]) -> bytes:
    """Payload of TABLE_LOAD: each spec's `next` is relative to that spec."""
    parts: list[bytes] = []
    for segment in segments:
        params = " ".join(escape(word) for word in segment.args).encode(errors="surrogateescape")
        size = _aligned(_SPEC.size + len(params) + 1)
        spec = _SPEC.pack(segment.start, segment.length, 0, size, segment.target.encode())
        parts.append((spec + params).ljust(size, b"\0"))
    return b"".join(parts)


def unpack_targets(buffer: bytes | bytearray, header: Header) -> list[tuple[int, int, str, str]]:
    """(start, length, target, text) of each segment in a TABLE_STATUS answer.

    Here `next` is relative to the first spec, other than on the way in
    (retrieve_status() of dm-ioctl.c).
    """
    found: list[tuple[int, int, str, str]] = []
    base = at = header.data_start
    for _ in range(header.target_count):
        start, length, _, next_at, name = _SPEC.unpack_from(buffer, at)
        text = _string_at(buffer, at + _SPEC.size)
        found.append((start, length, _until_nul(name), text))
        at = base + next_at
    return found


def unpack_names(
    buffer: bytes | bytearray, header: Header, version: tuple[int, int, int]
) -> list[DmName]:
    """The answer of LIST_DEVICES. uuid is empty below interface version 4.45.

    version: from Cmd.VERSION; in other answers the caller's own comes back.
    """
    found: list[DmName] = []
    at = header.data_start
    if at + _NAME.size > header.data_size:
        return found
    while True:
        dev, next_at = _NAME.unpack_from(buffer, at)
        if not dev:
            return found
        name = _string_at(buffer, at + _NAME.size)
        uuid = ""
        if version >= UUID_IN_LIST:
            tail = _aligned(at + _NAME.size + len(name.encode(errors="surrogateescape")) + 1)
            _, flags = _NAME_TAIL.unpack_from(buffer, tail)
            if flags & HAS_UUID:
                uuid = _string_at(buffer, tail + _NAME_TAIL.size)
        found.append(DmName(decode_dev(dev), name, uuid))
        if not next_at:
            return found
        at += next_at


def unpack_versions(buffer: bytes | bytearray, header: Header) -> dict[str, tuple[int, int, int]]:
    """The answer of LIST_VERSIONS: version of each registered target type."""
    found: dict[str, tuple[int, int, int]] = {}
    at = header.data_start
    while at + _VERSIONS.size < header.data_size:
        next_at, major, minor, patch = _VERSIONS.unpack_from(buffer, at)
        found[_string_at(buffer, at + _VERSIONS.size)] = (major, minor, patch)
        if not next_at:
            break
        at += next_at
    return found


def unpack_deps(buffer: bytes | bytearray, header: Header) -> list[DevNum]:
    """The answer of TABLE_DEPS: block devices that the table holds open."""
    at = header.data_start
    (count,) = _DEPS.unpack_from(buffer, at)
    values = struct.unpack_from(f"={count}Q", buffer, at + _DEPS.size)
    return [decode_dev(value) for value in values]


def pack_message(sector: int, text: str) -> bytes:
    """Payload of TARGET_MSG: struct dm_target_msg and its text."""
    return struct.pack("=Q", sector) + text.encode() + b"\0"


def unpack_message(buffer: bytes | bytearray, header: Header) -> str:
    """What a target answered to a message, empty when it said nothing."""
    if Flag.DATA_OUT not in header.flags:
        return ""
    return _string_at(buffer, header.data_start)


def _text(value: str, limit: int, what: str) -> bytes:
    raw = value.encode(errors="surrogateescape")
    if len(raw) > limit or b"\0" in raw:
        raise BadTable(f"bad device-mapper {what} {value!r}", f"at most {limit} bytes, no NUL")
    if what == "name" and b"/" in raw:
        raise BadTable(f"bad device-mapper name {value!r}", "the kernel refuses a slash")
    return raw


def _aligned(size: int) -> int:
    return (size + 7) & ~7


def _string_at(buffer: bytes | bytearray, at: int) -> str:
    return buffer[at : buffer.index(0, at)].decode(errors="surrogateescape")


def _until_nul(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode(errors="surrogateescape")
