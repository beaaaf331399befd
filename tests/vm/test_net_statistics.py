"""What netem does, measured against what was asked, with the statistics stated.

Every claim is an interval at z = 3.9 (a chance of 1 in 10,000 to fail a sound kernel). Under
emulation timers are late, never early: so a delay has its interval on one side, and on the other
the lateness that the same traffic shows without a fault is allowed for.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from net_kit import ADDRESS, ADDRESS6, Net, binomial_bounds

Z = 3.9
HERE = Path(__file__).parent
FLAVOURS = ("debian-12", "debian-13", "full")
ROUNDS = 1000


def mean(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half of its interval."""
    return statistics.fmean(values), Z * statistics.stdev(values) / len(values) ** 0.5


def difference(after: Sequence[float], before: Sequence[float]) -> tuple[float, float]:
    """How much later on average, and half of the interval."""
    (a, x), (b, y) = mean(after), mean(before)
    return a - b, (x * x + y * y) ** 0.5


def requests(net: Net, host: str, count: int = 40) -> list[float]:
    """Round trips of one TCP connection in ms."""
    found: list[float] = json.loads(
        net.sh("a", f"python3 /tmp/guest_net.py ask {host} 7000 {count}", timeout=120)
    )
    return found


@pytest.fixture
def servers(net: Net) -> Iterator[None]:
    node = net.bench.node
    for ns in "bc":
        node.sh(
            f"rm -f /tmp/rr-{ns}; ip netns exec {ns} setsid python3 /tmp/guest_net.py echo 7000 "
            f">/tmp/rr-{ns} 2>&1 </dev/null & "
            f"for i in $(seq 200); do grep -qs ready /tmp/rr-{ns} && break; sleep 0.1; done"
        )
    yield
    node.sh("pkill -f '[g]uest_net.py echo'")


@pytest.mark.vm("debian-13")
@pytest.mark.parametrize("direction", ["egress", "ingress", "both"])
def test_delay_of_requests_over_tcp(net: Net, servers: None, direction: str) -> None:
    """40 requests, both families; what does not match is as late as before."""
    trips = 2 if direction == "both" else 1
    hosts = (ADDRESS["b"], ADDRESS6["b"], ADDRESS["c"])
    before = {host: requests(net, host) for host in hosts}
    spec = {"delay": "40ms", "direction": direction, "to": f"{ADDRESS['b']},{ADDRESS6['b']}"}
    fault = net.inject("netem", spec)
    for host in hosts[:2]:
        found = requests(net, host)
        late, half = difference(found, before[host])
        slack = 2 * max(statistics.median(before[host]), 1.0) * trips
        assert min(found) >= 40 * trips
        assert late + half >= 40 * trips
        assert late - half <= 40 * trips * 1.02 + slack, (late, half)
    other, half = difference(requests(net, hosts[2]), before[hosts[2]])
    assert abs(other) <= half + max(statistics.median(before[hosts[2]]), 1.0)
    net.revert(fault)


@pytest.mark.vm("debian-13")
@pytest.mark.parametrize(
    ("distribution", "sigma"), [("uniform", 2 * 30 / 12**0.5), ("normal", 30.0)]
)
def test_jitter_has_the_spread_that_was_asked(net: Net, distribution: str, sigma: float) -> None:
    """200 pings at 100 ms +- 30 ms: the mean, and the deviation (its error is s / sqrt 2n)."""
    before = net.rtts(ADDRESS["b"], 40)
    spec = {"delay": "100ms", "jitter": "30ms", "distribution": distribution}
    fault = net.inject("netem", spec)
    found = net.rtts(ADDRESS["b"], 200)
    late, half = difference(found, before)
    slack = 2 * max(statistics.median(before), 1.0)
    assert late + half >= 100
    assert late - half <= 102 + slack, (late, half)
    spread = statistics.stdev(found)
    error = Z * spread / (2 * len(found)) ** 0.5
    assert sigma - error <= spread <= sigma + error + slack, (spread, error)
    if distribution == "uniform":
        assert min(found) >= 70
        assert sum(130 + slack < x for x in found) <= 4  # late timers
    net.revert(fault)


@pytest.mark.vm("debian-13")
@pytest.mark.parametrize("host", [ADDRESS["b"], ADDRESS6["b"]], ids=["ipv4", "ipv6"])
def test_loss_and_reordering_are_binomial(net: Net, host: str) -> None:
    fault = net.inject("netem", {"loss": "3%", "to": "*:5001/udp"})
    got = net.udp("b", 6000, size=64, host=host)
    low, high = binomial_bounds(6000, 0.03, Z)
    assert low <= 6000 - got["count"] <= high
    net.revert(fault)
    spec = {"delay": "100ms", "reorder": "20%", "to": "*:5001/udp"}
    fault = net.inject("netem", spec)
    got = net.udp("b", 2000, 1000, host=host)
    low, high = binomial_bounds(2000, 0.2, Z)
    assert got["count"] == 2000
    # of the last packets some overtake none any more
    assert low - 0.2 * 100 <= got["early"] <= high, got["early"]
    net.revert(fault)


@pytest.mark.vm("debian-13")
@pytest.mark.parametrize("host", [ADDRESS["b"], ADDRESS6["b"]], ids=["ipv4", "ipv6"])
def test_rate_by_iperf3(net: Net, host: str) -> None:
    """TCP through 8 Mbit/s for ten seconds: within 10 %, headers counted (1448 of 1514 bytes)."""
    node = net.bench.node
    node.sh("ip netns exec b iperf3 -s -D -1 >/dev/null 2>&1; sleep 1")
    fault = net.inject("netem", {"rate": "8mbit", "to": f"{ADDRESS['b']},{ADDRESS6['b']}"})
    done = net.sh("a", f"iperf3 -c {host} -t 10 -O 2 -J", timeout=120)
    found = json.loads(done)["end"]["sum_received"]["bits_per_second"]
    payload = 8e6 * (1428 if ":" in host else 1448) / 1514
    assert 0.9 * payload <= found <= 1.1 * payload, found
    net.revert(fault)


@pytest.mark.vm("debian-13")
@pytest.mark.slow
def test_a_flood_with_normal_jitter_locks_nothing_up(net: Net) -> None:
    """CASES 56: a minute of it; node and agent answer, the kernel's log has no complaint."""
    node = net.bench.node
    node.sh("dmesg -C")
    spec = {"delay": "50ms", "jitter": "20ms", "distribution": "normal", "direction": "both"}
    fault = net.inject("netem", spec)
    node.sh(
        f"ip netns exec a setsid timeout 60 ping -f -s 1000 {ADDRESS['b']} >/tmp/flood.out 2>&1 "
        "</dev/null &"
    )
    for _ in range(12):
        assert net.bench.client.fault(fault).state == "armed"
        node.sh("sleep 5", timeout=60)
    node.sh("for i in $(seq 100); do grep -qs received /tmp/flood.out && break; sleep 0.2; done")
    log = node.sh("dmesg")
    assert not [x for x in log.splitlines() if "lockup" in x or "stall" in x or "Call Trace" in x]
    assert net.counters(fault)["matched_packets"] > 1000
    net.revert(fault)
    assert net.bench.residue() == []


@pytest.mark.vm("debian-13")
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_thousand_rounds_leave_nothing(net: Net) -> None:
    """Descriptors, memory and the namespace, after 100 rounds and after 1,000, kinds in turn."""
    node = net.bench.node
    node.put("/tmp/guest_net_rounds.py", (HERE / "guest_net_rounds.py").read_bytes())
    before = net.dump()
    argv = ["python3", "/tmp/guest_net_rounds.py", str(ROUNDS)]
    done = node.run(argv, timeout=900)
    found = json.loads(done.out.splitlines()[-1])
    assert found["rounds"] == ROUNDS
    assert found["differs"] == []
    assert found["fds"][0] == found["fds"][1]
    assert found["threads"][0] == found["threads"][1]
    assert found["rss_kb"][1] - found["rss_kb"][0] <= 4096, found
    assert found["programs"][0] == found["programs"][1]
    assert net.dump() == before
    assert net.bench.residue() == []
