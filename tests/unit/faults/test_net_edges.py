"""Edges of network specs and plans: large packets, models of losses, names of many addresses."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError
from test_net_plan import ETH0, FACTS, LO, plan

from nodeagent.faults import kind_named
from nodeagent.faults._netem_qdisc import qdisc_of, scaled
from nodeagent.faults.bandwidth import Spec as Bandwidth
from nodeagent.faults.netem import Spec as Netem
from nodeagent.faults.port_taken import Spec as Ports
from nodeagent.model.errors import Refused
from nodeagent.model.kind import Measured
from nodeagent.model.steps.net import FULL, IfbShaper, TbfQdisc

JUMBO = ETH0.model_copy(update={"name": "eth1", "ifindex": 3, "mtu": 9001})


def bucket(spec: dict[str, Any], *interfaces: Any) -> TbfQdisc:
    made = plan("bandwidth", {"rate": "1mbit", **spec}, interfaces=(LO, *interfaces))
    (qdisc,) = {s.qdisc for s in made.steps if isinstance(s, IfbShaper)}
    assert isinstance(qdisc, TbfQdisc)
    return qdisc


@pytest.mark.parametrize("rate", ["8bit", "1mbit", "10mbit", "10gbit"])
def test_a_bucket_holds_the_largest_packet_of_its_interfaces(rate: str) -> None:
    """sch_tbf drops each packet that is larger than its burst, whatever the rate."""
    made = bucket({"rate": rate}, ETH0, JUMBO)
    assert made.burst >= 9001 + 14
    assert made.limit >= made.burst + 9001 + 14
    assert bucket({"rate": rate, "interface": "lo"}, JUMBO).burst >= 1514
    assert bucket({}, ETH0) == Bandwidth.model_validate({"rate": "1mbit"}).bucket()


def test_a_burst_that_lets_no_full_packet_through_is_refused() -> None:
    with pytest.raises(Refused, match="eth1 has packets of 9015 bytes") as caught:
        bucket({"burst": "2KiB"}, ETH0, JUMBO)
    assert "--burst 9015B" in caught.value.hint
    assert bucket({"burst": "2KiB"}, ETH0).burst == 2048
    assert bucket({"burst": "2KiB", "interface": "eth0"}, ETH0, JUMBO).burst == 2048


# --- models of losses ---------------------------------------------------------------


@given(st.integers(0, 10_000), st.integers(1, 10_000), st.integers(0, 10_000))
@example(5_000, 5_000, 10_000)
def test_ways_out_of_a_state_never_add_up_to_more_than_all(p31: int, p13: int, share: int) -> None:
    """loss_4state adds them in 32 bits: 50% and 50% would be none at all."""
    p32, p14 = (10_000 - p31) * share // 10_000, (10_000 - p13) * share // 10_000
    text = ",".join(
        f"{name}={Decimal(value) / 100}%"
        for name, value in (("p13", p13), ("p31", p31), ("p32", p32), ("p14", p14))
    )
    made = qdisc_of(Netem.model_validate({"delay": "1ms", "loss_states": text})).states
    assert made is not None
    assert made[0] + made[3] <= FULL
    assert made[1] + made[2] <= FULL
    for have, hundredths in zip(made, (p13, p31, p32, p14), strict=False):
        assert abs(have - scaled(Decimal(hundredths) / 100)) <= 1


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"loss_states": "p13=60%,p14=60%"}, "p13 and p14 are 120% together"),
        ({"loss_states": "p13=1%,p31=60%,p32=41%"}, "p31 and p32 are 101% together"),
        ({"loss_states": "p13=1%,p32=50%"}, r"p31 \(99%, as none is given\) and p32 are 149%"),
        ({"loss_states": "p13=0%"}, "nothing would be lost"),
        ({"loss_gilbert": "p=0%"}, "nothing would be lost"),
        ({"rate": "1mbit", "rate_overhead": -21}, "less than nothing"),
        ({"rate": "1mbit", "rate_cell": 48, "rate_cell_overhead": -49}, "less than nothing"),
        ({"rate": "1mbit", "rate_cell": 48, "rate_cell_overhead": -48}, "less than nothing"),
        ({"rate": "1mbit", "rate_cell_overhead": 5}, "goes with rate_cell"),
        ({"slot": "min=0s"}, "slot takes no time"),
        ({"slot": "min=0s,packets=8"}, "slot takes no time"),
    ],
)
def test_models_that_do_nothing_or_cannot_be(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Netem.model_validate(spec)


@pytest.mark.parametrize(
    "spec",
    [
        {"loss_states": "p13=1%,p31=50%,p32=50%"},
        {"loss_states": "p13=0%,p14=1%"},
        {"loss_gilbert": "p=0%,good=1%"},
        {"slot": "min=0s,max=1ms"},
        {"rate": "1mbit", "rate_overhead": -14},
        {"rate": "1mbit", "rate_cell": 48, "rate_cell_overhead": 5},
    ],
)
def test_models_that_do_something(spec: dict[str, Any]) -> None:
    assert Netem.model_validate(spec)


def test_all_that_is_lost_without_netem_is_counted() -> None:
    """Nothing is left to chance then: no filter of its own counts what it takes."""
    kind = kind_named("netem")
    matched = {"packets": 5, "bytes": 500}
    for loss, dropped, hits in (
        ("100%", {}, 5),
        ("50%", {"packets": 3, "bytes": 300}, 3),
        ("50%", {"packets": 0, "bytes": 0}, 0),
    ):
        facts = FACTS.model_copy(update={"net_features": ("bpf", "clsact", "flower", "gact")})
        (step,) = plan("netem", {"loss": loss}, facts=facts).steps
        data = {"matched": matched, "excluded": {}, "dropped": dropped}
        spec = kind.spec.model_validate({"loss": loss})
        assert kind.evidence(spec, (Measured(step, data),)).hits == hits
    shown = {"matched": matched, "qdisc": {"packets": 0, "bytes": 0, "drops": 4, "queued": 0}}
    spec = kind.spec.model_validate({"loss": "100%"})
    assert kind.evidence(spec, (Measured(step, shown),)).hits == 4


# --- ports --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ports", "want"),
    [
        ([8080, 9090], ((8080, 8080), (9090, 9090))),
        ([80, "90-95", [7, 9]], ((7, 9), (80, 80), (90, 95))),
        (80, ((80, 80),)),
    ],
)
def test_ports_of_a_file_may_be_numbers(ports: object, want: object) -> None:
    assert Ports.model_validate({"ports": ports}).ports == want


@pytest.mark.parametrize(
    "ports", [[[80]], [[80, 90, 95]], [None], [True], [0], [65536], [80.5], [{}], True, []]
)
def test_what_are_no_ports_is_told(ports: object) -> None:
    with pytest.raises(ValidationError, match="port"):
        Ports.model_validate({"ports": ports})


# --- addresses that can be reached --------------------------------------------------

V4 = ETH0.model_copy(update={"addresses": ("10.9.0.1/24",)})
PORT_OF_A_BRIDGE = ETH0.model_copy(update={"addresses": ("fe80::1/64",)})
V4_WITH_LINK_LOCAL = ETH0.model_copy(update={"addresses": ("10.9.0.1/24", "fe80::1/64")})
BOTH = ("10.0.0.1", "2001:db8::1")


def test_a_name_or_peer_of_both_families_is_fine_where_one_of_them_is_spoken() -> None:
    """CASES 43, 45: a target without IPv6 can still reach the other addresses."""
    spec = {"delay": "1ms", "to": "db.internal"}
    (_, step) = plan("netem", spec, interfaces=(LO, V4), names=(("db.internal", BOTH),)).steps
    assert {f.remote for f in step.flows} >= {"10.0.0.1/32"}  # type: ignore[attr-defined]
    assert plan("netem", {"delay": "1ms"}, interfaces=(LO, V4), peers=BOTH).steps
    for names, peers in (((("db.internal", BOTH[1:]),), ()), ((), BOTH[1:])):
        with pytest.raises(Refused, match="no IPv6 address"):
            plan("netem", spec if names else {"delay": "1ms"}, interfaces=(LO, V4), names=names,
                 peers=peers)  # fmt: skip
    with pytest.raises(Refused, match="no IPv6 address"):  # that one was asked for by itself
        plan("netem", {"delay": "1ms", "to": "10.0.0.1,2001:db8::1"}, interfaces=(LO, V4))


def test_a_link_local_address_says_nothing_of_other_networks() -> None:
    """Each interface that is up has one, a bridge's port for IPv4 no other."""
    spec = {"delay": "1ms", "to": "10.0.0.0/8"}
    assert plan("netem", spec, interfaces=(LO, PORT_OF_A_BRIDGE)).steps
    for to in ("2001:db8::/32", "fd00::2"):
        with pytest.raises(Refused, match="no IPv6 address"):
            plan("netem", {"delay": "1ms", "to": to}, interfaces=(LO, V4_WITH_LINK_LOCAL))
    for to in ("fe80::2", "ff02::fb", "::/0"):
        assert plan("netem", {"delay": "1ms", "to": to}, interfaces=(LO, V4_WITH_LINK_LOCAL)).steps
    # its address is on another interface, as where routing is by BGP
    lo = LO.model_copy(update={"addresses": ("127.0.0.1/8", "::1/128", "2001:db8:1::1/128")})
    spec = {"delay": "1ms", "to": "2001:db8::/32"}
    assert plan("netem", spec, interfaces=(lo, V4_WITH_LINK_LOCAL)).steps


def test_a_name_that_the_target_has_among_others_is_fine() -> None:
    """A headless service names all of its pods, the target itself too (CASES 51)."""
    spec = {"to": "db.internal", "direction": "egress"}
    names = (("db.internal", ("10.9.0.1", "10.9.0.2")),)
    (step,) = plan("partition", spec, names=names).steps
    assert "10.9.0.2/32" in step.summary()
    with pytest.raises(Refused, match="address of the target itself"):
        plan("partition", spec, names=(("db.internal", ("10.9.0.1", "fd00::1")),))
    with pytest.raises(Refused, match="address of the target itself"):
        plan("partition", {**spec, "to": "10.9.0.1,10.9.0.2"})
    with pytest.raises(Refused, match="address of the target itself"):  # a neighbour in its pod
        plan("partition", {"to_pid": 7}, peers=("10.9.0.1", "fd00::1"))
