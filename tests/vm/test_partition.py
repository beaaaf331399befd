"""partition and bandwidth on real traffic: who still hears whom, in which family and direction."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest
from agentkit import undisturbed
from net_kit import ADDRESS, ADDRESS6, A, Net

from nodeagent.model.errors import Refused

FLAVOURS = ("debian-12", "debian-13", "full")


def hears(net: Net, host: str) -> bool:
    return bool(net.rtts(host, 2, options="-W 1"))


@pytest.mark.vm(*FLAVOURS)
def test_a_partition_cuts_what_is_named_and_nothing_else(net: Net) -> None:
    before = net.dump()
    fault = net.inject("partition", {"to": f"{ADDRESS['b']},{ADDRESS6['b']}"})
    heard = {host: hears(net, host) for host in (*ADDRESS.values(), *ADDRESS6.values())}
    assert heard == {h: h not in (ADDRESS["b"], ADDRESS6["b"]) for h in heard}
    assert net.counters(fault)["matched_packets"] >= 4
    net.revert(fault)
    assert hears(net, ADDRESS["b"])
    assert hears(net, ADDRESS6["b"])
    assert net.dump() == before


@pytest.mark.vm("debian-13")
def test_without_a_network_all_is_cut_but_for_exceptions(net: Net) -> None:
    before = net.dump()
    fault = net.inject("partition", {})
    assert not any(hears(net, h) for h in (ADDRESS["b"], ADDRESS["c"], ADDRESS6["c"]))
    net.revert(fault)
    fault = net.inject("partition", {"but": ADDRESS["c"], "to": "0.0.0.0/0,::/0"})
    assert [hears(net, ADDRESS[n]) for n in "bc"] == [False, True]
    net.revert(fault)
    assert net.dump() == before


@pytest.mark.vm("debian-13")
def test_an_exception_outlives_the_neighbours_that_are_known(net: Net) -> None:
    """Without ARP and neighbour discovery it would be cut as soon as its entry has run out."""
    before = net.dump()
    fault = net.inject("partition", {"but": f"{ADDRESS['c']},{ADDRESS6['c']}"})
    for _ in range(2):
        for ns in "ac":
            net.sh(ns, "ip neigh flush all; ip -6 neigh flush all")
        assert [hears(net, host) for host in (ADDRESS["c"], ADDRESS6["c"])] == [True, True]
        assert [hears(net, host) for host in (ADDRESS["b"], ADDRESS6["b"])] == [False, False]
    net.revert(fault)
    assert net.dump() == before


@pytest.mark.vm("debian-13")
def test_one_way_is_one_way_and_silent(net: Net) -> None:
    fault = net.inject("partition", {"to": ADDRESS["b"], "direction": "egress"})
    got = net.udp("a", 100, 1000, ns="b", host=ADDRESS["a"])
    assert got["count"] == 100  # what b sends still reaches a
    sent = net.sh("a", f"python3 /tmp/guest_net.py send {ADDRESS['b']} 9 100 100 0")
    assert '"refused": 0' in sent  # and a is told nothing
    assert net.counters(fault)["matched_packets"] >= 100
    net.revert(fault)
    fault = net.inject("partition", {"to": ADDRESS["b"], "direction": "ingress"})
    assert not hears(net, ADDRESS["b"])
    assert net.udp("b", 100, 1000)["count"] == 100
    net.revert(fault)


@pytest.mark.vm("debian-13")
def test_between_two_workloads_by_pid_and_by_cgroup(net: Net) -> None:
    node = net.bench.node
    node.sh(
        "for n in a b; do ip netns exec $n setsid sleep 900 >/dev/null 2>&1 </dev/null & "
        "echo $! > /tmp/pid-$n; done; sleep 0.5; mkdir -p /sys/fs/cgroup/pod-a/one; "
        "cat /tmp/pid-a > /sys/fs/cgroup/pod-a/one/cgroup.procs"
    )
    other = int(node.sh("cat /tmp/pid-b"))
    target = {"type": "cgroup", "cgroup": "/pod-a"}
    fault = net.inject("partition", {"to_pid": other}, target=target)
    assert [hears(net, h) for h in (ADDRESS["b"], ADDRESS6["b"], ADDRESS["c"])] == [0, 0, 1]
    # the process is gone, its namespace is not: the way back is the same
    node.sh("kill $(cat /tmp/pid-a); rmdir /sys/fs/cgroup/pod-a/one /sys/fs/cgroup/pod-a")
    net.revert(fault)
    assert hears(net, ADDRESS["b"])


@pytest.mark.vm("debian-13")
def test_the_node_s_own_network_is_refused_and_then_keeps_its_lifelines(net: Net) -> None:
    node_target = {"type": "pid", "pid": 1}
    with pytest.raises(Refused, match="node's own network"):
        net.bench.plan("partition", node_target, spec={"to": "192.0.2.0/24"})
    with pytest.raises(Refused, match="which of the node's interfaces"):
        net.bench.plan("partition", node_target, spec={"host_network": True})
    spec = {"host_network": True, "interface": "eth0"}
    # everything on the node's interface: the agent's own port is on it, and answers still
    fault = net.bench.inject("partition", node_target, lease="60s", spec=spec)
    assert fault.state == "armed"
    evidence = net.bench.evidence(fault.id)
    assert evidence["counters"]["excluded_packets"] > 0
    assert net.bench.client.revert(fault.id).fault.state == "ended"


@pytest.mark.vm(*FLAVOURS)
def test_a_bandwidth_is_the_rate_that_was_asked(net: Net) -> None:
    """CASES 40: 1mbit, 1mbyte and 8mbit relate as 1 : 8 : 8; by the receiver's time stamps.

    A burst of 40 ms: an emulated timer is late by more than a small bucket holds.
    """

    def measured(count: int, burst: int) -> float:
        got = net.udp("b", count, size=1000, idle=5)
        assert got["count"] == count
        wire = 1000 + 8 + 20 + 14
        return float((count * wire - burst) * 8 / (got["span_ns"] / 1e9))  # a burst goes at once

    for rate, asked, count, burst in (
        ("1mbit", 1e6, 200, 5000),
        ("1mbyte", 8e6, 1600, 40_000),
        ("8mbit", 8e6, 1600, 40_000),
    ):
        spec = {"rate": rate, "burst": f"{burst}B", "latency": "30s", "to": "*:5001/udp"}
        fault = net.inject("bandwidth", spec)
        bits = undisturbed(partial(measured, count, burst), 0.9 * asked)
        assert 0.9 * asked <= bits <= 1.1 * asked, rate
        assert net.bench.evidence(fault)["hits"] > 0
        net.revert(fault)


@pytest.mark.vm("debian-13")
def test_a_bandwidth_drops_what_waits_longer_than_the_latency(net: Net) -> None:
    fault = net.inject("bandwidth", {"rate": "80kbit", "latency": "100ms", "to": "*:5001/udp"})
    got = net.udp("b", 200, size=1000, idle=5)
    assert 1 <= got["count"] < 30
    assert net.counters(fault)["qdisc_drops"] == 200 - got["count"]
    net.revert(fault)


@pytest.mark.vm("debian-13")
def test_rates_of_40_gigabits_reach_the_kernel(net: Net) -> None:
    fault = net.inject("bandwidth", {"rate": "40gbit"})
    assert "40Gbit" in net.sh("a", "tc qdisc show")
    net.revert(fault)
    with pytest.raises(Refused, match="net namespaces"):
        net.bench.node.sh(
            "mkdir -p /sys/fs/cgroup/two; for n in a b; do ip netns exec $n setsid sleep 60 "
            ">/dev/null 2>&1 </dev/null & echo $! > /sys/fs/cgroup/two/cgroup.procs; done; sleep 1"
        )
        net.bench.plan("bandwidth", {"type": "cgroup", "cgroup": "/two"}, spec={"rate": "1mbit"})
    assert A["netns"] == "/run/netns/a"


TRY = """import socket, sys, json, time
def tried(kind, host):
    s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind)
    s.settimeout(4)
    start = time.monotonic()
    try:
        s.connect((host, 7777))
        if kind == socket.SOCK_DGRAM:
            s.send(b"x" * 900)
            s.recv(1)
        said = "ok"
    except OSError as exc:
        said = type(exc).__name__ if isinstance(exc, TimeoutError) else exc.strerror
    return [said, time.monotonic() - start]
print(json.dumps({f"{n} {h}": tried(k, h) for h in sys.argv[1:]
                  for n, k in (("tcp", socket.SOCK_STREAM), ("udp", socket.SOCK_DGRAM))}))
"""


def tries(net: Net, ns: str, *hosts: str) -> dict[str, tuple[str, float]]:
    """What TCP and UDP programs in a namespace are told, and after how long."""
    net.bench.node.put("/tmp/try.py", TRY.encode())
    found = json.loads(net.sh(ns, f"python3 /tmp/try.py {' '.join(hosts)}"))
    return {key: (said, took) for key, (said, took) in found.items()}


@pytest.fixture
def echoes(net: Net) -> Iterator[None]:
    """TCP and UDP servers on port 7777 in all three namespaces; UDP answers one byte."""
    code = (
        "import socket, threading\n"
        "t = socket.create_server(('::', 7777), family=socket.AF_INET6, dualstack_ipv6=True)\n"
        "u = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); u.bind(('::', 7777))\n"
        "def udp():\n"
        "    while True: u.sendto(b'y', u.recvfrom(2000)[1])\n"
        "threading.Thread(target=udp, daemon=True).start(); print('ready', flush=True)\n"
        "kept = []\n"
        "while True: kept.append(t.accept())\n"
    )
    node = net.bench.node
    node.put("/tmp/echoes.py", code.encode())
    for ns in "abc":
        node.sh(
            f"rm -f /tmp/echo-{ns}; ip netns exec {ns} setsid python3 /tmp/echoes.py "
            f">/tmp/echo-{ns} 2>&1 </dev/null & "
            f"for i in $(seq 200); do grep -qs ready /tmp/echo-{ns} && break; sleep 0.1; done"
        )
    yield
    node.sh("pkill -f '[e]choes.py'")


@pytest.mark.vm(*FLAVOURS)
@pytest.mark.parametrize("offload", ["on", "off"])
def test_a_refusal_is_told_to_the_sender(net: Net, echoes: None, offload: str) -> None:
    """TCP: refused at once; UDP: refused, and no EPERM; both families; nobody else is told.

    Without checksum offload the sums that the program makes have to be right themselves.
    """
    before = net.dump()
    for ns, dev in (("a", "eth0"), ("b", "eth0")):
        net.sh(ns, f"ethtool -K {dev} tx {offload} >/dev/null")
    refused, others = (ADDRESS["b"], ADDRESS6["b"]), (ADDRESS["c"], ADDRESS6["c"])
    fault = net.inject("partition", {"to": ",".join(refused), "mode": "reject"})
    for key, (said, took) in tries(net, "a", *refused, *others).items():
        assert said == ("Connection refused" if key.split()[1] in refused else "ok"), key
        assert took < 3, key
    for key, (said, _) in tries(net, "b", ADDRESS["a"], ADDRESS6["a"]).items():
        assert said == "Connection refused", key  # the far end is told as well
    assert net.counters(fault)["matched_packets"] >= 8
    assert net.bench.evidence(fault)["hits"] >= 8
    net.revert(fault)
    assert {said for said, _ in tries(net, "a", *refused, *others).values()} == {"ok"}
    for ns in "ab":
        net.sh(ns, "ethtool -K eth0 tx on >/dev/null")
        assert net.bad_sums(ns) == {}
    assert net.dump() == before
    assert net.bench.residue() == []
    assert "net_reject" not in net.bench.node.sh("sleep 0.5; bpftool prog || true")


@pytest.mark.vm("debian-13")
def test_a_connection_that_is_open_is_reset_and_one_way_is_one_way(net: Net, echoes: None) -> None:
    node = net.bench.node
    script = (
        "import socket, sys; s = socket.create_connection((sys.argv[1], 7777)); "
        "print('open', flush=True); sys.stdin.readline(); s.settimeout(20)\n"
        "try: s.send(b'x' * 30000); print(s.recv(1))\n"
        "except OSError as exc: print(exc.strerror)"
    )
    node.put("/tmp/open.py", script.encode())
    for host in (ADDRESS["b"], ADDRESS6["b"]):
        node.sh(
            "rm -f /tmp/fifo /tmp/open.out; mkfifo /tmp/fifo; ip netns exec a setsid sh -c "
            f"'python3 /tmp/open.py {host} < /tmp/fifo' >/tmp/open.out 2>&1 </dev/null & "
            "exec 9>/tmp/fifo; for i in $(seq 100); do grep -qs open /tmp/open.out && break; "
            "sleep 0.1; done; setsid sleep 60 9>&9 >/dev/null 2>&1 </dev/null &"
        )
        spec = {"to": host, "mode": "reject", "direction": "egress"}
        fault = net.inject("partition", spec)
        node.sh("echo >/tmp/fifo; for i in $(seq 100); do "
                "[ $(wc -l < /tmp/open.out) -ge 2 ] && break; sleep 0.1; done")  # fmt: skip
        assert "reset" in node.sh("cat /tmp/open.out")
        net.revert(fault)
    fault = net.inject("partition", {"to": ADDRESS["b"], "mode": "reject", "direction": "ingress"})
    told = {said for said, _ in tries(net, "a", ADDRESS["b"]).values()}
    assert told == {"TimeoutError"}, "what comes from b is refused to b, and a is told nothing"
    told = {said for said, _ in tries(net, "b", ADDRESS["a"]).values()}
    assert told == {"Connection refused"}
    net.revert(fault)


@pytest.mark.vm("debian-13")
def test_unreachable_is_what_a_router_says(net: Net, echoes: None) -> None:
    fault = net.inject(
        "partition", {"to": f"{ADDRESS['b']},{ADDRESS6['b']}", "mode": "unreachable"}
    )
    for key, (said, _) in tries(net, "a", ADDRESS["b"], ADDRESS6["b"]).items():
        if key.startswith("tcp"):  # UDP is told only who asks for it (IP_RECVERR)
            assert said == "No route to host", key
    ping = net.bench.node.run(
        f"ip netns exec a ping -n -c 1 -W 3 {ADDRESS['b']}", check=False, timeout=30
    )
    assert "Destination Host Unreachable" in ping.out
    net.revert(fault)
