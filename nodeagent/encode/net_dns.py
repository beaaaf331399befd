"""Names, answers and settings for the BPF program that answers DNS queries. Pure.

The layouts are those of bpf/net_dns.bpf.h; the wire format is RFC 1035's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address

MODES = {"timeout": 0, "error": 1, "answer": 2}
RCODES = {"nxdomain": 3, "servfail": 2, "refused": 5}
SELF, BELOW = 1, 2
EVERYTHING = "*"
MOST_BYTES = 112
_HASH_START, _HASH_PRIME = 0xCBF29CE484222325, 0x100000001B3
_CONFIG = struct.Struct(f"=IIIIIHH{MOST_BYTES}s{MOST_BYTES}s")
_RECORD = struct.Struct("!HHHIH")
_QUESTION = 0xC00C
"""A pointer to the name of the first question."""
_TYPES = {4: 1, 6: 28}


def wire_name(name: str) -> bytes:
    """Labels with their lengths in lower case, without the last, empty one. Raises ValueError."""
    labels = name.rstrip(".").lower().encode("ascii").split(b".")
    if any(not 1 <= len(label) <= 63 for label in labels):
        raise ValueError(f"{name!r} is no DNS name: a label has 1 to 63 characters")
    wire = b"".join(bytes([len(label)]) + label for label in labels)
    if len(wire) > 254:
        raise ValueError(f"{name!r} is no DNS name: it has more than 253 characters")
    return wire


def name_hash(wire: bytes) -> int:
    """FNV-1a from the last byte to the first, so that an end of a name is met on the way."""
    found = _HASH_START
    for byte in reversed(wire):
        found = ((found ^ byte) * _HASH_PRIME) & 0xFFFFFFFFFFFFFFFF
    return found


def chosen_names(names: Iterable[str]) -> dict[int, int]:
    """Hash -> which of the name itself and all below it are meant; without EVERYTHING."""
    found: dict[int, int] = {}
    for name in names:
        if name == EVERYTHING:
            continue
        below = name.startswith("*.")
        key = name_hash(wire_name(name[2:] if below else name))
        found[key] = found.get(key, 0) | (BELOW if below else SELF)
    return found


def records(addresses: Iterable[str], version: int, ttl_s: int) -> bytes:
    """The answer section for one type. Raises ValueError when it is too long."""
    found = b""
    for address in map(ip_address, addresses):
        if address.version == version:
            data = address.packed
            found += _RECORD.pack(_QUESTION, _TYPES[version], 1, ttl_s, len(data)) + data
    if len(found) > MOST_BYTES:
        raise ValueError(f"{len(found)} bytes of answers are more than {MOST_BYTES}")
    return found


def most(version: int) -> int:
    """How many addresses of a family fit."""
    size = len((IPv4Address(0) if version == 4 else IPv6Address(0)).packed)
    return MOST_BYTES // (_RECORD.size + size)


def config(how: str, everything: bool, addresses: Iterable[str] = (), ttl_s: int = 0) -> bytes:
    """struct fc_dns_config; how: a rcode's name, `timeout`, `answer`, or `delay`, which matches."""
    mode = "error" if how in RCODES else how
    known = tuple(addresses)
    a, aaaa = records(known, 4, ttl_s), records(known, 6, ttl_s)
    counts = [sum(ip_address(x).version == v for x in known) for v in (4, 6)]
    return _CONFIG.pack(
        MODES.get(mode, 0), RCODES.get(how, 0), everything, len(a), len(aaaa), *counts, a, aaaa
    )
