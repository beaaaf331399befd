"""What an interface loses: bytes of a dump to the messages that make it again."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.encode import net_attrs as n
from nodeagent.encode import net_route as r

ETH0 = 7


def address(family: int, flags: int, raw: bytes, cache: bytes = b"") -> r.Entry:
    head = struct.pack("=BBBBI", family, 64, flags & 0xFF, 0, ETH0)
    body = head + n.attr(r.IFA_ADDRESS, raw) + n.u32(r.IFA_FLAGS, flags)
    return r.Entry("address", body + (n.attr(r.IFA_CACHEINFO, cache) if cache else b""))


def route(protocol: int, *attrs: bytes, flags: int = 0, kind: int = 1, dst: int = 24) -> r.Entry:
    head = struct.pack("=BBBBBBBBI", r.AF_INET, dst, 0, 0, 254, protocol, 0, kind, flags)
    return r.Entry("route", head + b"".join(attrs))


GLOBAL = bytes.fromhex("fd000009000000000000000000000001")
LINK_LOCAL = bytes.fromhex("fe800000000000000000000000000001")


def flags_of(message: bytes) -> tuple[int, int]:
    (found,) = n.messages(message)
    return found.flags, r.address_flags(found.body)


def test_an_ipv6_address_comes_without_the_check_for_duplicates_and_then_as_it_was() -> None:
    first, second = r.add(address(r.AF_INET6, 0x80, GLOBAL))
    assert flags_of(first) == (n.NLM_F_REQUEST | n.NLM_F_ACK | n.NLM_F_CREATE | n.NLM_F_EXCL, 0x82)
    assert flags_of(second)[0] & n.NLM_F_REPLACE
    assert flags_of(second)[1] == 0x80
    assert len(r.add(address(r.AF_INET6, 0x82, GLOBAL))) == 1
    assert len(r.add(address(r.AF_INET, 0x80, b"\x0a\x09\x00\x01"))) == 1


def test_a_lifetime_goes_on_and_ends() -> None:
    entry = address(r.AF_INET6, 0x100, GLOBAL, struct.pack("=IIII", 100, 300, 1, 2))
    (found,) = n.messages(r.add(entry, elapsed_s=120)[0])
    cache = n.attrs(found.body[8:])[r.IFA_CACHEINFO]
    assert struct.unpack("=IIII", cache)[:2] == (0, 180)
    assert r.lives_on(entry, 299)
    assert not r.lives_on(entry, 300)
    forever = address(r.AF_INET6, 0x80, GLOBAL, struct.pack("=IIII", *[0xFFFFFFFF] * 2, 1, 2))
    (found,) = n.messages(r.add(forever, elapsed_s=10**6)[0])
    assert struct.unpack("=IIII", n.attrs(found.body[8:])[r.IFA_CACHEINFO])[1] == 0xFFFFFFFF


def test_what_passes_by_makes_no_difference() -> None:
    plain = address(r.AF_INET6, 0x80, GLOBAL)
    checked = address(r.AF_INET6, 0x80 | 0x40, GLOBAL, struct.pack("=IIII", 9, 9, 9, 9))
    assert plain.canonical() == checked.canonical()
    assert plain.canonical() != address(r.AF_INET6, 0x82, GLOBAL).canonical()
    oif = n.u32(r.RTA_OIF, ETH0)
    dead = route(3, oif, n.attr(r.RTA_CACHEINFO, bytes(32)), flags=1 | 16)
    assert dead.canonical() == route(3, oif).canonical()
    assert "eth0" in dead.canonical({ETH0: "eth0"})
    assert route(3, oif, flags=4).canonical() != route(3, oif).canonical()  # onlink


def test_only_what_the_kernel_does_not_make_by_itself_is_kept() -> None:
    oif = n.u32(r.RTA_OIF, ETH0)
    assert r.is_set_by_hand(route(3, oif))
    assert r.is_set_by_hand(route(2, oif))  # of a prefix: somebody may have removed it
    assert r.is_made_by_kernel(route(2, oif))
    assert not r.is_set_by_hand(route(2, oif, kind=2))  # local
    assert not r.is_set_by_hand(route(9, oif))  # announced by a router
    assert not r.is_set_by_hand(route(3, oif, flags=r.RTM_F_CLONED))
    assert not r.is_set_by_hand(address(r.AF_INET6, 0x01, GLOBAL))  # temporary
    assert r.is_set_by_hand(address(r.AF_INET, 0x81, b"\x0a\x09\x00\x02"))  # secondary
    assert r.is_made_by_kernel(address(r.AF_INET6, 0x80, LINK_LOCAL))
    assert not r.is_made_by_kernel(address(r.AF_INET6, 0x80, GLOBAL))
    assert r.is_default_route(route(3, oif, dst=0))
    assert not r.is_default_route(route(3, oif, dst=0, kind=7))  # unreachable


def test_a_route_with_several_ways() -> None:
    hops = b"".join(
        struct.pack("=HBBi", 16, flags, weight, index) + n.attr(5, gateway)
        for flags, weight, index, gateway in (
            (1 | 16, 1, ETH0, b"\x0a\x09\x00\x02"),
            (0, 0, 8, b"\x0a\x09\x00\x03"),
        )
    )
    entry = route(3, n.attr(r.RTA_MULTIPATH, hops))
    assert r.interfaces(entry) == {ETH0, 8}
    (message,) = n.messages(r.add(entry)[0])
    sent = n.attrs(message.body[12:])[r.RTA_MULTIPATH]
    assert sent == hops[:2] + b"\x00" + hops[3:]  # dead and linkdown are not ours to say


@given(
    st.lists(
        st.tuples(st.integers(1, 40).filter(lambda k: k != 9), st.binary(max_size=24)), max_size=8
    ),
    st.integers(0, 0xFFFFFFFF),
)
def test_adding_a_route_gives_what_was_dumped(attrs: list[tuple[int, bytes]], flags: int) -> None:
    entry = route(3, *[n.attr(k, v) for k, v in attrs], flags=flags)
    (message,) = n.messages(r.add(entry)[0])
    assert r.Entry("route", message.body).canonical() == entry.canonical()
