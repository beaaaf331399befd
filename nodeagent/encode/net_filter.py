"""Filters as bytes: flower keys of flows, actions, a random drop in classic BPF. Pure.

Flower keeps a hash table for each mask (net/sched/cls_flower.c), so that thousands of
networks cost one lookup for each prefix length and kind of key. Ports become value and mask,
not flower's ranges, which it would search one by one.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Network, ip_network

from nodeagent.encode import net_attrs as n
from nodeagent.encode import net_tc as tc
from nodeagent.model.netspec import PORT_PROTOCOLS, Flow, PortRange
from nodeagent.model.steps.net import FULL

FLOWER_ACT, FLOWER_FLAGS, BPF_ACT = 3, 22, 1
BPF_OPS_LEN, BPF_OPS, BPF_FD, BPF_NAME, BPF_FLAGS = 4, 5, 6, 7, 8
BPF_ACT_DIRECT = 1
REJECT_CONFIG = struct.Struct("=IIBB2x")
"""struct fc_reject_config, bpf/net_reject.bpf.c."""
ETH_TYPE, IP_PROTO = 8, 9
IPV4_SRC, IPV4_DST, IPV6_SRC, IPV6_DST = 10, 12, 14, 16
_PORTS = {  # protocol: (source, source's mask, destination, destination's mask)
    "tcp": (18, 35, 19, 36),
    "udp": (20, 37, 21, 38),
    "sctp": (41, 39, 42, 40),
}
_NUMBERS = {"tcp": 6, "udp": 17, "sctp": 132}
_ICMP = {4: 1, 6: 58}
_ETH = {4: 0x0800, 6: 0x86DD}
_ARP = 0x0806
ICMPV6_TYPE, ICMPV6_TYPE_MASK = 55, 56
_NEIGHBOUR, _ROUTER = (135, 136), (133, 134)
"""Solicitations and advertisements of neighbour discovery (RFC 4861)."""
ACT_KIND, ACT_OPTIONS, ACT_STATS, ACT_COOKIE = 1, 2, 4, 6
MIRRED_PARMS = GACT_PARMS = 2
TC_ACT_OK, TC_ACT_STOLEN, TC_ACT_GOTO_CHAIN = 0, 4, 0x20000000
EGRESS_REDIR = 1
SKIP_HW = 1
_MARK = b"faultctl"
_MAX_MARK = 16  # bytes, TC_COOKIE_MAX_SIZE


def mark(fault_id: str) -> bytes:
    """The cookie of every action that is ours: whose it is."""
    return _MARK + hashlib.sha256(fault_id.encode()).digest()[:8]


def is_mark(cookie: bytes) -> bool:
    return cookie.startswith(_MARK) and len(cookie) == _MAX_MARK


def port_blocks(ports: PortRange) -> list[tuple[int, int]]:
    """The fewest (value, mask) pairs that cover a range exactly."""
    first, last = ports
    found = []
    while first <= last:
        size = 1 << 16 if first == 0 else first & -first
        while size > last - first + 1:
            size >>= 1
        found.append((first, 0x10000 - size))
        first += size
    return found


def flower_keys(flow: Flow, hook: str) -> Iterator[bytes]:
    """The flower keys that together match a flow's packets on a hook.

    On egress the remote end is the destination, on ingress the source.
    """
    if flow == Flow():
        yield b""
        return
    network = flow.network()
    versions = (4, 6) if network is None else (network.version,)
    for version in versions:
        head = n.be16(ETH_TYPE, _ETH[version])
        if network is not None and network.prefixlen:
            head += _address(network, hook)
        for protocol in _protocols(flow):
            if protocol is None:
                yield head
            elif protocol == "icmp":
                yield head + n.u8(IP_PROTO, _ICMP[version])
            else:
                yield from _with_ports(head, protocol, flow, hook)


def _address(network: object, hook: str) -> bytes:
    kind = {"egress": (IPV4_DST, IPV6_DST), "ingress": (IPV4_SRC, IPV6_SRC)}[hook]
    found = ip_network(str(network))
    base = kind[1] if isinstance(found, IPv6Network) else kind[0]
    return n.attr(base, found.network_address.packed) + n.attr(base + 1, found.netmask.packed)


def _protocols(flow: Flow) -> tuple[str | None, ...]:
    if flow.protocol is not None:
        return (flow.protocol,)
    if flow.remote_port is None and flow.local_port is None:
        return (None,)
    return PORT_PROTOCOLS


def _with_ports(head: bytes, protocol: str, flow: Flow, hook: str) -> Iterator[bytes]:
    source, destination = flow.local_port, flow.remote_port
    if hook == "ingress":
        source, destination = destination, source
    head += n.u8(IP_PROTO, _NUMBERS[protocol])
    src, src_mask, dst, dst_mask = _PORTS[protocol]
    for source_key in _port_keys(src, src_mask, source):
        for destination_key in _port_keys(dst, dst_mask, destination):
            yield head + source_key + destination_key


def _port_keys(key: int, mask_key: int, ports: PortRange | None) -> list[bytes]:
    if ports is None:
        return [b""]
    return [n.be16(key, value) + n.be16(mask_key, mask) for value, mask in port_blocks(ports)]


def flower(key: bytes, action: bytes) -> bytes:
    """Options of a flower filter; never offloaded, so that it acts and counts in software."""
    return key + n.u32(FLOWER_FLAGS, SKIP_HW) + n.nest(FLOWER_ACT, action)


def plain_flower() -> bytes:
    """Options of a flower filter that matches all and does nothing."""
    return n.u32(FLOWER_FLAGS, SKIP_HW)


def all_keys(flows: Iterable[Flow], hook: str) -> list[bytes]:
    """Keys of all flows, each once; flower refuses a second one that is the same."""
    return list(dict.fromkeys(key for flow in flows for key in flower_keys(flow, hook)))


def spared_keys(but: Sequence[Flow], flows: Sequence[Flow], hook: str) -> list[bytes]:
    """Keys of exceptions, and of the ARP and neighbour discovery among a fault's own packets.

    Without these nobody reaches what is left alone once a neighbour entry has run out.
    """
    if not but:
        return []
    neighbours = [key for flow in flows for key in _neighbour_keys(flow, hook)]
    return list(dict.fromkeys([*all_keys(but, hook), *neighbours]))


def _neighbour_keys(flow: Flow, hook: str) -> Iterator[bytes]:
    if flow == Flow():
        yield n.be16(ETH_TYPE, _ARP)
    network = flow.network()
    ports = flow.remote_port is not None or flow.local_port is not None
    if ports or flow.protocol not in (None, "icmp") or (network and network.version == 4):
        return
    head = n.be16(ETH_TYPE, _ETH[6])
    kinds: tuple[int, ...] = (*_NEIGHBOUR, *_ROUTER)
    if network is not None and network.prefixlen:
        head, kinds = head + _address(network, hook), _NEIGHBOUR  # routers tell all nodes
    for kind in kinds:
        icmp = n.u8(IP_PROTO, _ICMP[6]) + n.u8(ICMPV6_TYPE, kind) + n.u8(ICMPV6_TYPE_MASK, 0xFF)
        yield head + icmp


# --- actions ----------------------------------------------------------------------


def redirect(ifindex: int, cookie: bytes) -> bytes:
    """act_mirred: the packet goes out on another interface of the namespace instead."""
    if ifindex < 1:
        raise ValueError(f"{ifindex} is no interface index")
    parms = struct.pack("=IIiiiiI", 0, 0, TC_ACT_STOLEN, 0, 0, EGRESS_REDIR, ifindex)
    return _action("mirred", n.attr(MIRRED_PARMS, parms), cookie)


def verdict(action: int, cookie: bytes) -> bytes:
    """act_gact: TC_ACT_OK leaves the packet alone, TC_ACT_STOLEN takes it away silently."""
    return _action("gact", n.attr(GACT_PARMS, struct.pack("=IIiii", 0, 0, action, 0, 0)), cookie)


def _action(kind: str, options: bytes, cookie: bytes) -> bytes:
    body = n.text(ACT_KIND, kind) + n.nest(ACT_OPTIONS, options, flag=True)
    return n.nest(1, body, n.attr(ACT_COOKIE, cookie))


def random_match(chance: int, action: bytes) -> bytes:
    """Options of a classic BPF filter that matches a share of the packets, of 2^32 - 1."""
    random = 0xFFFFF000 + 56  # SKF_AD_OFF + SKF_AD_RANDOM, linux/filter.h
    ops = [
        (0x20, 0, 0, random),  # ld [random]
        (0x25, 1, 0, max(0, chance - 1) if chance < FULL else FULL),  # jgt chance - 1
        (0x06, 0, 0, 0xFFFFFFFF),  # ret: it matches
        (0x06, 0, 0, 0),  # ret: it does not
    ]
    code = b"".join(struct.pack("=HBBI", *op) for op in ops)
    act = n.nest(BPF_ACT, action) if action else b""
    return act + n.u16(BPF_OPS_LEN, len(ops)) + n.attr(BPF_OPS, code)


def program(fd: int, name: str, cookie: bytes) -> bytes:
    """Options of a BPF filter that decides by itself; the action says only whose it is."""
    options = n.u32(BPF_FD, fd) + n.text(BPF_NAME, name) + n.u32(BPF_FLAGS, BPF_ACT_DIRECT)
    return options + n.nest(BPF_ACT, verdict(TC_ACT_OK, cookie))


def classifier(fd: int, name: str, action: bytes) -> bytes:
    """Options of a BPF filter that says whether a packet matches, and what then becomes of it."""
    return n.u32(BPF_FD, fd) + n.text(BPF_NAME, name) + n.nest(BPF_ACT, action)


# --- what the kernel shows --------------------------------------------------------

_ACT_ATTR = {"flower": FLOWER_ACT, "bpf": BPF_ACT, "matchall": 2, "u32": 7, "basic": 3, "fw": 4}
_COUNTERS = {"u32": (9, 10), "matchall": (4,), "bpf": (), "flower": (), "basic": (5,)}
_TM = 1  # times of an action's life, in its options


@dataclass(frozen=True)
class ShownAction:
    """One action of a filter."""

    kind: str
    options: bytes
    cookie: bytes
    counters: dict[str, int]

    def redirects_to(self) -> int | None:
        """Interface index of a redirect, None for other actions."""
        if self.kind != "mirred":
            return None
        parms = n.attrs(self.options).get(MIRRED_PARMS, b"")
        return int(struct.unpack_from("=I", parms, 24)[0]) if len(parms) >= 28 else None

    def verdict(self) -> int | None:
        """What a gact action decides, None for other actions."""
        if self.kind != "gact":
            return None
        return int(struct.unpack_from("=i", n.attrs(self.options)[GACT_PARMS], 8)[0])


def actions(found: tc.TcObject) -> list[ShownAction]:
    """The actions of a filter; of kinds that we do not know none."""
    raw = n.attrs(found.options).get(_ACT_ATTR.get(found.kind, -1), b"")
    shown = []
    for _, body in n.pairs(raw):
        parts = n.attrs(body)
        shown.append(
            ShownAction(
                kind=n.string(parts.get(ACT_KIND, b"")),
                options=parts.get(ACT_OPTIONS, b""),
                cookie=parts.get(ACT_COOKIE, b""),
                counters=tc.stats(n.attrs(parts.get(ACT_STATS, b""))),
            )
        )
    return shown


def owner(found: tc.TcObject) -> bytes:
    """The mark that its actions carry; empty for what is not ours."""
    if _MARK not in found.options:
        return b""
    cookies = [action.cookie for action in actions(found) if is_mark(action.cookie)]
    return cookies[0] if cookies else b""


def stable(found: tc.TcObject) -> str:
    """A filter as one line without counters and times, for comparing by byte."""
    skipped = _COUNTERS.get(found.kind, ())
    act = _ACT_ATTR.get(found.kind, -1)
    parts = [
        f"{kind}={data.hex()}"
        for kind, data in n.pairs(found.options)
        if kind != act and kind not in skipped
    ]
    for action in actions(found):
        inner = [f"{k}={v.hex()}" for k, v in n.pairs(action.options) if k != _TM]
        parts.append(f"{action.kind}({' '.join(inner)} cookie={action.cookie.hex()})")
    head = f"{found.kind} {found.handle:x} parent {found.parent:x} info {found.info:x}"
    return f"{head} chain {found.chain} {' '.join(parts)}".rstrip()
