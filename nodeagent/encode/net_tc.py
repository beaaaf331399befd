"""Traffic control messages: qdiscs, classes and filters of an interface (tc(8)). Pure."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from nodeagent.encode import net_attrs as n

RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38
RTM_NEWTCLASS, RTM_GETTCLASS = 40, 42
RTM_NEWTFILTER, RTM_DELTFILTER, RTM_GETTFILTER = 44, 45, 46
TCA_KIND, TCA_OPTIONS, TCA_STATS, TCA_XSTATS, TCA_STATS2 = 1, 2, 3, 4, 7
TCA_CHAIN, TCA_INGRESS_BLOCK, TCA_EGRESS_BLOCK = 11, 13, 14
TCA_STATS_BASIC, TCA_STATS_QUEUE, TCA_STATS_PKT64 = 1, 3, 8
ROOT = 0xFFFFFFFF
CLSACT = 0xFFFFFFF1
"""Parent of clsact and of ingress; their handle is ffff:0."""
CLSACT_HANDLE = 0xFFFF0000
HOOKS = {"ingress": 0xFFFFFFF2, "egress": 0xFFFFFFF3}
PLAIN_INGRESS = "ffff:"
"""The older name of ingress, where filters of an `ingress` qdisc may have been put: the kernel
shows all filters of a block at the place where the last one was added (block->classid)."""
PLACES = {**HOOKS, PLAIN_INGRESS: CLSACT_HANDLE}
OUR_HANDLE = 0xFA170000
"""fa17:, the handle of all qdiscs that are ours."""
ETH_P_ALL = 3
_TCMSG = struct.Struct("=BxHiIII")
_COUNTED = (TCA_STATS, TCA_XSTATS, TCA_STATS2)


def _body(ifindex: int, handle: int, parent: int, info: int = 0) -> bytes:
    """struct tcmsg; index 0 would mean every link to some readers, so it never leaves here."""
    if ifindex < 1:
        raise ValueError(f"{ifindex} is no interface index")
    return _TCMSG.pack(0, 0, ifindex, handle, parent, info)


def add_qdisc(ifindex: int, parent: int, handle: int, kind: str, options: bytes = b"") -> bytes:
    """A new qdisc; fails with EEXIST where one of somebody else is."""
    body = _body(ifindex, handle, parent) + n.text(TCA_KIND, kind)
    if options:
        body += n.attr(TCA_OPTIONS, options)
    flags = n.NLM_F_ACK | n.NLM_F_CREATE | n.NLM_F_EXCL
    return n.message(RTM_NEWQDISC, flags, body)


def delete_qdisc(ifindex: int, parent: int, handle: int, kind: str) -> bytes:
    """A qdisc of this kind and handle, and no other that may be there by now."""
    body = _body(ifindex, handle, parent) + n.text(TCA_KIND, kind)
    return n.message(RTM_DELQDISC, n.NLM_F_ACK, body)


def add_clsact(ifindex: int) -> bytes:
    return add_qdisc(ifindex, CLSACT, CLSACT_HANDLE, "clsact")


def delete_clsact(ifindex: int) -> bytes:
    return delete_qdisc(ifindex, CLSACT, CLSACT_HANDLE, "clsact")


def filter_info(prio: int, protocol: int = ETH_P_ALL) -> int:
    """tcm_info: priority (`pref`) above, EtherType in network order below. Raises ValueError."""
    if not 1 <= prio <= 0xFFFF:
        raise ValueError(f"{prio} is no filter priority")
    return prio << 16 | int(struct.unpack("=H", struct.pack("!H", protocol))[0])


def add_filter(
    ifindex: int, place: str, prio: int, kind: str, options: bytes, chain: int = 0, handle: int = 0
) -> bytes:
    """A new filter of this priority on a hook of clsact."""
    body = _body(ifindex, handle, PLACES[place], filter_info(prio)) + n.text(TCA_KIND, kind)
    body += n.attr(TCA_OPTIONS, options)
    if chain:
        body += n.u32(TCA_CHAIN, chain)
    flags = n.NLM_F_ACK | n.NLM_F_CREATE | n.NLM_F_EXCL
    return n.message(RTM_NEWTFILTER, flags, body)


def delete_filters(ifindex: int, place: str, prio: int, kind: str, chain: int = 0) -> bytes:
    """All filters of one priority and kind at once."""
    body = _body(ifindex, 0, PLACES[place], filter_info(prio)) + n.text(TCA_KIND, kind)
    if chain:
        body += n.u32(TCA_CHAIN, chain)
    return n.message(RTM_DELTFILTER, n.NLM_F_ACK, body)


def delete_filter(found: TcObject, place: str) -> bytes:
    """One filter by its handle. Raises ValueError."""
    if not found.handle:
        raise ValueError("a filter without a handle would be its whole priority")
    body = _body(found.ifindex, found.handle, PLACES[place], found.info)
    body += n.text(TCA_KIND, found.kind)
    if found.chain:
        body += n.u32(TCA_CHAIN, found.chain)
    return n.message(RTM_DELTFILTER, n.NLM_F_ACK, body)


def dump_qdiscs() -> bytes:
    """All interfaces of the namespace."""
    return n.message(RTM_GETQDISC, n.NLM_F_DUMP, _TCMSG.pack(0, 0, 0, 0, 0, 0))


def dump_classes(ifindex: int) -> bytes:
    return n.message(RTM_GETTCLASS, n.NLM_F_DUMP, _body(ifindex, 0, 0))


def dump_filters(ifindex: int, parent: int) -> bytes:
    """All filters below a qdisc or a hook, of all chains."""
    return n.message(RTM_GETTFILTER, n.NLM_F_DUMP, _body(ifindex, 0, parent))


@dataclass(frozen=True)
class TcObject:
    """A qdisc, class or filter as the kernel shows it."""

    ifindex: int
    handle: int
    parent: int
    info: int
    kind: str
    options: bytes
    attrs: dict[int, bytes]

    @property
    def prio(self) -> int:
        return self.info >> 16

    @property
    def chain(self) -> int:
        return n.number(self.attrs.get(TCA_CHAIN, b"\0"))

    def counters(self) -> dict[str, int]:
        """Packets, bytes, drops and backlog of a qdisc or class."""
        return stats(n.attrs(self.attrs.get(TCA_STATS2, b"")))

    def describe(self) -> str:
        """One line for comparing by byte: everything but counters."""
        rest = " ".join(
            f"{kind}={data.hex()}"
            for kind, data in sorted(self.attrs.items())
            if kind not in (TCA_KIND, TCA_OPTIONS, *_COUNTED)
        )
        return (
            f"{self.kind} {self.handle:x} parent {self.parent:x} info {self.info:x} "
            f"options {self.options.hex() or '-'} {rest}".rstrip()
        )


def parse(message: n.Message) -> TcObject:
    """An object of a dump. Raises ValueError."""
    _, _, ifindex, handle, parent, info = _TCMSG.unpack_from(message.body)
    found = n.attrs(message.body[_TCMSG.size :])
    return TcObject(
        ifindex=ifindex,
        handle=handle,
        parent=parent,
        info=info,
        kind=n.string(found.get(TCA_KIND, b"")),
        options=found.get(TCA_OPTIONS, b""),
        attrs=found,
    )


def stats(found: dict[int, bytes]) -> dict[str, int]:
    """Nested gnet_stats as names and numbers (include/uapi/linux/gen_stats.h)."""
    counted: dict[str, int] = {}
    if TCA_STATS_BASIC in found:
        counted["bytes"], counted["packets"] = struct.unpack_from("=QI", found[TCA_STATS_BASIC])
    if TCA_STATS_PKT64 in found:
        counted["packets"] = n.number(found[TCA_STATS_PKT64])
    if TCA_STATS_QUEUE in found:
        names = ("queued", "backlog", "drops", "requeues", "overlimits")
        counted.update(zip(names, struct.unpack_from("=5I", found[TCA_STATS_QUEUE]), strict=True))
    return counted
