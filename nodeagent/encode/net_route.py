"""What an interface loses when it goes down: addresses, routes, fixed neighbours. Pure.

An entry keeps the kernel's own bytes of a dump (rtnetlink(7)), so that adding it again gives
what was there, attributes that we know nothing of included. What the kernel counts, times or
decides by itself is left out of comparisons.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nodeagent.encode import net_attrs as n

RTM_NEWADDR, RTM_DELADDR = 20, 21
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWNEIGH, RTM_GETNEIGH = 28, 30
RTM_GETNEXTHOP = 106
AF_INET, AF_INET6 = 2, 10
RTN_UNICAST, RTPROT_KERNEL, RTPROT_RA = 1, 2, 9
RTM_F_CLONED = 0x200
RTA_OIF, RTA_PRIORITY, RTA_MULTIPATH, RTA_CACHEINFO = 4, 6, 9, 12
RTA_TABLE, RTA_EXPIRES = 15, 23
NHA_OIF = 5
IFA_ADDRESS, IFA_LOCAL, IFA_CACHEINFO, IFA_FLAGS = 1, 2, 6, 8
IFA_F_SECONDARY, IFA_F_NODAD, IFA_F_PERMANENT, IFA_F_STABLE = 0x1, 0x2, 0x80, 0x800
_IFA_PASSING = 0x04 | 0x08 | 0x20 | 0x40  # optimistic, DAD failed, deprecated, tentative
NUD_PERMANENT, NTF_PROXY = 0x80, 0x08
_RT = struct.Struct("=BBBBBBBBI")
_IFA = struct.Struct("=BBBBI")
_ND = struct.Struct("=BBHiHBB")
_NH = struct.Struct("=BBBBI")
_CACHE = struct.Struct("=IIII")
_NEXTHOP = struct.Struct("=HBBi")
_RTNH_KEPT = 0x2 | 0x4  # pervasive, onlink; the others say whether a link is up
_FOREVER = 0xFFFFFFFF


@dataclass(frozen=True)
class Entry:
    """One address, route or neighbour, as the body of its message."""

    sort: str
    """`address`, `route` or `neighbour`."""
    body: bytes

    def canonical(self, names: Mapping[int, str] | None = None) -> str:
        """Equal for two dumps of the same thing; with names instead of interface indexes."""
        name = (names or {}).get
        return f"{self.sort} {_CANONICAL[self.sort](self.body, lambda i: name(i, str(i)))}"

    @property
    def family(self) -> int:
        return self.body[0]


# --- dumps ------------------------------------------------------------------------


def dump_routes(family: int) -> bytes:
    return n.message(RTM_GETROUTE, n.NLM_F_DUMP, _RT.pack(family, *[0] * 8))


def dump_neighbours(family: int, proxies: bool) -> bytes:
    body = _ND.pack(family, 0, 0, 0, 0, NTF_PROXY if proxies else 0, 0)
    return n.message(RTM_GETNEIGH, n.NLM_F_DUMP, body)


def dump_nexthops() -> bytes:
    return n.message(RTM_GETNEXTHOP, n.NLM_F_DUMP, _NH.pack(*[0] * 5))


def nexthop_interface(message: n.Message) -> int:
    """The interface of a nexthop object (ip-nexthop(8)), 0 for a group or a blackhole."""
    return n.number(n.attrs(message.body[_NH.size :]).get(NHA_OIF, b"\0"))


def parse_address(message: n.Message) -> Entry:
    return Entry("address", message.body)


def parse_route(message: n.Message) -> Entry:
    return Entry("route", message.body)


def parse_neighbour(message: n.Message) -> Entry:
    return Entry("neighbour", message.body)


# --- which are an interface's own ---------------------------------------------------


def interfaces(entry: Entry) -> set[int]:
    """Indexes of the interfaces that it is on; of a route with several next hops all of them."""
    if entry.sort == "address":
        return {int(_IFA.unpack_from(entry.body)[4])}
    if entry.sort == "neighbour":
        return {int(_ND.unpack_from(entry.body)[3])}
    found = n.attrs(entry.body[_RT.size :])
    indexes = {n.number(found[RTA_OIF])} if RTA_OIF in found else set()
    return indexes | {index for _, index, _ in _hops(found.get(RTA_MULTIPATH, b""))}


def is_default_route(entry: Entry) -> bool:
    """A way out of the namespace: a unicast route to everything."""
    _, length, _, _, _, _, _, kind, _ = _RT.unpack_from(entry.body)
    return bool(length == 0 and kind == RTN_UNICAST)


def is_set_by_hand(entry: Entry) -> bool:
    """Not what the kernel makes again by itself: its own, clones, and what routers announce."""
    if entry.sort == "neighbour":
        _, _, _, _, state, flags, _ = _ND.unpack_from(entry.body)
        return bool(state & NUD_PERMANENT or flags & NTF_PROXY)
    if entry.sort == "address":
        flags = address_flags(entry.body)
        temporary = entry.family == AF_INET6 and flags & IFA_F_SECONDARY
        return not temporary and bool(flags & IFA_F_PERMANENT or not flags & IFA_F_STABLE)
    *_, protocol, _, kind, flags = _RT.unpack_from(entry.body)
    if flags & RTM_F_CLONED or protocol == RTPROT_RA:
        return False
    return bool(kind == RTN_UNICAST or protocol != RTPROT_KERNEL)


def is_made_by_kernel(entry: Entry) -> bool:
    """What the kernel makes when a link comes up, wanted or not."""
    if entry.sort == "address":
        found = n.attrs(entry.body[_IFA.size :]).get(IFA_ADDRESS, b"")
        first = int.from_bytes(found[:2], "big")
        return entry.family == AF_INET6 and first & 0xFFC0 == 0xFE80
    if entry.sort == "route":
        *_, protocol, _, kind, _ = _RT.unpack_from(entry.body)
        return bool(protocol == RTPROT_KERNEL and kind == RTN_UNICAST)
    return False


def route_place(entry: Entry) -> tuple[object, ...]:
    """What only one route can have: family, table, destination, type of service, priority."""
    family, dst, src, tos, table, *_ = _RT.unpack_from(entry.body)
    found = n.attrs(entry.body[_RT.size :])
    table = n.number(found[RTA_TABLE]) if RTA_TABLE in found else table
    return (family, dst, src, tos, table, found.get(1), found.get(2), found.get(RTA_PRIORITY))


def address_flags(body: bytes) -> int:
    _, _, flags, _, _ = _IFA.unpack_from(body)
    found = n.attrs(body[_IFA.size :])
    return n.number(found[IFA_FLAGS]) if IFA_FLAGS in found else int(flags)


def lives_on(entry: Entry, elapsed_s: int) -> bool:
    """Whether an address with a lifetime would still be valid so many seconds later."""
    cache = n.attrs(entry.body[_IFA.size :]).get(IFA_CACHEINFO)
    return cache is None or _CACHE.unpack(cache)[1] > elapsed_s


# --- adding again -------------------------------------------------------------------


def add(entry: Entry, elapsed_s: int = 0) -> list[bytes]:
    """Messages that make an entry of an earlier dump again."""
    if entry.sort == "address":
        return _add_address(entry.body, elapsed_s)
    create = n.NLM_F_ACK | n.NLM_F_CREATE | n.NLM_F_EXCL
    if entry.sort == "neighbour":
        head, attrs = entry.body[: _ND.size], n.pairs(entry.body[_ND.size :])
        body = head + b"".join(n.attr(k, v) for k, v in attrs if k not in _NEIGHBOUR_LEFT)
        return [n.message(RTM_NEWNEIGH, create, body)]
    return [n.message(RTM_NEWROUTE, create, _route_body(entry.body))]


def remove(entry: Entry) -> bytes:
    """Take an address or a route away that the kernel has made unasked."""
    if entry.sort == "address":
        return n.message(RTM_DELADDR, n.NLM_F_ACK, entry.body)
    return n.message(RTM_DELROUTE, n.NLM_F_ACK, _route_body(entry.body))


def _add_address(body: bytes, elapsed_s: int) -> list[bytes]:
    """IPv6: first without the check for duplicates, so that it can be used at once, then as it was.

    Taking IFA_F_NODAD off a ready address changes nothing else (inet6_addr_modify).
    """
    family, length, _, scope, index = _IFA.unpack_from(body)
    flags = address_flags(body) & ~_IFA_PASSING
    kept = [(k, v) for k, v in n.pairs(body[_IFA.size :]) if k not in (IFA_FLAGS, IFA_CACHEINFO)]
    cache = n.attrs(body[_IFA.size :]).get(IFA_CACHEINFO)
    if cache is not None:
        preferred, valid, made, changed = _CACHE.unpack(cache)
        left = [x if x == _FOREVER else max(0, x - elapsed_s) for x in (preferred, valid)]
        kept.append((IFA_CACHEINFO, _CACHE.pack(*left, made, changed)))

    def made_with(flags: int, how: int) -> bytes:
        attrs = b"".join(n.attr(k, v) for k, v in kept) + n.u32(IFA_FLAGS, flags)
        head = _IFA.pack(family, length, flags & 0xFF, scope, index)
        return n.message(RTM_NEWADDR, n.NLM_F_ACK | n.NLM_F_CREATE | how, head + attrs)

    if family == AF_INET or flags & IFA_F_NODAD:
        return [made_with(flags, n.NLM_F_EXCL)]
    return [made_with(flags | IFA_F_NODAD, n.NLM_F_EXCL), made_with(flags, n.NLM_F_REPLACE)]


def _route_body(body: bytes) -> bytes:
    *head, flags = _RT.unpack_from(body)
    parts = [_RT.pack(*head, flags & _RTNH_KEPT)]
    for kind, data in n.pairs(body[_RT.size :]):
        if kind in (RTA_CACHEINFO, RTA_EXPIRES):
            continue
        if kind == RTA_MULTIPATH:
            data = b"".join(_hop(*hop) for hop in _hops(data))
        parts.append(n.attr(kind, data))
    return b"".join(parts)


def _hops(data: bytes) -> list[tuple[tuple[int, int], int, bytes]]:
    """((flags, weight), interface, attributes) of struct rtnexthop."""
    found, at = [], 0
    while at + _NEXTHOP.size <= len(data):
        length, flags, hops, index = _NEXTHOP.unpack_from(data, at)
        if length < _NEXTHOP.size:
            raise ValueError(f"a next hop of {length} bytes")
        found.append(((flags & _RTNH_KEPT, hops), index, data[at + _NEXTHOP.size : at + length]))
        at += n.align(length)
    return found


def _hop(how: tuple[int, int], index: int, attrs: bytes) -> bytes:
    length = _NEXTHOP.size + len(attrs)
    return _NEXTHOP.pack(length, *how, index) + attrs + bytes(n.align(length) - length)


# --- comparing ----------------------------------------------------------------------

_NEIGHBOUR_LEFT = (3, 4)  # NDA_CACHEINFO, NDA_PROBES


_Named = Callable[[int], str]


def _shown(head: str, attrs: list[tuple[int, bytes]]) -> str:
    return " ".join([head, *(f"{k}={v.hex()}" for k, v in sorted(attrs))])


def _canonical_address(body: bytes, named: _Named) -> str:
    family, length, _, scope, index = _IFA.unpack_from(body)
    flags = address_flags(body) & ~_IFA_PASSING
    attrs = [(k, v) for k, v in n.pairs(body[_IFA.size :]) if k not in (IFA_FLAGS, IFA_CACHEINFO)]
    return _shown(f"{named(index)} {family} /{length} flags {flags:x} scope {scope}", attrs)


def _canonical_route(body: bytes, named: _Named) -> str:
    clean = _route_body(body)
    found = n.pairs(clean[_RT.size :])
    hops = [hop for k, v in found if k == RTA_MULTIPATH for hop in _hops(v)]
    ways = [named(n.number(v)) for k, v in found if k == RTA_OIF]
    ways += [f"{named(index)}/{how[1]}/{attrs.hex()}" for how, index, attrs in hops]
    head = " ".join([",".join(ways), clean[: _RT.size].hex()])
    return _shown(head, [(k, v) for k, v in found if k not in (RTA_OIF, RTA_MULTIPATH)])


def _canonical_neighbour(body: bytes, named: _Named) -> str:
    family, _, _, index, state, flags, kind = _ND.unpack_from(body)
    attrs = [(k, v) for k, v in n.pairs(body[_ND.size :]) if k not in _NEIGHBOUR_LEFT]
    return _shown(f"{named(index)} {family} state {state:x} flags {flags:x} type {kind}", attrs)


_CANONICAL: dict[str, Callable[[bytes, _Named], str]] = {
    "address": _canonical_address,
    "route": _canonical_route,
    "neighbour": _canonical_neighbour,
}
