"""What was there comes back: prior states of an interface, foreign changes, namespaces that end.

The dumps are tc(8)'s and ip(8)'s, compared by byte but for counters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agentkit import Bench
from net_kit import ADDRESS, A, Net, namespaces

from nodeagent.model.errors import Refused

# name -> how an interface of the target comes into this state; DEV is eth0
PRIOR = {
    "noqueue": "true",
    "fq_codel": "tc qdisc add dev eth0 root fq_codel limit 500 target 7ms",
    "mq": "ip link add q0 numtxqueues 4 type dummy; ip link set q0 up; "
    "tc qdisc add dev q0 root handle 1: mq; tc qdisc add dev q0 parent 1:2 handle 20: pfifo",
    "htb": "tc qdisc add dev eth0 root handle 1: htb default 20 r2q 5; "
    "tc class add dev eth0 parent 1: classid 1:1 htb rate 900mbit; "
    "tc class add dev eth0 parent 1:1 classid 1:10 htb rate 100mbit ceil 900mbit prio 1; "
    "tc class add dev eth0 parent 1:1 classid 1:20 htb rate 500mbit burst 15k; "
    "tc qdisc add dev eth0 parent 1:20 handle 30: sfq perturb 10; "
    "tc filter add dev eth0 parent 1: protocol ip prio 5 u32 match ip dst 10.9.0.3/32 flowid 1:10; "
    "tc filter add dev eth0 parent 1: protocol ipv6 prio 6 flower ip_proto tcp dst_port 80 "
    "classid 1:10",
    "clsact": "tc qdisc add dev eth0 clsact; "
    "tc filter add dev eth0 ingress pref 200 protocol ip flower src_ip 192.0.2.1 action drop",
    "netem by somebody else": "tc qdisc add dev eth0 root handle 77: netem delay 1ms limit 9 "
    "loss 0.01%",
    "ingress": "tc qdisc add dev eth0 ingress; "
    "tc filter add dev eth0 parent ffff: protocol all pref 900 u32 match u32 0 0 action pass",
    "txqueuelen 0": "ip link set eth0 txqueuelen 0",
}
FAULTS: dict[str, tuple[str, dict[str, object]]] = {
    "netem": ("netem", {"delay": "20ms", "direction": "both", "to": ADDRESS["b"]}),
    "partition": ("partition", {"to": "10.9.0.3,fd00:9::3"}),
}


@pytest.fixture
def net(bench: Bench) -> Iterator[Net]:
    with namespaces(bench) as found:
        yield found


@pytest.mark.vm("debian-12", "debian-13", "full")
@pytest.mark.parametrize("prior", PRIOR)
def test_every_prior_state_comes_back_by_byte(net: Net, prior: str) -> None:
    net.sh("a", PRIOR[prior])
    before = net.dump()
    for kind, spec in FAULTS.values():
        asked = {**spec, "interface": "q0" if prior == "mq" else "eth0"}
        more: dict[str, object] = {}
        if prior in ("clsact", "ingress"):
            with pytest.raises(Refused, match="pref"):
                net.bench.plan(kind, A, spec=asked)  # their filters would be passed by
            more["acknowledge"] = ["other-filters"]
        if prior == "mq":
            asked.pop("to")
        if prior == "ingress":
            with pytest.raises(Refused, match="taken by a qdisc ingress"):
                net.inject(kind, asked, **more)
            asked["direction"] = "ingress"
        fault = net.inject(kind, asked, **more)
        assert net.dump() != before
        if prior != "mq" and kind == "netem":
            assert min(net.rtts(ADDRESS["b"], 5)) >= 20
            assert len(net.rtts(ADDRESS["c"], 5)) == 5
        net.revert(fault)
        assert net.dump() == before
    assert net.bench.residue() == []


@pytest.mark.vm("debian-13")
def test_a_filter_that_comes_first_leaves_no_room(net: Net) -> None:
    net.sh(
        "a",
        "tc qdisc add dev eth0 clsact; "
        "tc filter add dev eth0 egress pref 1 protocol all matchall action pass",
    )
    before = net.dump()
    with pytest.raises(Refused, match="priority 1 comes first"):
        net.inject("netem", {"delay": "1ms"}, acknowledge=["other-filters"])
    net.sh("a", "tc filter del dev eth0 egress pref 1; tc qdisc del dev eth0 clsact")
    net.sh("a", "tc qdisc add dev eth0 egress_block 22 clsact")
    with pytest.raises(Refused, match="shared block 22"):
        net.inject("netem", {"delay": "1ms"})
    assert net.bench.residue() == []
    assert before != net.dump()


@pytest.mark.vm("debian-13")
def test_filters_that_a_program_of_tcx_would_pass_by_are_refused(net: Net) -> None:
    net.bench.node.put("/tmp/guest_tcx.py", (Path(__file__).parent / "guest_tcx.py").read_bytes())
    net.sh("a", "tc qdisc add dev eth0 clsact")
    net.sh("a", "tc filter add dev eth0 egress protocol ip flower dst_ip 10.9.0.2 action drop")
    assert net.rtts(ADDRESS["b"], 3) == []
    net.sh("a", "python3 /tmp/guest_tcx.py attach eth0 egress")
    assert len(net.rtts(ADDRESS["b"], 3)) == 3, "the kernel never comes to the filter"
    net.sh("a", "tc qdisc del dev eth0 clsact")
    before = net.dump()
    with pytest.raises(Refused, match="tcx there run before clsact"):
        net.inject("partition", {"to": ADDRESS["b"]})
    assert net.dump() == before and net.bench.residue() == []
    net.sh("a", "python3 /tmp/guest_tcx.py detach eth0 egress")
    fault = net.inject("partition", {"to": ADDRESS["b"]})
    assert net.rtts(ADDRESS["b"], 3) == []
    net.revert(fault)


def _foreign_filter(net: Net, fault: str) -> None:
    """Somebody adds a filter to the clsact that came with the fault: it stays, and so does that."""
    net.sh("a", "tc filter add dev eth0 ingress pref 7 protocol ip flower ip_proto udp dst_port 9")
    net.revert(fault)
    left = net.sh("a", "tc filter show dev eth0 ingress; tc qdisc show dev eth0")
    assert "pref 7" in left
    assert "clsact" in left
    assert "faultctl" not in net.sh("a", "ip link")


def _swept(net: Net, fault: str) -> None:
    """CASES 13: somebody has removed it by hand; reverting, twice, is fine."""
    net.sh("a", "tc qdisc del dev eth0 clsact; for d in $(ls /sys/class/net); do true; done")
    net.revert(fault)
    assert net.bench.client.revert(fault).already_ended


def _renamed(net: Net, fault: str) -> None:
    net.sh("a", "ip link set eth0 down; ip link set eth0 name ens3; ip link set ens3 up")
    net.revert(fault)
    assert "clsact" not in net.sh("a", "tc qdisc show dev ens3")
    net.sh("a", "ip link set ens3 down; ip link set ens3 name eth0; ip link set eth0 up")


def _changed(net: Net, fault: str) -> None:
    """Somebody changes our qdisc: the device is ours all the same, and goes."""
    name = net.sh("a", "ip -br link show type ifb").split()[0]
    net.sh("a", f"tc qdisc change dev {name} root netem delay 5ms")
    net.revert(fault)
    assert "ifb" not in net.sh("a", "ip -d link")


@pytest.mark.vm("debian-13")
@pytest.mark.parametrize("change", [_foreign_filter, _swept, _renamed, _changed])
def test_changes_by_somebody_else(net: Net, change: Callable[[Net, str], None]) -> None:
    others = net.bench.node.sh("ip -j link; tc -j qdisc")
    change(net, net.inject("netem", {"delay": "20ms", "interface": "eth0"}))
    assert net.bench.residue() == []
    assert net.bench.node.sh("ip -j link; tc -j qdisc") == others


@pytest.mark.vm("debian-13")
@pytest.mark.parametrize("how", ["interface", "namespace"])
def test_what_is_gone_is_reverted(net: Net, how: str) -> None:
    """CASES 5 and 70: and nothing else is touched."""
    node = net.bench.node
    others = node.sh("ip -j -n b link; tc -j -n b qdisc; ip -n c -j link")
    node.sh("ip netns add short; ip -n short link add eth0 type veth peer name p")
    node.sh("ip -n short link set eth0 up; ip -n short link set p up")
    target = {"type": "netns", "netns": "/run/netns/short"}
    fault = net.inject("netem", {"delay": "20ms", "interface": "eth0"}, target=target)
    node.sh("ip netns del short" if how == "namespace" else "ip -n short link del eth0")
    net.revert(fault)
    assert node.sh("ip -j -n b link; tc -j -n b qdisc; ip -n c -j link") == others
    assert net.bench.residue() == []
    node.run("ip netns del short", check=False)


@pytest.mark.vm("debian-13")
def test_a_namespace_that_lost_its_name_is_found_by_its_cookie(net: Net) -> None:
    """CASES 1: no path that the plan knew leads there any more, a process still is in it."""
    node = net.bench.node
    node.sh("ip netns exec a setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $! > /tmp/holder")
    fault = net.inject("netem", {"delay": "100ms"})
    node.sh("sleep 0.3; umount /run/netns/a; rm /run/netns/a; ip netns add a")  # another one now
    other = node.sh("ip netns exec a tc qdisc show; ip -n a link")
    net.revert(fault)
    enter = "nsenter --net=/proc/$(cat /tmp/holder)/ns/net"
    assert "faultctl" not in node.sh(f"{enter} ip link")
    assert "clsact" not in node.sh(f"{enter} tc qdisc show")
    assert node.sh("ip netns exec a tc qdisc show; ip -n a link") == other
    node.sh("kill $(cat /tmp/holder)")


def backlog_drops(net: Net) -> int:
    """Packets that the CPUs' backlogs had no place for (softnet_seq_show, net/core)."""
    rows = net.bench.node.sh("cat /proc/net/softnet_stat").splitlines()
    return sum(int(row.split()[1], 16) for row in rows)


@pytest.mark.vm("debian-13")
def test_unmatched_traffic_loses_little_when_faults_come_and_go(net: Net) -> None:
    """CASES 64: 20 rounds under 1,000 packets a second to another peer.

    Adding the first clsact and removing the last one stops the queues for a moment; with
    a clsact that stays, nothing is lost at all.
    """
    node = net.bench.node
    for stays in (True, False):
        if stays:
            net.sh("a", "tc qdisc add dev eth0 clsact")
        node.sh(
            "rm -f /tmp/c.out /tmp/a.out; ip netns exec c setsid python3 /tmp/guest_net.py "
            "recv 5002 10 >/tmp/c.out 2>&1 </dev/null &"
        )
        node.sh("for i in $(seq 200); do grep -qs ready /tmp/c.out && break; sleep 0.1; done")
        node.sh(
            f"ip netns exec a setsid python3 /tmp/guest_net.py send {ADDRESS['c']} 5002 30000 "
            "100 1000 >/tmp/a.out 2>&1 </dev/null &"
        )
        rounds, before = 0, backlog_drops(net)
        while rounds < 20 and not node.sh("cat /tmp/a.out 2>/dev/null || true"):
            net.revert(net.inject("netem", {"loss": "100%", "to": ADDRESS["b"]}))
            rounds += 1
        assert rounds >= 5
        node.sh("for i in $(seq 900); do grep -qs count /tmp/c.out && break; sleep 0.1; done",
                timeout=120)  # fmt: skip
        got = json.loads(node.sh("tail -n 1 /tmp/c.out"))
        # What a CPU that is behind has no place for (netdev_max_backlog) is not the fault's doing.
        lost = 30000 - got["count"] - (backlog_drops(net) - before)
        most = 0 if stays else 20 * 2 * rounds
        assert lost <= most, (stays, rounds, lost, got["lost"])
        if stays:
            net.sh("a", "tc qdisc del dev eth0 clsact")


@pytest.mark.vm("debian-13")
def test_a_hundred_rounds_leave_nothing(net: Net) -> None:
    before = net.dump()
    for i in range(100):
        kind, spec = list(FAULTS.values())[i % 2]
        net.revert(net.inject(kind, spec))
    assert net.dump() == before
    assert net.bench.residue() == []
    fds = net.bench.node.sh("ls -l /proc/$(pgrep -o -f '[n]odeagent.main')/fd")
    assert "net:[" not in fds
