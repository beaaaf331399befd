"""netem on real traffic: what was asked is what ping(8), TCP and numbered packets see.

Times are bounds that hold under emulation too: a packet is never early, so that the least and
the middle of many round trips tell; shares are judged by the binomial distribution, at a
chance of about 7 in a million to fail a sound kernel.
"""

from __future__ import annotations

from statistics import median

import pytest
from net_kit import ADDRESS, ADDRESS6, A, Net, binomial_bounds

from nodeagent.model.errors import Conflict, InvalidSpec, Refused

FLAVOURS = ("debian-12", "debian-13", "full")


@pytest.mark.vm(*FLAVOURS)
@pytest.mark.parametrize(("asked", "ms"), [("1500us", 1.5), ("50ms", 50.0), ("1s", 1000.0)])
def test_a_delay_is_what_was_asked_in_both_families(net: Net, asked: str, ms: float) -> None:
    before = net.dump()
    plain = median(net.rtts(ADDRESS["b"]))
    fault = net.inject("netem", {"delay": asked})
    for host in (ADDRESS["b"], ADDRESS6["b"]):
        found = net.rtts(host)
        assert len(found) == 10
        assert min(found) >= ms
        assert median(found) <= 1.1 * ms + 10 * max(plain, 1)
    assert net.counters(fault)["matched_packets"] >= 20
    assert net.bench.evidence(fault)["hits"] >= 20
    net.revert(fault)
    assert net.dump() == before
    assert min(net.rtts(ADDRESS["b"])) < max(ms, 10 * plain)
    assert net.bench.residue() == []


@pytest.mark.vm(*FLAVOURS)
def test_only_what_matches_is_late_and_the_rest_keeps_speed_and_order(net: Net) -> None:
    spec = {"delay": "300ms", "to": f"{ADDRESS['b']}:5000-6000/udp,{ADDRESS6['b']}"}
    fault = net.inject("netem", spec)
    assert min(net.rtts(ADDRESS6["b"], 3)) >= 300
    for host in (ADDRESS["b"], ADDRESS["c"], ADDRESS6["c"]):  # ICMP, another host, both families
        assert max(net.rtts(host)) < 300
    other = net.udp("c", 500, 500)
    assert (other["count"], other["inversions"]) == (500, 0)
    late = net.udp("b", 200)
    assert (late["count"], late["inversions"]) == (200, 0)
    counted = net.counters(fault)
    assert counted["matched_packets"] >= 203  # 3 pings, neighbour discovery, 200 datagrams
    assert counted["qdisc_drops"] == 0
    net.revert(fault)


@pytest.mark.vm(*FLAVOURS)
def test_both_directions_and_ingress_alone(net: Net) -> None:
    for direction, least in (("egress", 100), ("ingress", 100), ("both", 200)):
        fault = net.inject("netem", {"delay": "100ms", "direction": direction})
        for host in (ADDRESS["b"], ADDRESS6["b"]):
            found = net.rtts(host)
            assert least <= min(found)
            assert median(found) < least + 60
        net.revert(fault)


@pytest.mark.vm(*FLAVOURS)
@pytest.mark.parametrize(
    ("spec", "mechanism"),
    [({"loss": "20%"}, "netem"), ({"loss": "20%"}, "tc-bpf"), ({"loss": "0.5%"}, "tc-bpf")],
)
def test_loss_is_the_share_that_was_asked(net: Net, spec: dict[str, str], mechanism: str) -> None:
    fault = net.inject("netem", {**spec, "to": "*:5001/udp"}, mechanism=mechanism)
    got = net.udp("b", 4000, size=64)
    share = float(spec["loss"].rstrip("%")) / 100
    low, high = binomial_bounds(4000, share)
    assert low <= 4000 - got["count"] <= high
    assert got["refused"] == 0, "a loss is silent"
    evidence = net.bench.evidence(fault)
    assert evidence["hits"] == 4000 - got["count"]
    net.revert(fault)
    assert net.udp("b", 500, 1000)["count"] == 500


@pytest.mark.vm("debian-13")
def test_bursts_of_the_gilbert_model_are_as_long_as_asked(net: Net) -> None:
    """p = 2 %, r = 25 %: 7.4 % are lost, in runs of 1/r = 4 packets."""
    fault = net.inject("netem", {"loss_gilbert": "p=2%,r=25%", "to": "*:5001/udp"})
    got = net.udp("b", 20_000, size=64)
    runs = got["lost"]
    assert len(runs) > 200
    assert 3.3 < sum(runs) / len(runs) < 4.7  # standard error of the mean is below 0.2
    assert 0.05 < (20_000 - got["count"]) / 20_000 < 0.10
    net.revert(fault)


@pytest.mark.vm("debian-13")
def test_duplicates_and_reordering(net: Net) -> None:
    fault = net.inject("netem", {"duplicate": "10%", "to": "*:5001/udp"})
    got = net.udp("b", 4000, size=64)
    low, high = binomial_bounds(4000, 0.1)
    assert got["distinct"] == 4000
    assert low <= got["count"] - 4000 <= high
    net.revert(fault)
    spec = {"delay": "100ms", "reorder": "25%", "to": "*:5001/udp"}
    fault = net.inject("netem", spec)
    got = net.udp("b", 1000, 500)
    assert got["count"] == 1000
    assert got["inversions"] > 50
    net.revert(fault)


@pytest.mark.vm("debian-13")
def test_jitter_reorders_unless_order_is_kept(net: Net) -> None:
    """CASES 57: five milliseconds of jitter on packets that are one apart.

    In order as far as netem goes: behind it each CPU delivers what was sent from it (netif_rx),
    and a sender that moves between CPUs has packets swapped there; so it stays on one.
    """
    spec = {"delay": "50ms", "jitter": "5ms", "to": "*:5001/udp"}
    fault = net.inject("netem", spec)
    assert net.udp("b", 2000, 1000)["inversions"] > 100
    assert any("overtake" in s for s in net.bench.evidence(fault)["statements"])
    net.revert(fault)
    fault = net.inject("netem", {**spec, "keep_order": True})
    got = net.udp("b", 2000, 1000, cpu="0")
    assert (got["count"], got["inversions"]) == (2000, 0)
    net.revert(fault)


@pytest.mark.vm("debian-13")
def test_a_delay_of_many_small_packets_loses_none(net: Net) -> None:
    """CASES 41: far more than netem's own 1000 packets wait at once."""
    fault = net.inject("netem", {"delay": "2s", "to": "*:5001/udp"})
    got = net.udp("b", 20_000, size=16, idle=6)
    assert got["count"] == 20_000
    counted = net.counters(fault)
    assert (counted["qdisc_drops"], counted["matched_packets"]) == (0, 20_000)
    net.revert(fault)


@pytest.mark.vm("debian-13")
def test_a_seed_repeats_the_losses(net: Net) -> None:
    lost = []
    for seed in (7, 7, 8):
        spec = {"loss": "30%", "seed": seed, "to": "*:5001/udp"}
        fault = net.inject("netem", spec)
        lost.append(net.udp("b", 300, 2000)["lost"])
        net.revert(fault)
    assert lost[0] == lost[1] != lost[2]


@pytest.mark.vm("debian-12")
def test_a_seed_is_refused_where_the_kernel_takes_none(net: Net) -> None:
    with pytest.raises(Refused, match="takes no seed"):
        net.bench.plan("netem", A, spec={"loss": "30%", "seed": 7})


@pytest.mark.vm("debian-13")
def test_two_faults_compose_when_no_packet_is_meant_by_both(net: Net) -> None:
    """CASES 60: each of the four states is measured; what is left is as it was."""
    before = net.dump()
    late = net.inject("netem", {"delay": "100ms", "to": ADDRESS["b"]})
    with_late = net.dump()
    lossy = net.inject("netem", {"loss": "100%", "to": f"{ADDRESS['c']},{ADDRESS6['c']}"})
    assert min(net.rtts(ADDRESS["b"], 3)) >= 100
    assert net.rtts(ADDRESS["c"], 3) == []
    with pytest.raises(Conflict, match=late):
        net.bench.plan("netem", A, spec={"loss": "1%", "to": "10.9.0.0/30"})
    with pytest.raises(Conflict, match=late):
        net.bench.plan("partition", A)
    net.revert(lossy)
    assert net.dump() == with_late
    assert min(net.rtts(ADDRESS["b"], 3)) >= 100
    assert len(net.rtts(ADDRESS["c"], 3)) == 3
    lossy = net.inject("netem", {"loss": "100%", "to": ADDRESS["c"]})
    net.revert(late)
    assert net.rtts(ADDRESS["c"], 3) == []
    assert max(net.rtts(ADDRESS["b"], 3)) < 100
    net.revert(lossy)
    assert net.dump() == before


@pytest.mark.vm("debian-13")
def test_thousands_of_networks(net: Net) -> None:
    before = net.dump()
    many = ",".join(f"10.{i >> 8}.{i & 255}.0/24" for i in range(4000) if i != 9 << 8)
    fault = net.inject("netem", {"delay": "100ms", "to": f"{many},{ADDRESS['b']}"})
    assert min(net.rtts(ADDRESS["b"], 3)) >= 100
    assert max(net.rtts(ADDRESS["c"])) < 100
    net.revert(fault)
    assert net.dump() == before


@pytest.mark.vm("debian-13")
def test_a_name_is_all_its_addresses_and_those_that_it_gets(net: Net) -> None:
    """CASES 43: by the namespace's own hosts file, both families; what is new is followed."""
    node, before = net.bench.node, net.dump()
    node.sh(f"mkdir -p /etc/netns/a; echo {ADDRESS['b']} far.internal > /etc/netns/a/hosts")
    node.sh(f"echo {ADDRESS6['b']} far.internal >> /etc/netns/a/hosts")
    spec = {"delay": "200ms", "to": "far.internal", "refresh": "1s"}
    plan = net.bench.plan("netem", A, spec=spec)
    assert plan.binding["names"] == [["far.internal", [ADDRESS["b"], ADDRESS6["b"]]]]
    fault = net.inject("netem", spec)
    for host in (ADDRESS["b"], ADDRESS6["b"]):
        assert min(net.rtts(host, 3)) >= 200
    assert max(net.rtts(ADDRESS["c"], 3)) < 200
    node.sh(f"echo {ADDRESS['c']} far.internal > /etc/netns/a/hosts; sleep 4")
    for host in (ADDRESS["b"], ADDRESS["c"]):
        assert min(net.rtts(host, 3)) >= 200
    assert net.bench.evidence(fault)["details"] == {"new_addresses": [f"{ADDRESS['c']}/32"]}
    net.revert(fault)
    assert net.dump() == before
    node.sh("rm -r /etc/netns/a")
    with pytest.raises(Refused, match=r"far\.internal cannot be resolved"):
        net.bench.plan("netem", A, spec=spec)
    assert net.bench.residue() == []


@pytest.mark.vm("debian-13")
def test_bad_input_changes_nothing(net: Net) -> None:
    before = net.dump()
    cases: list[tuple[dict[str, object], type[Exception], str]] = [
        ({}, InvalidSpec, "nothing would happen"),
        ({"delay": "50"}, InvalidSpec, "no unit"),
        ({"jitter": "5ms"}, InvalidSpec, "jitter goes with delay"),
        ({"delay": "1ms", "jitter": "5ms"}, InvalidSpec, "more than delay"),
        ({"loss": "100.1%"}, InvalidSpec, "between"),
        ({"loss": "-1%"}, InvalidSpec, "percentage"),
        ({"rate": "0bit"}, InvalidSpec, "between"),
        ({"rate": "10mbps"}, InvalidSpec, "bits or bytes"),
        ({"reorder": "10%"}, InvalidSpec, "reorder goes with delay"),
        ({"delay": "1s", "rate": "100mbit", "limit": 100}, InvalidSpec, "too small"),
        ({"delay": "1ms", "to": "gone.invalid"}, Refused, "cannot be resolved"),
        ({"delay": "1ms", "interface": "eth7"}, Refused, "eth7"),
        ({"delay": "1ms", "to": ADDRESS["a"]}, Refused, "address of the target itself"),
    ]
    for spec, error, words in cases:
        with pytest.raises(error, match=words):
            net.bench.plan("netem", A, spec=spec)
    net.sh("a", "ip -6 addr flush dev eth0")
    with pytest.raises(Refused, match="no IPv6 address"):
        net.bench.plan("netem", A, spec={"delay": "1ms", "to": ADDRESS6["b"]})
    net.sh("a", f"ip addr add {ADDRESS6['a']}/64 dev eth0 nodad")
    for target, words in (
        ({"type": "pid", "pid": 4_000_000}, "not there"),
        ({"type": "netns", "netns": "/etc/passwd"}, "cannot be entered"),
        ({"type": "cgroup", "cgroup": "/none"}, "not there"),
        ({"type": "pid", "pid": 1}, "node's own network"),
    ):
        with pytest.raises(Refused, match=words):
            net.bench.plan("netem", target, spec={"delay": "1ms"})
    assert net.dump() == before
    assert net.bench.residue() == []
