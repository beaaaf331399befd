"""What is left alone beside a fault's exceptions: ARP and neighbour discovery, if it takes them."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.backends import netlink_make
from nodeagent.backends.netlink_shown import Shown
from nodeagent.encode import net_attrs as n
from nodeagent.encode import net_filter as nf
from nodeagent.encode import net_link, net_tc
from nodeagent.model.errors import BackendError
from nodeagent.model.netspec import Flow, parse_remote
from nodeagent.model.steps.net import Drop, Hook, NetnsRef, TcFilters

ARP = {8: bytes.fromhex("0806")}
SSH = Flow(protocol="tcp", local_port=(22, 22))
NS, NA, RS, RA = 135, 136, 133, 134


def step(*flows: Flow, but: tuple[Flow, ...] = (SSH,), hook: Hook = "ingress") -> TcFilters:
    netns = NetnsRef(cookie=5, inode=4026532000, path="/run/netns/a")
    return TcFilters(
        fault="t-1", netns=netns, ifindex=2, ifname="eth0", hook=hook, flows=flows, but=but,
        act=Drop(),
    )  # fmt: skip


def made(one: TcFilters) -> list[net_tc.TcObject]:
    """Its filters, as the kernel is asked for them."""
    link: Any = None
    messages = netlink_make.build(link, one, 64, one.hook, None)
    return [net_tc.parse(m) for raw in messages for m in n.messages(raw)]


def spared(one: TcFilters) -> list[dict[int, bytes]]:
    """Flower keys of what comes first and is left alone, but for the exceptions themselves."""
    first = [f for f in made(one) if f.prio == 64]
    assert all(nf.actions(f)[0].verdict() == nf.TC_ACT_OK for f in first)
    keys = [{k: v for k, v in n.pairs(f.options) if k not in (3, 22)} for f in first]
    asked = [n.attrs(key) for key in nf.all_keys(one.but, one.hook)]
    assert [key for key in keys if key in asked] == asked
    return [key for key in keys if key not in asked]


def types(keys: list[dict[int, bytes]]) -> set[int]:
    for key in keys:
        assert (key[8], key[9], key[56]) == (b"\x86\xdd", b"\x3a", b"\xff")
    return {key[55][0] for key in keys}


@pytest.mark.parametrize("hook", ["egress", "ingress"])
def test_an_exception_to_everything_can_be_reached_for_longer_than_its_neighbour_entry(
    hook: Hook,
) -> None:
    """Nobody finds the node's ssh whose ARP requests, or their answers, are taken."""
    keys = spared(step(Flow(), hook=hook))
    assert keys[0] == ARP
    assert types(keys[1:]) == {NS, NA, RS, RA}


def test_only_what_a_fault_takes_is_left_alone() -> None:
    assert spared(step(parse_remote("10.0.0.0/8"), parse_remote("0.0.0.0/0"))) == []
    assert spared(step(parse_remote("*:80/tcp"), parse_remote("[fd00::]/64:53"))) == []
    assert spared(step(Flow(), but=())) == []  # a cut cable carries no ARP either
    assert types(spared(step(parse_remote("::/0")))) == {NS, NA, RS, RA}
    assert types(spared(step(parse_remote("*/icmp")))) == {NS, NA, RS, RA}
    # another fault's neighbours stay that one's: its own network only
    keys = spared(step(parse_remote("fd00::/64"), but=(parse_remote("[fd00::1]:22"),)))
    assert types(keys) == {NS, NA}
    assert {key[14] for key in keys} == {bytes.fromhex("fd00") + bytes(14)}
    keys = spared(step(parse_remote("fd00::/64"), hook="egress"))
    assert {key[16] for key in keys} == {bytes.fromhex("fd00") + bytes(14)}


def test_each_of_them_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    one = step(Flow(), parse_remote("fd00::/64"), parse_remote("10.0.0.0/8:80-90"))
    there = made(one)
    device = net_link.Link(index=2, name="eth0", kind="veth", flags=1, mtu=1500, txqlen=0)
    link: Any = None
    for shown in (there, there[:1] + there[2:], [*there[:-1], there[-2]]):
        found = Shown(device, None, {"ingress": list(shown), "egress": []})
        monkeypatch.setattr(netlink_make, "show", lambda link, index, found=found: found)
        if shown is there:
            netlink_make.read_back(link, one, 64, len(there))
        else:
            with pytest.raises(BackendError, match="not as asked"):
                netlink_make.read_back(link, one, 64, len(there))
    other = [f for f in there if f.options.find(n.u8(55, NS)) < 0]
    found = Shown(device, None, {"ingress": other, "egress": []})
    monkeypatch.setattr(netlink_make, "show", lambda link, index: found)
    with pytest.raises(BackendError, match="keys of priority 64 differ"):
        netlink_make.read_back(link, one, 64, len(other))
