"""Links by rtnetlink: a private ifb device, and what is there (rtnetlink(7)). Pure."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import ip_address

from nodeagent.encode import net_attrs as n

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_GETADDR = 20, 22
IFLA_IFNAME, IFLA_MTU, IFLA_LINK, IFLA_TXQLEN, IFLA_LINKINFO = 3, 4, 5, 13, 18
IFLA_IFALIAS, IFLA_AF_SPEC, IFLA_NUM_TX_QUEUES, IFLA_NUM_RX_QUEUES = 20, 26, 31, 32
IFLA_INFO_KIND = 1
IFA_ADDRESS, IFA_LOCAL = 1, 2
AF_INET6 = 10
IFLA_INET6_ADDR_GEN_MODE, ADDR_GEN_NONE = 8, 1
IFF_UP, IFF_LOOPBACK = 1, 8
_IFINFO = struct.Struct("=BxHiII")
_IFADDR = struct.Struct("=BBBBI")


@dataclass(frozen=True)
class Link:
    """One network interface of a namespace."""

    index: int
    name: str
    kind: str
    """As `ip link ... type`; empty for hardware."""
    flags: int
    mtu: int
    txqlen: int
    alias: str = ""
    tx_queues: int = 1
    below: int = 0
    """The interface that it is stacked on (IFLA_LINK); of veth its peer, in whatever namespace."""

    @property
    def up(self) -> bool:
        return bool(self.flags & IFF_UP)

    @property
    def loopback(self) -> bool:
        return bool(self.flags & IFF_LOOPBACK)


def add_ifb(name: str) -> bytes:
    """A new ifb device, down; one queue, so that packets keep their order."""
    body = _IFINFO.pack(0, 0, 0, 0, 0) + n.text(IFLA_IFNAME, name)
    body += n.u32(IFLA_NUM_TX_QUEUES, 1) + n.u32(IFLA_NUM_RX_QUEUES, 1)
    body += n.nest(IFLA_LINKINFO, n.text(IFLA_INFO_KIND, "ifb"))
    flags = n.NLM_F_ACK | n.NLM_F_CREATE | n.NLM_F_EXCL
    return n.message(RTM_NEWLINK, flags, body)


def set_alias(index: int, alias: str) -> bytes:
    """At creation the kernel does not take one (rtnl_create_link, net/core/rtnetlink.c)."""
    body = _IFINFO.pack(0, 0, _checked(index), 0, 0) + n.text(IFLA_IFALIAS, alias)
    return n.message(RTM_NEWLINK, n.NLM_F_ACK, body)


def set_txqlen(index: int, length: int) -> bytes:
    body = _IFINFO.pack(0, 0, _checked(index), 0, 0) + n.u32(IFLA_TXQLEN, length)
    return n.message(RTM_NEWLINK, n.NLM_F_ACK, body)


def silence_ipv6(index: int) -> bytes:
    """No link-local address of its own, so that the kernel sends nothing there by itself."""
    inet6 = n.nest(AF_INET6, n.u8(IFLA_INET6_ADDR_GEN_MODE, ADDR_GEN_NONE))
    body = _IFINFO.pack(0, 0, _checked(index), 0, 0) + n.nest(IFLA_AF_SPEC, inet6)
    return n.message(RTM_NEWLINK, n.NLM_F_ACK, body)


def set_up(index: int) -> bytes:
    body = _IFINFO.pack(0, 0, _checked(index), IFF_UP, IFF_UP)
    return n.message(RTM_NEWLINK, n.NLM_F_ACK, body)


def set_down(index: int) -> bytes:
    body = _IFINFO.pack(0, 0, _checked(index), 0, IFF_UP)
    return n.message(RTM_NEWLINK, n.NLM_F_ACK, body)


def delete(index: int) -> bytes:
    """Delete a link by its index, which is never 0 here. Raises ValueError."""
    return n.message(RTM_DELLINK, n.NLM_F_ACK, _IFINFO.pack(0, 0, _checked(index), 0, 0))


def _checked(index: int) -> int:
    if index < 1:
        raise ValueError(f"{index} is no interface index")
    return index


def dump() -> bytes:
    return n.message(RTM_GETLINK, n.NLM_F_DUMP, _IFINFO.pack(0, 0, 0, 0, 0))


def dump_addresses() -> bytes:
    return n.message(RTM_GETADDR, n.NLM_F_DUMP, _IFADDR.pack(0, 0, 0, 0, 0))


def parse(message: n.Message) -> Link:
    """A link of a dump. Raises ValueError."""
    _, _, index, flags, _ = _IFINFO.unpack_from(message.body)
    found = n.attrs(message.body[_IFINFO.size :])
    info = n.attrs(found.get(IFLA_LINKINFO, b""))
    return Link(
        index=index,
        name=n.string(found.get(IFLA_IFNAME, b"")),
        kind=n.string(info.get(IFLA_INFO_KIND, b"")),
        flags=flags,
        mtu=n.number(found.get(IFLA_MTU, b"")),
        txqlen=n.number(found.get(IFLA_TXQLEN, b"")),
        alias=n.string(found.get(IFLA_IFALIAS, b"")),
        tx_queues=n.number(found.get(IFLA_NUM_TX_QUEUES, b"\1")),
        below=n.number(found.get(IFLA_LINK, b"\0")),
    )


def parse_address(message: n.Message) -> tuple[int, str]:
    """(interface index, address with its prefix length) of a dump."""
    _, prefix, _, _, index = _IFADDR.unpack_from(message.body)
    found = n.attrs(message.body[_IFADDR.size :])
    raw = found.get(IFA_LOCAL, found.get(IFA_ADDRESS, b""))
    return index, f"{ip_address(raw)}/{prefix}"
