"""Entries of the connection table: golden bytes, and that ours are told from all others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.encode import net_attrs as n
from nodeagent.encode import net_conntrack as ct

INDEXES = st.integers(0, ct.MOST - 1)


def entry(request: bytes) -> n.Message:
    """As the kernel shows an entry that was made like this."""
    (found,) = n.messages(request)
    return found


def test_an_entry_by_byte() -> None:
    """198.18.0.1:1024 to 198.19.255.254:9 over UDP, and back; assured; for an hour."""
    assert ct.add(0, 3600).hex() == (
        "8c000000000105060000000000000000" "02000000"
        "34000180" "14000180" "08000100c6120001" "08000200c613fffe"
        "1c000280" "0500010011000000" "0600020004000000" "0600030000090000"
        "34000280" "14000180" "08000100c613fffe" "08000200c6120001"
        "1c000280" "0500010011000000" "0600020000090000" "0600030004000000"
        "080003000000000e" "0800070000000e10"
    )  # fmt: skip


@given(INDEXES)
def test_each_index_is_found_again(index: int) -> None:
    assert ct.is_ours(entry(ct.add(index, 9))) == index
    assert ct.is_ours(entry(ct.get(index))) == index
    assert ct.is_ours(entry(ct.delete(index))) == index
    assert ct.original(index) in ct.add(index, 9)
    assert ct.original(index) in ct.delete(index)


@given(INDEXES, INDEXES)
def test_two_entries_are_two(one: int, other: int) -> None:
    assert (ct.add(one, 9) == ct.add(other, 9)) == (one == other)


@given(INDEXES, st.integers(0, 51), st.integers(1, 255))
def test_a_flow_that_differs_in_any_byte_is_not_that_one(index: int, at: int, by: int) -> None:
    """Another index at most; never one that was not asked for."""
    message = entry(ct.get(index))
    body = bytearray(message.body)
    body[4 + at] ^= by
    try:
        found = ct.is_ours(n.Message(message.kind, message.flags, message.seq, bytes(body)))
    except ValueError:
        return  # no attribute any more
    known = 4 + at in range(16, 20) or 4 + at in range(44, 46)  # the source's address and port
    assert found is None or known or found == index


def test_the_order_of_attributes_makes_no_difference() -> None:
    message = entry(ct.get(77))
    parts = n.attrs(n.attrs(message.body[4:])[1])
    turned = n.nest(1, n.nest(2, parts[2], flag=True), n.nest(1, parts[1], flag=True), flag=True)
    assert ct.is_ours(n.Message(0, 0, 0, message.body[:4] + turned)) == 77


def test_a_message_that_only_wants_to_hear_of_failures() -> None:
    message = ct.add(5, 9)
    assert n.wants_ack(message)
    quiet = n.without_ack(message)
    assert not n.wants_ack(quiet)
    (one,), (other,) = n.messages(message), n.messages(quiet)
    assert one.flags == other.flags | n.NLM_F_ACK
    assert (one.body, one.kind) == (other.body, other.kind)
