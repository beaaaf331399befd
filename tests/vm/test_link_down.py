"""link-down: nobody is heard, and everything that the kernel dropped is there again, by byte."""

from __future__ import annotations

import re

import pytest
from net_kit import ADDRESS, ADDRESS6, A, Net

from nodeagent.model.errors import ForeignState, Refused

FLAVOURS = ("debian-12", "debian-13", "full")
# Everything that goes down with a link: addresses of all sorts, routes in all sorts of tables,
# fixed and proxied neighbours, VLANs with addresses of their own (one of them down before).
RICH = """
ip addr add 10.9.0.77/24 dev eth0
ip addr add fd00:9::77/64 dev eth0
ip addr add fd00:8::1/64 dev eth0 noprefixroute nodad
ip addr add fd00:9::78/64 dev eth0 valid_lft 3000 preferred_lft 1000
ip route add default via 10.9.0.2
ip -6 route add default via fd00:9::2 metric 7
ip route add 10.77.0.0/16 via 10.9.0.2 mtu 1400 advmss 1000
ip route add 10.78.0.0/16 via 10.79.0.1 onlink dev eth0 table 77
ip -6 route add fd00:77::/64 via fd00:9::2 src fd00:9::1
ip route add 10.66.0.0/16 nexthop via 10.9.0.2 weight 2 nexthop via 10.9.0.3
ip route add unreachable 10.99.0.0/16
ip neigh add 10.9.0.50 lladdr 02:00:00:00:00:01 dev eth0
ip neigh add fd00:9::50 lladdr 02:00:00:00:00:01 dev eth0
ip neigh add proxy 10.9.0.60 dev eth0
"""
VLANS = """
ip link add link eth0 name eth0.5 type vlan id 5
ip addr add 10.5.0.1/24 dev eth0.5
ip link set eth0.5 up
ip route add 10.55.0.0/16 via 10.5.0.9
ip link add link eth0 name eth0.6 type vlan id 6
ip link set eth0.6 up; ip link set eth0.6 down
"""
POOR = """
for d in eth0.5 eth0.6; do ip link del $d 2>/dev/null || true; done
ip addr del 10.9.0.77/24 dev eth0
ip neigh flush nud permanent; ip neigh del proxy 10.9.0.60 dev eth0
for a in fd00:9::77 fd00:8::1 fd00:9::78; do ip addr del $a/64 dev eth0; done
for r in default 10.77.0.0/16 10.66.0.0/16 10.99.0.0/16; do ip route del $r || true; done
ip route flush table 77; ip -6 route del default; ip -6 route del fd00:77::/64 || true
"""
SHOW = """
ip addr; ip neigh show nud permanent; ip neigh show proxy
for f in -4 -6; do ip $f route show table all | sort; done
"""


def shown(net: Net) -> str:
    """Addresses, routes and neighbours when no address is being checked any more."""
    net.sh(
        "a",
        "for i in $(seq 100); do ip addr | grep -q tentative || exit 0; sleep 0.1; done; exit 1",
    )
    text = re.sub(r"(_lft|expires) \d+sec", r"\1", net.sh("a", SHOW))
    return text + net.dump()


def hears(net: Net, host: str) -> bool:
    return bool(net.rtts(host, 2, options="-W 1"))


@pytest.mark.vm(*FLAVOURS)
def test_nobody_is_heard_and_all_that_was_dropped_is_back(net: Net) -> None:
    vlans = net.bench.node.config.flavour != "full"  # that kernel has no VLANs
    net.sh("a", RICH + (VLANS if vlans else ""))
    before = shown(net)
    everybody = (ADDRESS["b"], ADDRESS["c"], ADDRESS6["b"], ADDRESS6["c"])
    fault = net.inject("link-down", {"interface": "eth0"})
    assert not any(hears(net, host) for host in everybody)
    assert "state DOWN" in net.sh("a", "ip link show eth0")
    assert "NO-CARRIER" in net.sh("sw", "ip link show port-a"), "its peer sees it"
    assert ADDRESS6["a"] not in net.sh("a", "ip -6 addr")
    assert not net.sh("a", "ip route show default")
    evidence = net.bench.evidence(fault)
    assert evidence["hits"] > 0
    net.revert(fault)
    assert all(hears(net, host) for host in everybody)
    assert shown(net) == before
    assert net.bench.residue() == []
    net.sh("a", POOR)


@pytest.mark.vm("debian-13")
def test_a_new_address_can_be_used_at_once(net: Net) -> None:
    """No second of duplicate detection after the revert, and no trace of how that was done."""
    net.revert(net.inject("link-down", {}))
    line = next(x for x in net.sh("a", "ip -6 addr").splitlines() if f"{ADDRESS6['a']}/" in x)
    assert "tentative" not in line
    assert hears(net, ADDRESS6["b"])


@pytest.mark.vm("debian-13")
def test_what_somebody_has_done_meanwhile_stays(net: Net) -> None:
    """Set up by hand: what is missing comes; another route in the place of ours is not touched."""
    net.sh("a", "ip route add default via 10.9.0.2")
    before = shown(net)
    fault = net.inject("link-down", {"interface": "eth0"})
    net.sh("a", "ip link set eth0 up")
    net.revert(fault)
    assert shown(net) == before
    fault = net.inject("link-down", {"interface": "eth0"})
    net.sh("a", "ip link set eth0 up; ip route add default via 10.9.0.3")
    with pytest.raises(ForeignState, match="neither as it was"):
        net.bench.client.revert(fault)
    assert "10.9.0.3" in net.sh("a", "ip route show default")
    net.sh("a", "ip route del default")
    net.revert(fault)
    assert shown(net) == before
    net.sh("a", "ip route del default")


@pytest.mark.vm("debian-13")
def test_the_interface_or_the_namespace_may_be_gone(net: Net) -> None:
    node = net.bench.node
    for gone in ("ip -n short link del eth0", "ip netns del short"):
        node.sh("ip netns add short; ip -n short link add eth0 type veth peer name p")
        node.sh("ip -n short link set eth0 up; ip -n short link set p up")
        target = {"type": "netns", "netns": "/run/netns/short"}
        fault = net.inject("link-down", {"interface": "eth0"}, target=target)
        node.sh(gone)
        net.revert(fault)
        assert net.bench.residue() == []
        node.run("ip netns del short", check=False)


@pytest.mark.vm("debian-13")
def test_what_is_refused(net: Net) -> None:
    before = shown(net)
    net.sh("a", "ip link add spare type dummy")
    host = {"type": "pid", "pid": 1}
    net.sh("a", "ip nexthop add id 9 via 10.9.0.2 dev eth0")
    with pytest.raises(Refused, match="nexthop objects"):
        net.inject("link-down", {"interface": "eth0"})
    net.sh("a", "ip nexthop del id 9")
    with pytest.raises(Refused, match="down already"):
        net.bench.plan("link-down", A, spec={"interface": "spare"})
    with pytest.raises(Refused, match="eth9"):
        net.bench.plan("link-down", A, spec={"interface": "eth9"})
    with pytest.raises(Refused, match="node's own network"):
        net.bench.plan("link-down", host, spec={"interface": "eth0"})
    with pytest.raises(Refused, match="which of the node's interfaces"):
        net.bench.plan("link-down", host, spec={"host_network": True})
    with pytest.raises(Refused, match="default route goes over eth0"):
        net.bench.plan("link-down", host, spec={"interface": "eth0", "host_network": True})
    net.sh("a", "ip link del spare")
    assert shown(net) == before


@pytest.mark.vm("debian-13")
def test_a_link_of_the_node_itself_when_asked(net: Net) -> None:
    node = net.bench.node
    node.sh("ip link add spare type veth peer name spare2; ip link set spare up")
    node.sh("ip link set spare2 up; ip addr add 10.44.0.1/24 dev spare")
    node.sh("sleep 1; for i in $(seq 50); do ip addr | grep -q tentative || break; sleep 0.1; done")
    before = node.sh("ip addr show spare; ip route")
    asked = {"interface": "spare", "host_network": True}
    fault = net.inject("link-down", asked, target={"type": "pid", "pid": 1})
    assert "10.44.0.0" not in node.sh("ip route")
    net.revert(fault)
    node.sh("for i in $(seq 50); do ip addr | grep -q tentative || break; sleep 0.1; done")
    assert node.sh("ip addr show spare; ip route") == before
    node.sh("ip link del spare")
