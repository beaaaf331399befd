"""Netlink messages and attributes as bytes (include/uapi/linux/netlink.h). Pure.

All integers are the host's own byte order, except where a name says `be`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

NLM_F_REQUEST, NLM_F_ACK = 0x1, 0x4
NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400
NLM_F_DUMP = 0x300
NLM_F_DUMP_INTR = 0x10
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLA_NESTED, NLA_TYPE_MASK = 0x8000, 0x3FFF
NLMSGERR_ATTR_MSG = 1
_HEADER = struct.Struct("=IHHII")
_ORDER: Literal["little", "big"] = "little" if struct.pack("=H", 1)[0] else "big"


def align(length: int) -> int:
    return (length + 3) & ~3


def attr(kind: int, payload: bytes = b"") -> bytes:
    """One attribute. Raises ValueError when it is too long for its 16-bit length."""
    length = 4 + len(payload)
    if length > 0xFFFF:
        raise ValueError(f"attribute {kind} of {len(payload)} bytes is too long")
    return struct.pack("=HH", length, kind) + payload + bytes(align(length) - length)


def nest(kind: int, *attrs: bytes, flag: bool = False) -> bytes:
    """Attributes in an attribute; `flag` marks it as nested, which old interfaces do not."""
    return attr(kind | (NLA_NESTED if flag else 0), b"".join(attrs))


def u8(kind: int, value: int) -> bytes:
    return attr(kind, struct.pack("=B", value))


def u16(kind: int, value: int) -> bytes:
    return attr(kind, struct.pack("=H", value))


def be16(kind: int, value: int) -> bytes:
    return attr(kind, struct.pack("!H", value))


def u32(kind: int, value: int) -> bytes:
    return attr(kind, struct.pack("=I", value))


def u64(kind: int, value: int) -> bytes:
    return attr(kind, struct.pack("=Q", value))


def s64(kind: int, value: int) -> bytes:
    return attr(kind, struct.pack("=q", value))


def text(kind: int, value: str) -> bytes:
    return attr(kind, value.encode() + b"\0")


def message(kind: int, flags: int, body: bytes, seq: int = 0) -> bytes:
    """A whole message; the sender fills in the sequence number."""
    length = _HEADER.size + len(body)
    return _HEADER.pack(length, kind, flags | NLM_F_REQUEST, seq, 0) + body


def with_seq(data: bytes, seq: int) -> bytes:
    """The message with this sequence number."""
    return data[:8] + struct.pack("=I", seq) + data[12:]


def wants_ack(data: bytes) -> bool:
    return bool(number(data[6:8]) & NLM_F_ACK)


def without_ack(data: bytes) -> bytes:
    """The message for a sender that only wants to hear of failures."""
    flags = number(data[6:8]) & ~NLM_F_ACK
    return data[:6] + struct.pack("=H", flags) + data[8:]


@dataclass(frozen=True)
class Message:
    """One received message."""

    kind: int
    flags: int
    seq: int
    body: bytes


def messages(data: bytes) -> Iterator[Message]:
    """All messages of a datagram. Raises ValueError for one that is cut short."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, flags, seq, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size or at + length > len(data):
            raise ValueError(f"netlink message of {length} bytes in {len(data) - at}")
        yield Message(kind, flags, seq, data[at + _HEADER.size : at + length])
        at += align(length)


def pairs(data: bytes) -> list[tuple[int, bytes]]:
    """Attributes in order, their types without flags. Raises ValueError when cut short."""
    found, at = [], 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4 or at + length > len(data):
            raise ValueError(f"attribute {kind & NLA_TYPE_MASK} of {length} bytes is cut short")
        found.append((kind & NLA_TYPE_MASK, data[at + 4 : at + length]))
        at += align(length)
    return found


def attrs(data: bytes) -> dict[int, bytes]:
    """Attributes by type; of two of a type the last one."""
    return dict(pairs(data))


def number(payload: bytes) -> int:
    """An unsigned integer of the payload's own size, in host order."""
    return int.from_bytes(payload, _ORDER)


def string(payload: bytes) -> str:
    return payload.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")


def error_of(message: Message) -> tuple[int, str]:
    """(errno or 0, the kernel's own words) of an NLMSG_ERROR (extended acknowledgement)."""
    code: int = struct.unpack_from("=i", message.body)[0]
    capped = message.flags & 0x100
    inner = struct.unpack_from("=I", message.body, 4)[0]
    start = 4 + _HEADER.size if capped or code == 0 else 4 + align(inner)
    words = ""
    if message.flags & 0x200:  # NLM_F_ACK_TLVS
        words = string(attrs(message.body[start:]).get(NLMSGERR_ATTR_MSG, b""))
    return -code, words
