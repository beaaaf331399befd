"""What users write of networks, ports, bandwidths, and what netem makes of a spec."""

from __future__ import annotations

from decimal import Decimal
from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nodeagent.encode.net_filter import flower_keys
from nodeagent.faults import kind_named
from nodeagent.faults._netem_qdisc import CEILING, FLOOR, ORDERED_RATE, limit_of, qdisc_of, scaled
from nodeagent.faults.bandwidth import Spec as Bandwidth
from nodeagent.faults.netem import Spec as Netem
from nodeagent.model.netflow import common
from nodeagent.model.netspec import Flow, format_rate, parse_rate, parse_remote
from nodeagent.model.steps.net import FULL
from nodeagent.model.units import format_percent


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("10.0.0.0/8:5432/tcp", ("10.0.0.0/8", "tcp", (5432, 5432))),
        ("10.1.2.3", ("10.1.2.3/32", None, None)),
        ("10.0.0.0/8/TCP", ("10.0.0.0/8", "tcp", None)),
        ("[::1]", ("::1/128", None, None)),
        ("[::1]:80", ("::1/128", None, (80, 80))),
        ("::1:80", ("::1:80/128", None, None)),
        ("[fd00::]/64:80-90/Udp", ("fd00::/64", "udp", (80, 90))),
        ("fd00::/64/tcp", ("fd00::/64", "tcp", None)),
        ("::ffff:10.0.0.1", ("10.0.0.1/32", None, None)),
        ("*:53/udp", (None, "udp", (53, 53))),
        ("*/icmpv6", (None, "icmp", None)),
        ("0.0.0.0/0", ("0.0.0.0/0", None, None)),
    ],
)
def test_a_remote_end(text: str, want: tuple[object, ...]) -> None:
    found = parse_remote(text)
    assert (found.remote, found.protocol, found.remote_port) == want
    assert parse_remote(found.text()) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no network"),
        (":53", "names no network"),
        ("10.0.0.1:", "not a port"),
        ("[::1]:", "not a port"),
        ("10.0.0.1:0", "1-65535"),
        ("10.0.0.1:65536", "1-65535"),
        ("10.0.0.1:90-80", "1-65535"),
        ("10.0.0.1/8", "write 10.0.0.0/8"),
        ("10.0.0.1:80/quic", "none of tcp"),
        ("10.0.0.1:80/icmp", "no ports"),
        ("db..internal:80", "not a network"),
        ("db.internal/24", "not a network"),
        ("-db.internal", "not a network"),
        ("x" * 64, "not a network"),
        ("fe80::1%eth0", "--interface"),
        ("300.1.1.1", "not a network"),
        ("[::1", "names no network"),
        ("10.0.0.1:80:90", "not a network"),
    ],
)
def test_what_is_no_remote_end(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_remote(text)


@given(st.text(max_size=40))
def test_any_text_is_a_remote_end_or_a_value_error(text: str) -> None:
    try:
        found = parse_remote(text)
    except ValueError:
        return
    assert parse_remote(found.text()) == found


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("1mbit", 10**6),
        ("1mbyte", 8 * 10**6),
        ("8mbit", 8 * 10**6),
        ("10Mbit/s", 10**7),
        ("1.5gbit", 15 * 10**8),
        ("40gbit", 40 * 10**9),
        ("1MiB/s", 8 << 20),
        ("5MB/s", 40 * 10**6),
    ],
)
def test_bandwidths(text: str, bits: int) -> None:
    assert parse_rate(text) == bits
    assert parse_rate(format_rate(bits)) == bits


NO_RATES = "1bps 10mbps 1Kbps 10 0bit 1bit -1mbit 1e3mbit 1Mb/s mbit 99999999999gbit 1.5bit"


@pytest.mark.parametrize("text", [*NO_RATES.split(), "1 mbit", ""])
def test_what_is_no_bandwidth(text: str) -> None:
    with pytest.raises(ValueError, match=r"bandwidth|bits or bytes|between|whole number"):
        parse_rate(text)


# --- netem ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "nothing would happen"),
        ({"delay": "0s"}, "nothing would happen"),
        ({"jitter": "1ms"}, "jitter goes with delay"),
        ({"delay": "1ms", "jitter": "5ms"}, "more than delay"),
        ({"delay": "1ms", "distribution": "normal"}, "distribution goes with jitter"),
        ({"delay": "1ms", "delay_correlation": "5%"}, "goes with jitter"),
        ({"delay": "1ms", "keep_order": True}, "goes with jitter"),
        ({"delay": "1ms", "loss_correlation": "5%"}, "goes with loss"),
        ({"reorder": "5%"}, "reorder goes with delay"),
        ({"delay": "1ms", "gap": 5}, "gap goes with reorder"),
        ({"loss": "5%", "loss_gilbert": "p=1%"}, "exclude"),
        ({"loss": "100.1%"}, "between"),
        ({"loss": "NaN%"}, "not a percentage"),
        ({"loss": "-1%"}, "not a percentage"),
        ({"duplicate": "50"}, "write 50%"),
        ({"loss_gilbert": "p=1%,q=2%"}, "q"),
        ({"loss_gilbert": "p"}, "not one of"),
        ({"loss_gilbert": "p=1%,p=2%"}, "not one of"),
        ({"slot": "min=5ms,max=1ms"}, "less than its min"),
        ({"delay": "1s", "rate": "100mbit", "limit": 8000}, "too small"),
        ({"delay": "1ms", "rate_cell": 48}, "go with rate"),
        ({"delay": "1ms", "to": ""}, "names no network"),
        ({"delay": "1ms", "to_pid": 1, "to_netns": "/run/netns/a"}, "exclude"),
        ({"delay": "1ms", "local_ports": "80,70000"}, "1-65535"),
        ({"delay": "1ms", "direction": "out"}, "egress"),
    ],
)
def test_what_a_netem_may_not_be(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Netem.model_validate(spec)


@given(st.integers(0, 10_000))
def test_shares_are_scaled_to_within_one_in_four_billion(hundredths: int) -> None:
    share = Decimal(hundredths) / 100
    value = scaled(share)
    assert abs(Decimal(value) / FULL * 100 - share) < Decimal("0.0000001")
    spec = {"loss": format_percent(share)} if share else {"delay": "1ms"}
    assert qdisc_of(Netem.model_validate(spec)).loss == value
    assert (value == FULL) == (share == 100)


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        ({"delay": "1ms"}, FLOOR),
        ({"delay": "500ms"}, 937_500),
        ({"delay": "60s"}, CEILING),
        ({"delay": "500ms", "jitter": "100ms"}, CEILING),
        ({"delay": "1s", "rate": "100mbit"}, 186_011),
        ({"delay": "1s", "limit": 7}, 7),
    ],
)
def test_the_queue_holds_what_comes_within_the_delay(spec: dict[str, Any], want: int) -> None:
    assert limit_of(Netem.model_validate(spec)) == want


def test_order_is_kept_by_a_rate_that_takes_no_time() -> None:
    spec = Netem.model_validate({"delay": "50ms", "jitter": "5ms", "keep_order": True})
    made = qdisc_of(spec)
    assert made.rate == ORDERED_RATE
    assert 65536 * 10**9 // made.rate == 0  # nanoseconds that a packet takes


def test_models_have_tc_s_defaults_and_order() -> None:
    made = qdisc_of(Netem.model_validate({"loss_gilbert": "p=1%"}))
    assert made.gilbert == (scaled(Decimal(1)), scaled(Decimal(99)), 0, 0)
    made = qdisc_of(Netem.model_validate({"loss_gilbert": "p=1%,r=10%,bad=70%,good=0.1%"}))
    assert made.gilbert == (42949673, 0x1999999A, FULL - scaled(Decimal(70)), 4294967)
    made = qdisc_of(Netem.model_validate({"loss_states": "p13=1%,p31=20%,p32=3%,p23=90%,p14=0.5%"}))
    assert made.states == tuple(map(scaled, map(Decimal, ("1", "20", "3", "0.5", "90"))))
    assert qdisc_of(Netem.model_validate({"delay": "1ms", "reorder": "5%"})).gap == 1


@given(st.integers(8, 400 * 10**9))
def test_a_bucket_can_hold_a_full_packet_at_any_rate(rate: int) -> None:
    bucket = Bandwidth.model_validate({"rate": rate // 8 * 8}).bucket()
    assert bucket.burst >= 1514
    assert bucket.limit > bucket.burst
    assert bucket.rate == rate // 8


def test_every_spec_reads_its_own_json() -> None:
    for name in ("netem", "partition", "bandwidth"):
        kind = kind_named(name)
        spec = kind.spec.model_validate(
            {
                **({"delay": "1ms"} if name == "netem" else {}),
                **({"rate": "10mbit"} if name == "bandwidth" else {}),
                "to": "10.0.0.0/8:5432/tcp,[fd00::]/64:53",
                "local_ports": "80,90-95",
            }
        )
        assert kind.spec.model_validate(spec.model_dump(mode="json")) == spec


# --- overlap ----------------------------------------------------------------------

NETWORKS = st.sampled_from(
    ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "10.1.2.3/32", "11.0.0.0/8", "0.0.0.0/0",
     "fd00::/16", "fd00::/64", "fd00::1/128", "::/0", "10.1.2.128/25"]
)  # fmt: skip
PORTS = st.none() | st.sampled_from([(80, 80), (1, 100), (81, 90), (443, 443)])
FLOWS = st.builds(
    Flow,
    remote=st.none() | NETWORKS,
    protocol=st.none() | st.sampled_from(["tcp", "udp", "icmp"]),
    remote_port=PORTS,
    local_port=PORTS,
).filter(lambda f: f.protocol != "icmp" or (f.remote_port, f.local_port) == (None, None))


def slowly(a: Flow, b: Flow) -> bool:
    """The same question, asked one part after the other."""
    if a.remote and b.remote:
        one, other = ip_network(a.remote), ip_network(b.remote)
        if one.version != other.version or not one.overlaps(other):  # type: ignore[arg-type]
            return False
    if a.protocol and b.protocol and a.protocol != b.protocol:
        return False
    for one_, other_ in ((a, b), (b, a)):
        if one_.protocol == "icmp" and (other_.remote_port or other_.local_port):
            return False
    pairs = ((a.remote_port, b.remote_port), (a.local_port, b.local_port))
    return all(p is None or q is None or max(p[0], q[0]) <= min(p[1], q[1]) for p, q in pairs)


@given(st.lists(FLOWS, min_size=1, max_size=6), st.lists(FLOWS, min_size=1, max_size=6))
def test_common_packets_are_found(one: list[Flow], other: list[Flow]) -> None:
    found = common(one, other)
    assert (found is not None) == any(slowly(a, b) for a in one for b in other)
    if found is not None:
        assert found[0] in one
        assert found[1] in other
        assert slowly(*found)


def test_thousands_of_networks_are_compared_in_no_time() -> None:
    one = [parse_remote(f"10.{i >> 8}.{i & 255}.0/24") for i in range(10_000)]
    other = [parse_remote(f"11.{i >> 8}.{i & 255}.0/24") for i in range(10_000)]
    assert common(one, other) is None
    assert common(one, [*other, parse_remote("10.3.4.5")]) is not None


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("db.internal", Flow(name="db.internal")),
        (
            "DB.Internal.:5432/TCP",
            Flow(name="db.internal", protocol="tcp", remote_port=(5432,) * 2),
        ),
        ("postgres", Flow(name="postgres")),
        ("10-0-0-1.pods.local:80", Flow(name="10-0-0-1.pods.local", remote_port=(80, 80))),
        ("_sip.example", Flow(name="_sip.example")),
    ],
)
def test_names_of_hosts(text: str, want: Flow) -> None:
    assert parse_remote(text) == want
    assert parse_remote(want.text()) == want


def test_a_name_that_is_not_resolved_is_never_taken_for_everything() -> None:
    with pytest.raises(ValueError, match="not resolved"):
        Flow(name="db.internal").network()
    with pytest.raises(ValueError, match="not resolved"):
        list(flower_keys(Flow(name="db.internal"), "egress"))
