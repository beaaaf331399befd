"""Names and answers for the BPF program, against dnspython as a second opinion."""

from __future__ import annotations

import struct

import dns.message
import dns.name
import dns.rdatatype
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.encode import net_dns

LABEL = st.text("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789-_", min_size=1, max_size=63)
NAME = st.lists(LABEL, min_size=1, max_size=4).map(".".join).filter(lambda n: len(n) < 250)


@given(NAME)
def test_a_name_is_what_dnspython_makes_of_it(name: str) -> None:
    theirs = dns.name.from_text(name.lower()).to_wire()
    assert net_dns.wire_name(name) + b"\0" == theirs
    assert net_dns.wire_name(name + ".") == net_dns.wire_name(name)


@pytest.mark.parametrize("name", ["", ".", "a..b", "x" * 64, ".".join(["x" * 63] * 5)])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match="no DNS name"):
        net_dns.wire_name(name)


def test_a_hash_by_number() -> None:
    """FNV-1a of the bytes from last to first; the empty name has the offset basis."""
    assert net_dns.name_hash(b"") == 0xCBF29CE484222325
    assert net_dns.name_hash(b"a") == 0xAF63DC4C8601EC8C  # the published value
    assert net_dns.name_hash(b"raboof") == 0x85944171F73967E8  # of "foobar"


def matches(names: tuple[str, ...], asked: str) -> bool:
    """As the program does it: ends of the name, looked up one after the other."""
    known, wire, at = net_dns.chosen_names(names), net_dns.wire_name(asked), 0
    while at < len(wire):
        which = net_dns.BELOW if at else net_dns.SELF
        if known.get(net_dns.name_hash(wire[at:]), 0) & which:
            return True
        at += wire[at] + 1
    return False


@given(NAME, NAME)
def test_itself_or_all_below(base: str, more: str) -> None:
    assert matches((base,), base.upper())
    assert not matches((base,), f"{more}.{base}") or len(f"{more}.{base}") > 250
    below = f"{more}.{base}"
    if len(below) < 250:
        assert matches((f"*.{base}",), below)
        assert not matches((base,), below)
    assert not matches((f"*.{base}",), base)
    assert not matches((f"*.{base}",), f"x{base}") or len(base.split(".")[0]) == 63
    assert matches((base, f"*.{base}"), base)


def test_answers_are_read_by_dnspython() -> None:
    addresses = ["192.0.2.1", "2001:db8::1", "192.0.2.2"]
    for version, kind, want in ((4, "A", ["192.0.2.1", "192.0.2.2"]), (6, "AAAA", ["2001:db8::1"])):
        query = dns.message.make_query("db.internal", kind, use_edns=False).to_wire()
        found = net_dns.records(addresses, version, 30)
        header = query[:2] + struct.pack("!HHHHH", 0x8180, 1, len(want), 0, 0)
        (answer,) = dns.message.from_wire(header + query[12:] + found).answer
        assert [item.to_text() for item in answer] == want
        assert (answer.ttl, answer.rdtype) == (30, dns.rdatatype.from_text(kind))
        assert len(found) <= net_dns.MOST_BYTES
    assert (net_dns.most(4), net_dns.most(6)) == (7, 4)
    with pytest.raises(ValueError, match="more than"):
        net_dns.records([f"192.0.2.{i}" for i in range(8)], 4, 1)


def test_settings_by_byte() -> None:
    made = net_dns.config("nxdomain", False)
    assert made == struct.pack("=IIIIIHH", 1, 3, 0, 0, 0, 0, 0) + bytes(224)
    assert net_dns.config("timeout", True)[:12] == struct.pack("=III", 0, 0, 1)
    made = net_dns.config("answer", False, ["192.0.2.1", "::1"], 1)
    assert made[:24] == struct.pack("=IIIIIHH", 2, 0, 0, 16, 28, 1, 1)
    assert len(made) == 248
