"""port-taken and conntrack-full: what programs in the namespace run into, and no others."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from net_kit import ADDRESS, A, Net

from nodeagent.model.errors import Conflict, Refused

FLAVOURS = ("debian-12", "debian-13", "full")
BINDS = """import itertools, json, socket
def bind(kind, family, address, reuse, share):
    s = socket.socket(family, kind)
    if family == socket.AF_INET6: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    if reuse: s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if share: s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        s.bind((address, WANTED))
        if kind == socket.SOCK_STREAM: s.listen()
        return "ok"
    except OSError as exc:
        return exc.strerror
    finally:
        s.close()
ends = [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET6, "::"), (socket.AF_INET6, "::1")]
print(json.dumps({k.name: sorted({bind(k, *e, r, s) for e, r, s in
      itertools.product(ends, (0, 1), (0, 1))}) for k in (socket.SOCK_STREAM, socket.SOCK_DGRAM)}))
"""
TAKEN, FREE = ["Address already in use"], ["ok"]


def binds(net: Net, port: int, ns: str = "a") -> dict[str, list[str]]:
    """What a program is told that wants the port, over all addresses and socket options."""
    net.bench.node.put("/tmp/binds.py", BINDS.replace("WANTED", str(port)).encode())
    found: dict[str, list[str]] = json.loads(net.sh(ns, "python3 /tmp/binds.py"))
    return found


# --- port-taken ---------------------------------------------------------------------


@pytest.mark.vm(*FLAVOURS)
def test_nobody_gets_the_port_whatever_the_socket_options(net: Net) -> None:
    fault = net.inject("port-taken", {"ports": "8080,8090-8091"})
    for port in (8080, 8091):
        assert binds(net, port) == {"SOCK_STREAM": TAKEN, "SOCK_DGRAM": FREE}
    assert binds(net, 8081)["SOCK_STREAM"] == FREE
    assert binds(net, 8080, ns="b")["SOCK_STREAM"] == FREE
    assert "faultctl-port" in net.sh("a", "ss -Hlntp")
    said = net.sh("a", f'timeout 5 bash -c "exec 3<>/dev/tcp/{ADDRESS["a"]}/8080; echo open"')
    assert "open" in said
    assert net.bench.evidence(fault)["hits"] >= 1
    net.revert(fault)
    assert binds(net, 8080) == {"SOCK_STREAM": FREE, "SOCK_DGRAM": FREE}
    assert net.bench.residue() == []
    fault = net.inject("port-taken", {"ports": "8080", "protocol": "both", "clients": "refuse"})
    assert binds(net, 8080) == {"SOCK_STREAM": TAKEN, "SOCK_DGRAM": TAKEN}
    refused = net.bench.node.run(
        "ip netns exec a timeout 5 bash -c 'exec 3<>/dev/tcp/127.0.0.1/8080'", check=False
    )
    assert "refused" in refused.err + refused.out
    net.revert(fault)
    assert binds(net, 8080) == {"SOCK_STREAM": FREE, "SOCK_DGRAM": FREE}


@pytest.mark.vm("debian-13")
def test_who_has_the_port_is_named_and_time_wait_is_no_obstacle(net: Net) -> None:
    node = net.bench.node
    server = "import socket; s = socket.socket(); s.setsockopt(1, 15, 1); s.setsockopt(1, 2, 1)\n"
    server += "s.bind(('', 8080)); s.listen(); c, _ = s.accept(); c.close(); input()"
    node.put("/tmp/server.py", server.encode())
    node.sh(
        "ip netns exec a setsid sh -c 'sleep 600 | python3 /tmp/server.py' >/dev/null 2>&1 "
        "</dev/null & for i in $(seq 100); do ip netns exec a ss -Hlnt | grep -q 8080 && break; "
        "sleep 0.1; done"
    )
    with pytest.raises(Refused, match=r"python3 \(pid \d+\) has it"):
        net.inject("port-taken", {"ports": "8080"})  # with SO_REUSEPORT it could be shared
    net.sh("a", 'timeout 5 bash -c "exec 3<>/dev/tcp/127.0.0.1/8080; cat <&3"')
    node.sh("pkill -f '[s]erver.py'; sleep 0.5")
    assert "TIME-WAIT" in net.sh("a", "ss -Hant")
    net.revert(net.inject("port-taken", {"ports": "8080"}))


@pytest.mark.vm("debian-13")
def test_ports_go_with_whoever_ends_the_process_and_compose(net: Net) -> None:
    node = net.bench.node
    first = net.inject("port-taken", {"ports": "8180"})
    with pytest.raises(Conflict, match=first):
        net.bench.plan("port-taken", A, spec={"ports": "8000-8100,8180"})
    second = net.inject("port-taken", {"ports": "8181"})
    pid = net.bench.evidence(first)["details"]["pids"][0]
    node.sh(f"kill {pid}; sleep 2")
    assert binds(net, 8180)["SOCK_STREAM"] == FREE
    assert binds(net, 8181)["SOCK_STREAM"] == TAKEN
    ended = net.bench.client.fault(first)
    assert (ended.state, ended.end_reason) == ("ended", "remedied")
    net.revert(second)
    assert binds(net, 8181)["SOCK_STREAM"] == FREE
    assert node.run("pgrep faultctl-port", check=False).code == 1
    with pytest.raises(Refused, match="node's own network"):
        net.bench.plan("port-taken", {"type": "pid", "pid": 1}, spec={"ports": "8180"})


# --- conntrack-full -----------------------------------------------------------------

TRACKING = (
    "nft add table inet track; nft add chain inet track out "
    "{ type filter hook output priority 0\\; }; nft add rule inet track out ct state new accept"
)


@pytest.fixture
def small_table(net: Net) -> Iterator[int]:
    """A limit of the node that a test can reach; back to what it was."""
    node = net.bench.node
    node.run("modprobe nf_conntrack_netlink", check=False)
    key = "net.netfilter.nf_conntrack_max"
    before = node.sh(f"sysctl -n {key}").strip()
    node.sh(f"sysctl -qw {key}=2000")
    net.sh("a", TRACKING)
    yield 2000
    net.sh("a", "nft delete table inet track")
    node.sh(f"sysctl -qw {key}={before}")


def answered(net: Net, port: int, ns: str = "a") -> bool:
    """A UDP question and answer as a new flow."""
    script = (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(2); "
        f"s.bind(('', {port})); s.sendto(b'x', ('{ADDRESS['c']}', 7)); "
    )
    net.bench.node.put("/tmp/ask.py", (script + "print(s.recv(9))").encode())
    done = net.bench.node.run(f"ip netns exec {ns} python3 /tmp/ask.py", check=False, timeout=30)
    return bool(done.ok)


def table(net: Net) -> int:
    return int(net.sh("a", "cat /proc/sys/net/netfilter/nf_conntrack_count"))


@pytest.mark.vm(*FLAVOURS)
def test_no_new_connection_gets_in_and_others_go_on(net: Net, small_table: int) -> None:
    node = net.bench.node
    echo = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('', 7))\n"
    node.put("/tmp/udp7.py", (echo + "while True: s.sendto(b'y', s.recvfrom(99)[1])").encode())
    node.sh("ip netns exec c setsid python3 /tmp/udp7.py >/dev/null 2>&1 </dev/null & sleep 1")
    node.put("/tmp/kept.py", KEPT.replace("HOST", ADDRESS["c"]).encode())
    node.sh(
        "mkfifo /tmp/kept; (ip netns exec a setsid python3 /tmp/kept.py </tmp/kept "
        ">/tmp/kept.out 2>&1 &); exec 9>/tmp/kept; (setsid sleep 300 9>&9 >/dev/null 2>&1 "
        "</dev/null &); for i in $(seq 100); do grep -qs open /tmp/kept.out && break; "
        "sleep 0.1; done"
    )
    assert answered(net, 4001)
    fault = net.inject("conntrack-full", {})
    assert table(net) == small_table
    assert not answered(net, 4002)
    assert answered(net, 4003, ns="b"), "another namespace has a table of its own"
    node.sh("echo >/tmp/kept; sleep 2")
    assert node.sh("cat /tmp/kept.out").split() == ["open", "answered"], "a flow that was there"
    assert node.sh("sysctl -n net.netfilter.nf_conntrack_max").strip() == str(small_table)
    evidence = net.bench.evidence(fault)
    assert evidence["hits"] >= 1
    assert "table full" in node.sh("dmesg") or net.bench.evidence(fault)["counters"]["early_drop"]
    net.revert(fault)
    assert table(net) < 50
    assert answered(net, 4004)
    assert net.bench.residue() == []
    node.sh("pkill -f '[u]dp7.py'; pkill -f '[k]ept.py'; rm -f /tmp/kept")


KEPT = """import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5)
s.connect(("HOST", 7)); s.send(b"x"); s.recv(9); s.send(b"x"); s.recv(9)
print("open", flush=True)
sys.stdin.readline(); s.send(b"x"); s.recv(9)
print("answered", flush=True)
sys.stdin.readline()
"""


FLOWS = """import socket
for port in range(5000, 5020):
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("10.9.0.2", port))
"""


def flows_of(net: Net) -> int:
    """How many of these flows are in the table."""
    return int(net.sh("a", "grep -c dport=50 /proc/net/nf_conntrack || test $? = 1"))


@pytest.mark.vm("debian-13")
def test_it_stays_full_and_takes_only_its_own_away(net: Net, small_table: int) -> None:
    node = net.bench.node
    net.sh("a", "sysctl -qw net.netfilter.nf_conntrack_udp_timeout=20")
    node.put("/tmp/flows.py", FLOWS.encode())
    net.sh("a", "python3 /tmp/flows.py")
    assert flows_of(net) == 20
    fault = net.inject("conntrack-full", {"free": 50})
    assert table(net) == small_table - 50
    with pytest.raises(Conflict, match=fault):
        net.bench.plan("conntrack-full", A)
    # twenty flows end meanwhile, and their places are taken
    node.sh(
        "for i in $(seq 120); do [ $(ip netns exec a sh -c 'grep -c dport=50 "
        "/proc/net/nf_conntrack') = 0 ] && break; sleep 0.5; done; sleep 1",
        timeout=120,
    )
    assert flows_of(net) == 0
    assert table(net) == small_table - 50
    net.sh("a", "sysctl -qw net.netfilter.nf_conntrack_udp_timeout=30; python3 /tmp/flows.py")
    net.revert(fault)
    assert 20 <= table(net) < 50
    with pytest.raises(Refused, match="are to be free"):
        net.inject("conntrack-full", {"free": 5000})
