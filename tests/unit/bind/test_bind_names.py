"""Host names by a target's own files and name servers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import dns.message
import dns.resolver
import dns.rrset
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.bind import names
from nodeagent.model.errors import Refused
from nodeagent.model.steps.net import NetnsRef

NETNS = NetnsRef(cookie=5, inode=1, path="/proc/7/ns/net")


def test_the_hosts_file() -> None:
    text = "127.0.0.1 localhost # me\n10.0.0.1\tDB.internal db\nfd00::1 db.internal.\n\nx y\n# z\n"
    found = names.parse_hosts(text)
    assert found["db.internal"] == {"10.0.0.1", "fd00::1"}
    assert found["db"] == {"10.0.0.1"}
    assert found.keys() == {"localhost", "db", "db.internal"}


@given(st.text())
def test_any_text_is_a_hosts_file(text: str) -> None:
    for found in names.parse_hosts(text).values():
        assert found


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process with a root of its own; its namespace is this test's."""
    etc = tmp_path / "7" / "root" / "etc"
    etc.mkdir(parents=True)
    (etc / "hosts").write_text("10.0.0.1 known.internal\n")
    monkeypatch.setattr(names, "within", lambda netns, work: work())
    return tmp_path


class Servers:
    """Answers of a name server that gives two of six addresses, others each time."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def answer(self, query: dns.message.Message) -> dns.message.Message:
        (question,) = query.question
        name, kind = question.name, question.rdtype
        self.asked.append(name.to_text())
        made = dns.message.make_response(query)
        if not name.to_text().startswith("many"):
            made.set_rcode(3)
        elif kind == 1:
            turn = 2 * (len(self.asked) % 3)
            addresses = [f"192.0.2.{turn + i}" for i in (1, 2)]
            made.answer.append(dns.rrset.from_text(name, 1, "IN", "A", *addresses))
        else:
            made.answer.append(dns.rrset.from_text(name, 1, "IN", "AAAA", "2001:db8::1"))
        return made


@pytest.fixture
def server(proc: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    """On a port of loopback, as the workload's resolv.conf says but for the port."""
    found = Servers()
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]

    def serve() -> None:
        while True:
            try:
                wire, peer = sock.recvfrom(2000)
                if not wire:
                    return
                sock.sendto(found.answer(dns.message.from_wire(wire)).to_wire(), peer)
            except OSError:
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    read = dns.resolver.Resolver.read_resolv_conf

    def with_port(self: dns.resolver.Resolver, file: object) -> None:
        read(self, file)
        self.port = port

    monkeypatch.setattr(dns.resolver.Resolver, "read_resolv_conf", with_port)
    # as in many images: a link that must be followed from the workload's own root
    (proc / "7" / "root" / "run").mkdir()
    (proc / "7" / "root" / "run/resolv.conf").write_text(
        "nameserver 127.0.0.1\nsearch ns.local\noptions timeout:1\n"
    )
    (proc / "7" / "root" / "etc/resolv.conf").symlink_to("/run/resolv.conf")
    yield found
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
        last.sendto(b"", ("127.0.0.1", port))
    thread.join(5)
    sock.close()


def test_all_addresses_of_a_name_that_rotates(proc: Path, server: Servers) -> None:
    """CASES 43."""
    found = dict(names.resolve_all(NETNS, proc, 7, ["many.example", "known.internal"]))
    assert found["known.internal"] == ("10.0.0.1",)
    assert set(found["many.example"]) == {*(f"192.0.2.{i}" for i in range(1, 7)), "2001:db8::1"}
    assert "known.internal." not in server.asked


def test_a_short_name_is_searched_for(proc: Path, server: Servers) -> None:
    assert dict(names.resolve_all(NETNS, proc, 7, ["many"]))["many"]
    assert "many.ns.local." in server.asked


def test_a_name_without_address_is_an_error(proc: Path, server: Servers) -> None:
    with pytest.raises(Refused, match=r"gone\.example cannot be resolved"):
        names.resolve_all(NETNS, proc, 7, ["gone.example"])


def test_without_name_servers(proc: Path) -> None:
    assert names.resolve_all(NETNS, proc, 7, []) == ()
    with pytest.raises(Refused, match="cannot be resolved"):
        names.resolve_all(NETNS, proc, 7, ["many.example"])
