"""The queue length of an interface whose clsact was ours."""

from __future__ import annotations

import struct
from contextlib import nullcontext
from typing import Any

import pytest

from nodeagent.backends import Peer, netlink_filters
from nodeagent.backends.netlink_room import FIRST_PRIO, KERNELS_TXQLEN, free_prio, keep_txqlen
from nodeagent.backends.netlink_shown import Shown
from nodeagent.encode import net_link, net_tc
from nodeagent.model.netspec import Flow
from nodeagent.model.steps import Status
from nodeagent.model.steps.net import Drop, NetnsRef, TcFilters


class Link:
    def __init__(self) -> None:
        self.requests: list[bytes] = []

    def request(self, message: bytes) -> None:
        self.requests.append(message)


@pytest.mark.parametrize(
    ("before", "now", "put_back"),
    [(0, KERNELS_TXQLEN, True), (0, 500, False), (0, 0, False), (1000, 1000, False)],
)
def test_only_what_the_kernel_made_of_it_is_put_back(before: int, now: int, put_back: bool) -> None:
    """Somebody may have given it another length since: that is theirs."""
    link: Any = Link()
    keep_txqlen(link, 3, {"txqlen": before}, now)
    assert bool(link.requests) is put_back


def a_step() -> TcFilters:
    netns = NetnsRef(cookie=5, inode=1, path="/run/netns/a")
    return TcFilters(
        fault="t-1", netns=netns, ifindex=2, ifname="eth0", hook="egress", flows=(Flow(),),
        act=Drop(chance=7),
    )  # fmt: skip


def prio_beside(*foreign: tuple[int, int]) -> int:
    """What filters get beside somebody else's of these (priority, chain)."""
    there = [
        net_tc.TcObject(
            ifindex=2, handle=1, parent=net_tc.HOOKS["egress"], info=prio << 16, kind="bpf",
            options=b"theirs", attrs={net_tc.TCA_CHAIN: struct.pack("=I", chain)},
        )
        for prio, chain in foreign
    ]  # fmt: skip
    device = net_link.Link(index=2, name="eth0", kind="veth", flags=1, mtu=1500, txqlen=0)
    return free_prio(Shown(device, None, {"ingress": [], "egress": there}), a_step())


def test_our_chain_is_nobody_else_s() -> None:
    """The chain of a random drop or a program has the number of its filters' priority."""
    assert prio_beside() == FIRST_PRIO
    assert prio_beside((1000, 0)) == FIRST_PRIO
    assert prio_beside((1000, FIRST_PRIO + 1)) == FIRST_PRIO + 1
    assert prio_beside((1000, FIRST_PRIO + 1), (1001, FIRST_PRIO + 2)) == FIRST_PRIO + 2


@pytest.mark.parametrize(
    ("there", "peers", "want"),
    [
        (False, [], False),
        (True, [], True),
        (True, [False], False),  # it is ours, by the first of our faults
        (True, [True], True),
        (True, [True, False], False),  # the second one has added it anew
        (False, [True], False),  # somebody has taken theirs away since: what we add is ours
    ],
)
def test_whose_clsact_it_is(
    monkeypatch: pytest.MonkeyPatch, there: bool, peers: list[bool], want: bool
) -> None:
    place = net_tc.TcObject(2, net_tc.CLSACT_HANDLE, net_tc.CLSACT, 0, "clsact", b"", {})
    device = net_link.Link(index=2, name="eth0", kind="veth", flags=1, mtu=1500, txqlen=0)
    shown = Shown(device, place if there else None, {"ingress": [], "egress": []})
    monkeypatch.setattr(netlink_filters, "show", lambda link, ifindex: shown)
    one = a_step()
    others = [
        Peer("t-0", 1, one, None, {"clsact": was, "prio": 64, "txqlen": 0}, certain=True)
        for was in peers
    ]
    link: Any = object()
    monkeypatch.setattr(netlink_filters, "entered", lambda ref: nullcontext(link))
    assert netlink_filters.FilterBackend().observe("t-1", one, others)["clsact"] is want


@pytest.mark.parametrize(
    ("kind", "was_there", "want"),
    [
        ("clsact", False, Status.OURS),
        ("clsact", True, Status.PRIOR),
        ("ingress", False, Status.PRIOR),  # somebody's own, in the place of ours
        (None, False, Status.PRIOR),
    ],
)
def test_an_empty_clsact_is_left_by_us_and_nothing_else_is(
    monkeypatch: pytest.MonkeyPatch, kind: str | None, was_there: bool, want: Status
) -> None:
    place = net_tc.TcObject(2, net_tc.CLSACT_HANDLE, net_tc.CLSACT, 0, kind or "", b"", {})
    device = net_link.Link(index=2, name="eth0", kind="veth", flags=1, mtu=1500, txqlen=0)
    shown = Shown(device, place if kind else None, {"ingress": [], "egress": []})
    link: Any = Link()
    monkeypatch.setattr(netlink_filters, "entered", lambda ref: nullcontext(link))
    monkeypatch.setattr(netlink_filters, "show", lambda link, ifindex: shown)
    backend, prior = netlink_filters.FilterBackend(), {"clsact": was_there, "prio": 64, "txqlen": 9}
    assert backend.status(a_step(), prior, []) is want
    backend.undo("t-1", a_step(), prior, [])
    assert link.requests == ([net_tc.delete_clsact(2)] if want is Status.OURS else [])
