"""Plans of dns as data: whose questions, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from test_net_plan import ALL, ETH0, FACTS, LO, NETNS, plan

from nodeagent.faults import kind_named
from nodeagent.model.errors import FaultError, InvalidSpec, Refused
from nodeagent.model.kind import Measured
from nodeagent.model.plan import plan_from_data
from nodeagent.model.steps.net import Dns, IfbShaper, TcFilters

ABLE = FACTS.model_copy(update={"btf": True, "libbpf": "libbpf.so.1", "bpf_objects": ("net_dns",)})


def filters(spec: dict[str, Any], **more: Any) -> list[TcFilters]:
    made = plan("dns", spec, facts=ABLE, **more)
    assert plan_from_data(made.model_dump(mode="json")) == made
    return [s for s in made.steps if isinstance(s, TcFilters)]


def act(spec: dict[str, Any]) -> Dns:
    found = filters(spec)[0].act
    assert isinstance(found, Dns)
    return found


def test_all_questions_of_all_interfaces_lo_too() -> None:
    lo, eth0 = filters({"error": "nxdomain"})
    assert (lo.ifname, eth0.ifname) == ("lo", "eth0")
    assert {s.hook for s in (lo, eth0)} == {"egress"}
    assert [flow.text() for flow in eth0.flows] == ["*:53/udp", "*:53/tcp"]
    assert act({"error": "nxdomain"}).names == ("*",)
    assert "nxdomain" in eth0.summary()
    (one,) = filters({"error": "refused", "servers": "10.96.0.10", "but": "10.96.0.11",
                      "ports": "53,5353", "interface": "eth0"})  # fmt: skip
    assert len(one.flows) == 4
    assert {f.remote for f in one.flows} == {"10.96.0.10/32"}
    assert {f.remote for f in one.but} == {"10.96.0.11/32"}


def test_names_are_case_folded_and_spelled_out() -> None:
    found = act({"error": "servfail", "names": "DB.Internal., *.Example.com  bücher.example"})
    assert found.names == ("db.internal", "*.example.com", "xn--bcher-kva.example")
    found = act({"answer": "192.0.2.1 2001:DB8::1", "ttl": "1m", "names": "x.y"})
    assert (found.answers, found.ttl_s) == (("192.0.2.1", "2001:db8::1"), 60)


def test_late_questions_go_over_a_device() -> None:
    made = plan("dns", {"delay": "2s", "interface": "eth0"}, facts=ABLE)
    device, sent = made.steps
    assert isinstance(device, IfbShaper)
    assert "delay 2000ms" in device.summary()
    assert isinstance(sent, TcFilters)
    assert isinstance(sent.act, Dns)
    assert (sent.act.how, sent.act.device) == ("delay", device.name)
    assert made.mechanism == "tc-delay"
    without = ABLE.model_copy(update={"net_features": tuple(f for f in ALL if f != "netem")})
    assert plan("dns", {"error": "timeout"}, facts=without).mechanism == "tc-answer"
    with pytest.raises(Refused, match="sch_netem"):
        plan("dns", {"delay": "2s"}, facts=without)


@pytest.mark.parametrize(
    ("spec", "error", "words"),
    [
        ({}, InvalidSpec, "what should happen"),
        ({"error": "nxdomain", "delay": "1s"}, InvalidSpec, "what should happen"),
        ({"error": "nxdomain", "answer": "192.0.2.1"}, InvalidSpec, "what should happen"),
        ({"error": "NOTIMP"}, InvalidSpec, "error"),
        ({"answer": "192.0.2.300"}, InvalidSpec, "192.0.2.300"),
        ({"answer": ",".join(f"192.0.2.{i}" for i in range(9))}, InvalidSpec, "at most 7"),
        ({"error": "timeout", "names": "a.*.b"}, InvalidSpec, "a star stands"),
        ({"error": "timeout", "names": "api-*.b"}, InvalidSpec, "a star stands"),
        ({"error": "timeout", "names": "a..b"}, InvalidSpec, "no DNS name"),
        ({"error": "timeout", "names": ""}, InvalidSpec, "0 names"),
        ({"error": "timeout", "servers": "10.0.0.1:5353"}, InvalidSpec, "--ports"),
        ({"error": "timeout", "interface": "eth7"}, Refused, "eth7"),
        ({"delay": "5"}, InvalidSpec, "no unit"),
    ],
)
def test_what_is_refused(spec: dict[str, Any], error: type[FaultError], words: str) -> None:
    with pytest.raises(error, match=words):
        plan("dns", spec, facts=ABLE)


def test_guards_and_needs() -> None:
    busy = ETH0.model_copy(update={"filters": (("egress", "bpf pref 2"),)})
    with pytest.raises(Refused, match="bpf pref 2"):
        plan("dns", {"error": "timeout"}, facts=ABLE, interfaces=(LO, busy))
    with pytest.raises(Refused, match="net_dns"):
        plan("dns", {"error": "timeout"}, facts=ABLE.model_copy(update={"bpf_objects": ()}))
    with pytest.raises(Refused, match="node's own network"):
        plan("dns", {"error": "timeout"}, facts=ABLE, host=True)
    assert filters({"error": "timeout"})[0].netns == NETNS


def test_a_thousand_names_and_the_evidence() -> None:
    names = ",".join(f"host-{i}.internal" for i in range(1000))
    found = filters({"error": "timeout", "names": names})
    assert len(found[0].flows) == 2
    kind = kind_named("dns")
    spec = kind.spec.model_validate({"error": "timeout"})
    data = {"matched": {"packets": 9, "bytes": 900}, "answered": {"packets": 2}}
    seen = kind.evidence(spec, (Measured(found[0], data), Measured(found[1], data)))
    assert (seen.hits, seen.counters["matched_packets"]) == (4, 18)
    assert not kind.evidence(spec, (Measured(found[0], {}),)).counted
