"""Keys and values of the maps in bpf/syscall.bpf.h. Pure."""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag

MAX_SLOTS = 64
MAX_CALLS = 256
MAX_LEVELS = 8
MAX_PORTS = 8
MAX_NETS = 4
ALWAYS_PPM = 1_000_000
TICKS_PER_SECOND = 100
COMPAT = 4
"""Added to a way of hooking: the points of 32-bit calls."""

_SLOT = struct.Struct("=qQQQIIIIIIII")
_STATS = struct.Struct("=7Q")
_HIT_KEY = struct.Struct("=4I")
_HITS = struct.Struct("=4Q16s")
_PROCESS = struct.Struct("=3Q")
_CONTROL = struct.Struct("=3I8II")
_NETS = struct.Struct("=8H")
STATS_SIZE = _STATS.size


class Way(IntEnum):
    """How a function is hooked; the upper part of a point."""

    MODRET = 0
    ENTRY = 1
    RETURN = 2
    LSM = 3


class CallFlag(IntFlag):
    """fc_call_slot.flags."""

    UID = 1
    RUNTIME = 2
    FILES = 4
    EXE = 8
    DEVICE = 16
    NET = 32
    WHEN = 64


class Hooked(IntEnum):
    """What the first argument of an LSM hook is; enum fc_hooked."""

    OTHER = 0
    FILE = 1
    OPENED = 2
    PATH = 3


class Subject(IntEnum):
    """Where the file of a call is; enum fc_subject."""

    NONE = 0
    FD = 1
    OPENED = 2


class Named(IntEnum):
    """Where a call names an address; enum fc_named."""

    NONE = 0
    SECOND = 1
    FIFTH = 2
    MSGHDR = 3


def point(way: Way, call: int, compat: bool = False) -> int:
    """Index in fc_points."""
    return (way + (COMPAT if compat else 0)) * MAX_CALLS + call


@dataclass(frozen=True)
class CallSlot:
    """struct fc_call_slot."""

    value: int
    seed: int
    first: int
    at_most: int
    every: int
    rate_ppm: int
    flags: CallFlag
    fd_types: int
    uid: int
    generation: int
    device: int = 0

    def pack(self) -> bytes:
        """The map's value. Raises struct.error for numbers that do not fit."""
        return _SLOT.pack(
            self.value,
            self.seed,
            self.first,
            self.at_most,
            self.every,
            self.rate_ppm,
            self.flags,
            self.fd_types,
            self.uid,
            self.generation,
            self.device,
            0,
        )


@dataclass(frozen=True)
class CallStats:
    """struct fc_call_stats: calls in scope, hits, calls of spared programs, lost children."""

    seen: int = 0
    hits: int = 0
    taken: int = 0
    spared: int = 0
    lost: int = 0
    first_ns: int = 0
    last_ns: int = 0


@dataclass(frozen=True)
class Hits:
    """What one process (tgid 0: all) did by one call."""

    call: int
    tgid: int
    seen: int
    hits: int
    first_ns: int
    last_ns: int
    comm: str


def unpack_stats(data: bytes) -> CallStats:
    """From the map's value."""
    return CallStats(*_STATS.unpack(data))


def hit_slot(key: bytes) -> tuple[int, int]:
    """(slot, generation) of a key of fc_hits."""
    slot, generation, _, _ = _HIT_KEY.unpack(key)
    return slot, generation


def unpack_hits(key: bytes, value: bytes) -> Hits:
    """From key and value of fc_hits."""
    _, _, call, tgid = _HIT_KEY.unpack(key)
    seen, hits, first, last, comm = _HITS.unpack(value)
    return Hits(call, tgid, seen, hits, first, last, comm.split(b"\0")[0].decode(errors="replace"))


def pack_process(start_ticks: int, slots: int, tree: int) -> bytes:
    """struct fc_process."""
    return _PROCESS.pack(start_ticks, slots, tree)


def unpack_process(data: bytes) -> tuple[int, int, int]:
    """(start ticks, slots, slots that children inherit)."""
    start, slots, tree = _PROCESS.unpack(data)
    return start, slots, tree


def pack_control(agent: int, tgids: bool, levels: tuple[int, ...]) -> bytes:
    """struct fc_control. Raises ValueError for more than MAX_LEVELS depths."""
    if len(levels) > MAX_LEVELS:
        raise ValueError(f"cgroups at more than {MAX_LEVELS} depths")
    padded = (*levels, *(0,) * (MAX_LEVELS - len(levels)))
    return _CONTROL.pack(agent, tgids, len(levels), *padded, 0)


def pack_number(call: int, hook: int) -> bytes:
    """struct fc_number: a call as the LSM program knows it."""
    return struct.pack("=HH", call + 1, hook)


def pack_info(subject: Subject, named: Named) -> bytes:
    """struct fc_call_info."""
    return struct.pack("=BBH", subject, named, 0)


def glob_key(slot: int, state: int, exe: bool) -> bytes:
    """Key of fc_globs: one of 32,768 states of one of a slot's two automata."""
    return struct.pack("=I", state | slot << 16 | exe << 22)


def when_key(slot: int, call: int) -> bytes:
    """Key of fc_whens."""
    return struct.pack("=I", slot << 8 | call)


def pack_nets(ports: tuple[int, ...], nets: tuple[str, ...]) -> bytes:
    """struct fc_call_nets; nets as ipaddress takes them. Raises ValueError for a bad one."""
    data = _NETS.pack(*ports, *(0,) * (MAX_PORTS - len(ports)))
    for net in nets:
        found = ipaddress.ip_network(net, strict=False)
        mask, address = int(found.netmask), int(found.network_address)
        if found.version == 4:
            mask |= ((1 << 96) - 1) << 32
            address |= 0xFFFF << 32
        data += address.to_bytes(16, "big") + mask.to_bytes(16, "big")
    return data + bytes(32 * (MAX_NETS - len(nets))) + struct.pack("=II", len(nets), 0)
