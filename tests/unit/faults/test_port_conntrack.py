"""Plans of port-taken and conntrack-full as data, and what their evidence says."""

from __future__ import annotations

from typing import Any

import pytest
from test_net_plan import FACTS, LO, plan

from nodeagent.backends.ports import parse_row
from nodeagent.faults import kind_named
from nodeagent.model.errors import FaultError, InvalidSpec, Refused
from nodeagent.model.evidence import FileEvent, ProcessEvent
from nodeagent.model.kind import Measured
from nodeagent.model.steps.conntrack import ConntrackFill
from nodeagent.model.steps.port import PortHolder

ABLE = FACTS.model_copy(update={"net_features": (*FACTS.net_features, "conntrack")})


def holders(spec: dict[str, Any], ident: str = "t-1") -> list[PortHolder]:
    return [s for s in plan("port-taken", spec, ident=ident).steps if isinstance(s, PortHolder)]


def test_a_holder_for_each_protocol() -> None:
    tcp, udp = holders({"ports": "8080,9000-9002", "protocol": "both"})
    assert (tcp.protocol, udp.protocol) == ("tcp", "udp")
    assert tcp.numbers() == [8080, 9000, 9001, 9002]
    assert tcp.ephemeral, "it goes with the agent"
    assert tcp.key() != udp.key()
    assert tcp.summary() == "listen on * port 8080,9000-9002/tcp"
    (bound,) = holders({"ports": "80", "clients": "refuse", "address": "10.9.0.1"})
    assert bound.summary() == "bind on 10.9.0.1 port 80/tcp"


@pytest.mark.parametrize(
    ("spec", "error", "words"),
    [
        ({}, InvalidSpec, "ports"),
        ({"ports": "0"}, InvalidSpec, "1-65535"),
        ({"ports": "65536"}, InvalidSpec, "1-65535"),
        ({"ports": "1-65535"}, InvalidSpec, "from 1 to 128"),
        ({"ports": "80", "address": "10.9.0.300"}, InvalidSpec, "address"),
        ({"ports": "80", "address": "10.9.0.9"}, Refused, "no address of"),
        ({"ports": "80", "protocol": "icmp"}, InvalidSpec, "protocol"),
    ],
)
def test_what_no_port_is(spec: dict[str, Any], error: type[FaultError], words: str) -> None:
    with pytest.raises(error, match=words):
        plan("port-taken", spec)


def test_two_faults_compose_on_different_ports_or_addresses() -> None:
    def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
        (a,), (b,) = holders(one), holders(other, ident="t-2")
        assert a.overlaps(b) == b.overlaps(a)
        return a.overlaps(b)

    assert overlap({"ports": "80-90"}, {"ports": "90"})
    assert not overlap({"ports": "80"}, {"ports": "81"})
    assert overlap({"ports": "80"}, {"ports": "80", "address": "10.9.0.1"})
    assert not overlap(
        {"ports": "80", "address": "127.0.0.1"}, {"ports": "80", "address": "10.9.0.1"}
    )
    assert not overlap({"ports": "80"}, {"ports": "80", "protocol": "udp"})


def test_lines_of_proc_net() -> None:
    listening = parse_row(
        "   0: 00000000:1F90 00000000:0000 0A 00000000:00000003 00:00000000 00000000     0"
        "        0 40211 1 0000000000000000 100 0 0 10 0"
    )
    assert (listening.port, listening.state, listening.waiting, listening.inode) == (
        8080, "0A", 3, 40211,
    )  # fmt: skip
    six = parse_row(
        "   1: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 0A "
        "00000000:00000000 00:00000000 00000000     0        0 17 1 0000000000000000 100 0 0 10 0"
    )
    assert (six.port, six.inode) == (22, 17)


def test_evidence_of_ports() -> None:
    kind = kind_named("port-taken")
    (step,) = holders({"ports": "80"})
    spec = kind.spec.model_validate({"ports": "80"})
    held = kind.evidence(spec, (Measured(step, {"held": True, "pid": 7, "waiting": 2}),))
    assert (held.hits, held.biting) == (2, True)
    ended = kind.evidence(spec, (Measured(step, {"held": False, "pid": 7, "waiting": 0}),))
    assert any("are free" in s for s in ended.statements)
    udp = kind.spec.model_validate({"ports": "80", "protocol": "udp"})
    assert not kind.evidence(udp, (Measured(step, {"held": True, "pid": 7, "waiting": 0}),)).counted


def test_who_ends_the_process_has_remedied_the_fault() -> None:
    kind = kind_named("port-taken")
    steps = tuple(holders({"ports": "80"}))
    spec = kind.spec.model_validate({"ports": "80"})
    event = ProcessEvent(boottime_ns=1, pid=77, what="ended")
    reaction = kind.react(spec, steps, event)
    assert reaction is not None
    assert "77" in reaction.remedied
    assert kind.react(spec, steps, FileEvent(boottime_ns=1, path="/x", what="gone")) is None


def test_a_full_table() -> None:
    made = plan("conntrack-full", {"free": 10}, facts=ABLE)
    (step,) = made.steps
    assert isinstance(step, ConntrackFill)
    assert not step.ephemeral, "its entries do not go with the agent"
    assert "10" in step.summary()
    with pytest.raises(Refused, match="nf_conntrack_netlink"):
        plan("conntrack-full", {})
    with pytest.raises(Refused, match="node's own network"):
        plan("conntrack-full", {}, facts=ABLE, interfaces=(LO,), host=True)
    with pytest.raises(InvalidSpec):
        plan("conntrack-full", {"free": -1}, facts=ABLE)


def test_a_full_table_of_the_node_is_a_guard_rail() -> None:
    """CASES 12: new connections to its agent and ssh cannot be left alone, so it is refused."""
    spec = {"host_network": True}
    with pytest.raises(Refused, match="new connections to the node") as caught:
        plan("conntrack-full", spec, facts=ABLE, interfaces=(LO,), host=True)
    assert "--i-know lifeline" in caught.value.hint
    known = plan("conntrack-full", spec, facts=ABLE, host=True, acknowledge=("lifeline",))
    assert known.guards == ("lifeline",)
    assert plan("conntrack-full", spec, facts=ABLE).guards == ()


def test_evidence_of_a_full_table() -> None:
    kind = kind_named("conntrack-full")
    (step,) = plan("conntrack-full", {}, facts=ABLE).steps
    data = {"drop": 3, "early_drop": 1, "count": 99, "max": 99, "count_before": 7}
    found = kind.evidence(kind.spec(), (Measured(step, data),))
    assert (found.hits, found.biting) == (4, True)
    empty = kind.evidence(kind.spec(), (Measured(step, {**data, "count_before": 0}),))
    assert any("changes nothing" in s for s in empty.statements)
    assert not kind.evidence(kind.spec(), (Measured(step, {}),)).counted
