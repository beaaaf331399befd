"""dns: what resolvers are told for chosen names, and that all others reach the real server."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from agentkit import Bench
from net_kit import ADDRESS, ADDRESS6, A, Net, Nets

from nodeagent.model.errors import Conflict

FLAVOURS = ("debian-12", "debian-13", "full")
SERVERS = (ADDRESS["b"], ADDRESS6["b"])
CHOSEN = ("db.internal", "A.B.Internal", "x.y.z.internal")
OTHERS = ("internal", "xinternal", "db.example.com")
NAMES = "*.internal"
Asked = tuple[str, str, str, bool]


@pytest.fixture
def net(bench: Bench, nets: Nets) -> Iterator[Net]:
    found = nets.of(bench)
    node = found.bench.node
    node.put("/tmp/guest_dns.py", (Path(__file__).parent / "guest_dns.py").read_bytes())
    for ns in "ab":  # one of the target's own as well
        node.sh(
            f"rm -f /tmp/dns-{ns} /tmp/dns.log; ip netns exec {ns} setsid python3 "
            f"/tmp/guest_dns.py serve >/tmp/dns-{ns} 2>&1 </dev/null & "
            f"for i in $(seq 200); do grep -qs ready /tmp/dns-{ns} && break; sleep 0.1; done"
        )
    yield found
    found.revert_all()
    node.sh("pkill -f '[g]uest_dns.py serve'")


def asked(
    names: Sequence[str], kinds: Sequence[str] = ("A",), servers: Sequence[str] = SERVERS
) -> list[Asked]:
    """Every name, type, server, over UDP and TCP."""
    return list(itertools.product(names, kinds, servers, (False, True)))


def ask(net: Net, questions: list[Asked], ns: str = "a") -> dict[Asked, tuple[str, float]]:
    """What comes, and after how many milliseconds."""
    done = net.bench.node.run(
        ["ip", "netns", "exec", ns, "python3", "/tmp/guest_dns.py", "ask", json.dumps(questions)],
        timeout=120,
    )
    return {q: (said, ms) for q, (said, ms) in zip(questions, json.loads(done.out), strict=True)}


def told(net: Net, questions: list[Asked], ns: str = "a") -> set[str]:
    return {said for said, _ in ask(net, questions, ns).values()}


@pytest.mark.vm(*FLAVOURS)
@pytest.mark.parametrize("offload", ["on", "off"])
def test_errors_and_answers_for_chosen_names_only(net: Net, offload: str) -> None:
    """Both families, UDP and TCP; the server never sees the question, all others reach it."""
    net.sh("a", f"ethtool -K eth0 tx {offload} >/dev/null")
    before = net.dump()
    for error, code in (("nxdomain", 3), ("servfail", 2), ("refused", 5)):
        net.bench.node.sh("rm -f /tmp/dns.log")
        fault = net.inject("dns", {"error": error, "names": NAMES})
        assert told(net, asked(CHOSEN, ("A", "AAAA", "MX")[: 3 if error == "nxdomain" else 1])) == {
            f"rcode {code}"
        }
        assert told(net, asked(OTHERS)) == {"real"}
        assert told(net, asked(CHOSEN[:1], servers=("127.0.0.1", "::1"))) == {f"rcode {code}"}
        assert told(net, asked(CHOSEN[:1]), ns="c") == {"real"}, "another namespace"
        seen = set(net.bench.node.sh("cat /tmp/dns.log").split())
        assert seen == {*OTHERS, CHOSEN[0]}, "CHOSEN[0] is c's question"
        assert net.bench.evidence(fault)["hits"] >= 12
        net.revert(fault)
        assert net.dump() == before
    fault = net.inject("dns", {"answer": "192.0.2.1,192.0.2.2,2001:db8::1", "names": NAMES})
    assert told(net, asked(CHOSEN)) == {"192.0.2.1 192.0.2.2"}
    assert told(net, asked(CHOSEN, ("AAAA",))) == {"2001:db8::1"}
    assert told(net, asked(CHOSEN, ("MX", "TXT"))) == {"empty"}
    assert told(net, asked(OTHERS)) == {"real"}
    net.revert(fault)
    assert told(net, asked(CHOSEN)) == {"real"}
    assert net.bad_sums("a") == {}
    net.sh("a", "ethtool -K eth0 tx on >/dev/null")
    assert net.bench.residue() == []


@pytest.mark.vm(*FLAVOURS)
def test_no_answers_and_late_ones(net: Net) -> None:
    fault = net.inject("dns", {"error": "timeout", "names": "db.internal"})
    assert told(net, asked(("db.internal",))) == {"timeout"}
    assert told(net, asked(("x.db.internal", *OTHERS))) == {"real"}
    net.revert(fault)
    before = net.dump()
    fault = net.inject("dns", {"delay": "700ms", "names": NAMES})
    for said, ms in ask(net, asked(CHOSEN)).values():
        assert said == "real"
        assert ms >= 700
    for said, ms in ask(net, asked(OTHERS)).values():
        assert said == "real"
        assert ms < 700
    assert net.bench.evidence(fault)["hits"] >= 12
    net.revert(fault)
    assert net.dump() == before
    assert net.bench.residue() == []


@pytest.mark.vm("debian-13")
def test_what_libc_makes_of_it(net: Net) -> None:
    """getaddrinfo(3) as the second witness, over a resolv.conf that nobody edits."""
    node = net.bench.node
    node.sh(f"mkdir -p /etc/netns/a; echo nameserver {ADDRESS['b']} > /etc/netns/a/resolv.conf")
    before = node.sh("md5sum /etc/resolv.conf /etc/netns/a/resolv.conf")
    lookup = (
        'python3 -c "import socket; print(sorted({x[4][0] for x in '
        "socket.getaddrinfo('db.internal', 1)}))\" 2>&1 || true"
    )
    fault = net.inject("dns", {"answer": "192.0.2.9,2001:db8::9", "names": "db.internal"})
    net.bench.node.put("/tmp/lookup.sh", lookup.encode())
    assert "['192.0.2.9', '2001:db8::9']" in net.sh("a", "sh /tmp/lookup.sh")
    net.revert(fault)
    fault = net.inject("dns", {"error": "nxdomain", "names": "db.internal"})
    assert "not known" in net.sh("a", "sh /tmp/lookup.sh")
    # over TCP libc sends both questions in one segment
    node.sh("echo options use-vc >> /etc/netns/a/resolv.conf")
    assert "not known" in net.sh("a", "sh /tmp/lookup.sh")
    net.revert(fault)
    fault = net.inject("dns", {"answer": "192.0.2.9,2001:db8::9", "names": "db.internal"})
    assert "['192.0.2.9', '2001:db8::9']" in net.sh("a", "sh /tmp/lookup.sh")
    net.revert(fault)
    node.sh("sed -i '/use-vc/d' /etc/netns/a/resolv.conf")
    assert node.sh("md5sum /etc/resolv.conf /etc/netns/a/resolv.conf") == before
    node.sh("rm -r /etc/netns/a")


@pytest.mark.vm("debian-13")
def test_thousands_of_names_and_a_second_fault(net: Net) -> None:
    many = ",".join(f"host-{i}.internal" for i in range(3000))
    fault = net.inject("dns", {"error": "refused", "names": many, "servers": ADDRESS["b"]})
    assert told(net, asked(("host-0.internal", "host-2999.internal"), servers=SERVERS[:1])) == {
        "rcode 5"
    }
    assert told(net, asked(("host-3000.internal",))) == {"real"}
    assert told(net, asked(("host-0.internal",), servers=SERVERS[1:])) == {"real"}
    with pytest.raises(Conflict, match=fault):
        net.bench.plan("dns", A, spec={"error": "timeout"})
    net.revert(fault)
