"""Entries of the connection table by ctnetlink (linux/netfilter/nfnetlink_conntrack.h). Pure.

Ours are UDP flows between addresses that are for benchmarks only (198.18.0.0/15, RFC 2544), so
that they are told from all others by themselves, also on kernels without connection marks.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address

from nodeagent.encode import net_attrs as n

NETLINK_NETFILTER = 12
_SUBSYSTEM = 1 << 8
CT_NEW, CT_GET, CT_DELETE, CT_GET_STATS_CPU = 0, 1, 2, 4
_TUPLE_ORIG, _TUPLE_REPLY, _STATUS, _TIMEOUT = 1, 2, 3, 7
_STATS = {9: "insert_failed", 10: "drop", 11: "early_drop"}
_SEEN_REPLY_ASSURED_CONFIRMED = 2 | 4 | 8
"""An assured entry is not thrown out for a new one (early_drop, nf_conntrack_core.c)."""
UDP, AF_INET = 17, 2
PER_SOURCE = 60_000
MOST = 0xFFFF * PER_SOURCE
SOURCE = int(IPv4Address("198.18.0.1"))
DESTINATION = IPv4Address("198.19.255.254").packed
FIRST_PORT, DISCARD = 1024, 9
_MARKER = 0xFFFD
"""Stands for a port number; neither one of ours (PER_SOURCE) nor in the destination."""
_NFGEN = struct.Struct("=BBH")


def _message(kind: int, flags: int, attrs: bytes = b"", family: int = AF_INET) -> bytes:
    return n.message(_SUBSYSTEM | kind, flags, _NFGEN.pack(family, 0, 0) + attrs)


def _tuple(kind: int, source: bytes, destination: bytes, ports: tuple[int, int]) -> bytes:
    addresses = n.nest(1, n.attr(1, source), n.attr(2, destination), flag=True)
    protocol = n.nest(2, n.u8(1, UDP), n.be16(2, ports[0]), n.be16(3, ports[1]), flag=True)
    return n.nest(kind, addresses, protocol, flag=True)


def original(index: int) -> bytes:
    """The tuple of our entry of this index, from 0 to MOST. Raises ValueError."""
    source, port = _place(index)
    return _tuple(_TUPLE_ORIG, source, DESTINATION, (port, DISCARD))


def _place(index: int) -> tuple[bytes, int]:
    if not 0 <= index < MOST:
        raise ValueError(f"there is no entry {index}")
    return struct.pack("!I", SOURCE + index // PER_SOURCE), FIRST_PORT + index % PER_SOURCE


def add(index: int, timeout_s: int) -> bytes:
    """A new entry that nothing throws out before its time."""
    source, port = _place(index)
    number = struct.pack("!H", port)
    return number.join(_adding(source, timeout_s))


def delete(index: int) -> bytes:
    source, port = _place(index)
    return struct.pack("!H", port).join(_deleting(source))


@lru_cache(maxsize=64)
def _adding(source: bytes, timeout_s: int) -> list[bytes]:
    """The message without its two port numbers: there may be a million of them to make."""
    reply = _tuple(_TUPLE_REPLY, DESTINATION, source, (DISCARD, _MARKER))
    status = n.attr(_STATUS, struct.pack("!I", _SEEN_REPLY_ASSURED_CONFIRMED))
    timeout = n.attr(_TIMEOUT, struct.pack("!I", timeout_s))
    flags = n.NLM_F_ACK | n.NLM_F_CREATE | n.NLM_F_EXCL
    first = _tuple(_TUPLE_ORIG, source, DESTINATION, (_MARKER, DISCARD))
    return _cut(_message(CT_NEW, flags, first + reply + status + timeout), 2)


@lru_cache(maxsize=64)
def _deleting(source: bytes) -> list[bytes]:
    first = _tuple(_TUPLE_ORIG, source, DESTINATION, (_MARKER, DISCARD))
    return _cut(_message(CT_DELETE, n.NLM_F_ACK, first), 1)


def _cut(message: bytes, ports: int) -> list[bytes]:
    parts = message.split(struct.pack("!H", _MARKER))
    if len(parts) != ports + 1:
        raise ValueError(f"{len(parts) - 1} places for {ports} port numbers")
    return parts


def get(index: int) -> bytes:
    """Asks for one entry; ENOENT where it is not there."""
    return _message(CT_GET, n.NLM_F_ACK, original(index))


def dump() -> bytes:
    return _message(CT_GET, n.NLM_F_DUMP)


def is_ours(message: n.Message) -> int | None:
    """The index of an entry of a dump that is ours, None for all others."""
    start = message.body[_NFGEN.size : _NFGEN.size + len(_PATTERN)]
    if start[:_AT_SOURCE] + start[_AT_SOURCE + 4 : _AT_PORT] == _BEFORE_PORT:  # as all are
        if start[_AT_PORT + 2 :] != _PATTERN[_AT_PORT + 2 :]:
            return None
        return _index(start[_AT_SOURCE : _AT_SOURCE + 4], start[_AT_PORT : _AT_PORT + 2])
    found = n.attrs(message.body[_NFGEN.size :]).get(_TUPLE_ORIG, b"")
    parts = n.attrs(found)
    addresses, protocol = n.attrs(parts.get(1, b"")), n.attrs(parts.get(2, b""))
    source, port = addresses.get(1, b""), protocol.get(2, b"")
    if addresses.get(2) != DESTINATION or protocol.get(1) != bytes([UDP]) or len(source) != 4:
        return None
    if protocol.get(3) != struct.pack("!H", DISCARD):
        return None
    return _index(source, port)


def _index(source: bytes, port: bytes) -> int | None:
    number, offset = int.from_bytes(source, "big") - SOURCE, int.from_bytes(port, "big")
    if not 0 <= number < 0xFFFF or not FIRST_PORT <= offset < FIRST_PORT + PER_SOURCE:
        return None
    return number * PER_SOURCE + offset - FIRST_PORT


_PATTERN = _tuple(_TUPLE_ORIG, bytes(4), DESTINATION, (_MARKER, DISCARD))
_AT_SOURCE = 12  # behind the headers of the tuple, of its addresses, and of the first one
_AT_PORT = _PATTERN.index(struct.pack("!H", _MARKER))
_BEFORE_PORT = _PATTERN[:_AT_SOURCE] + _PATTERN[_AT_SOURCE + 4 : _AT_PORT]


def dump_statistics() -> bytes:
    return _message(CT_GET_STATS_CPU, n.NLM_F_DUMP, family=0)


@dataclass(frozen=True)
class Statistics:
    """What became of packets that needed an entry, of one CPU."""

    dropped: int
    thrown_out: int


def parse_statistics(message: n.Message) -> Statistics:
    found = n.attrs(message.body[_NFGEN.size :])
    named = {name: int.from_bytes(found.get(k, b""), "big") for k, name in _STATS.items()}
    return Statistics(dropped=named["drop"], thrown_out=named["early_drop"])
