"""Plans of network faults as data: which steps, what is refused, what composes."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from nodeagent.faults import kind_named
from nodeagent.faults._net import device_name
from nodeagent.model.errors import FaultError, InvalidSpec, Refused
from nodeagent.model.facts import Facts
from nodeagent.model.kind import Measured
from nodeagent.model.net import NetBinding, NetInterface
from nodeagent.model.netspec import Flow, parse_remote
from nodeagent.model.plan import FaultRequest, Plan, plan_from_data
from nodeagent.model.planner import make_plan, parse_request
from nodeagent.model.steps.net import FULL, Drop, IfbShaper, NetnsRef, Redirect, Reject, TcFilters

ALL = ("bpf", "clsact", "flower", "gact", "ifb", "mirred", "netem", "netem:seed", "tbf")
FACTS = Facts(
    node_id="n", kernel_release="6.12", arch="x86_64", boot_id="b", root=True, net_features=ALL
)
NETNS = NetnsRef(cookie=5, inode=4026532000, path="/run/netns/a")
ETH0 = NetInterface(
    name="eth0", ifindex=2, kind="veth", addresses=("10.9.0.1/24", "fd00::1/64"), qdisc="noqueue 0:"
)
LO = NetInterface(name="lo", ifindex=1, loopback=True, addresses=("127.0.0.1/8", "::1/128"))
SSH = Flow(protocol="tcp", local_port=(22, 22))


def plan(
    kind_name: str,
    spec: dict[str, Any],
    *,
    interfaces: tuple[NetInterface, ...] = (LO, ETH0),
    facts: Facts = FACTS,
    ident: str = "t-1",
    acknowledge: tuple[str, ...] = (),
    **binding: Any,
) -> Plan:
    kind = kind_named(kind_name)
    request = FaultRequest(
        id=ident,
        kind=kind_name,
        target={"type": "netns", "netns": "/run/netns/a"},
        spec=spec,
        acknowledge=acknowledge,
    )
    target, parsed = parse_request(kind, request)
    known = {"target": "a", "netns": NETNS, "host": False, "interfaces": interfaces}
    return make_plan(kind, request, target, parsed, NetBinding(**known | binding), facts)


def filters(made: Plan) -> list[TcFilters]:
    return [step for step in made.steps if isinstance(step, TcFilters)]


def test_each_interface_and_direction_has_a_device_and_filters() -> None:
    eth1 = ETH0.model_copy(update={"name": "eth1", "ifindex": 3})
    down = ETH0.model_copy(update={"name": "eth2", "ifindex": 4, "up": False})
    made = plan("netem", {"delay": "1ms", "direction": "both"}, interfaces=(LO, ETH0, eth1, down))
    ops = [str(step.model_dump()["op"]) for step in made.steps]
    assert ops == ["ifb_shaper", "tc_filters"] * 4
    assert [(f.ifname, f.hook) for f in filters(made)] == [
        (name, hook) for name in ("eth0", "eth1") for hook in ("egress", "ingress")
    ]
    names = [step.name for step in made.steps if isinstance(step, IfbShaper)]
    assert [f.act.device for f in filters(made) if isinstance(f.act, Redirect)] == names
    assert len(set(names)) == 4
    assert all(len(name) <= 15 for name in names)
    assert plan_from_data(made.model_dump(mode="json")) == made
    keys = [step.key() for step in made.steps if not step.composes]
    assert len(set(keys)) == 4


def test_device_names_are_the_same_each_time_and_differ_by_fault() -> None:
    assert device_name("t-1", "eth0", "egress") == device_name("t-1", "eth0", "egress")
    assert device_name("t-1", "eth0", "egress") != device_name("t-2", "eth0", "egress")


def test_a_partition_drops_and_has_no_device() -> None:
    made = plan("partition", {"to": "10.0.0.0/8:80/tcp,fd00::/8", "but": "10.9.0.53:53"})
    assert len(made.steps) == 2
    for step in filters(made):
        assert step.act == Drop(chance=FULL)
        assert step.flows == (parse_remote("10.0.0.0/8:80/tcp"), parse_remote("fd00::/8"))
        assert step.but == (parse_remote("10.9.0.53:53"),)


def test_local_ports_and_peers_become_flows() -> None:
    (step,) = filters(
        plan("netem", {"delay": "1ms", "local_ports": "80,90-95"}, peers=("10.9.0.2", "fd00::2"))
    )
    assert {(f.remote, f.local_port) for f in step.flows} == {
        (remote, ports)
        for remote in ("10.9.0.2/32", "fd00::2/128")
        for ports in ((80, 80), (90, 95))
    }


@pytest.mark.parametrize(
    ("spec", "changes", "error", "words"),
    [
        ({"interface": "eth7"}, {}, Refused, "eth7"),
        ({"interface": "eth0,eth7"}, {}, Refused, "eth7"),
        ({}, {"interfaces": (LO,)}, Refused, "no interface that is up"),
        ({"to": "10.9.0.1"}, {}, Refused, "address of the target itself"),
        ({"to": "fd00::1/128"}, {}, Refused, "address of the target itself"),
        (
            {"to": "fd00::2"},
            {"interfaces": (ETH0.model_copy(update={"addresses": ("10.9.0.1/24",)}),)},
            Refused,
            "no IPv6 address",
        ),
        ({"but": "*"}, {}, InvalidSpec, "names everything"),
        ({}, {"host": True}, Refused, "node's own network"),
        ({"host_network": True}, {"host": True}, Refused, "which of the node's interfaces"),
    ],
)
def test_refusals(
    spec: dict[str, Any], changes: dict[str, Any], error: type[FaultError], words: str
) -> None:
    for kind in ("netem", "partition", "bandwidth"):
        more = {"netem": {"delay": "1ms"}, "partition": {}, "bandwidth": {"rate": "1mbit"}}[kind]
        with pytest.raises(error, match=words):
            plan(kind, {**more, **spec}, **changes)


def test_own_addresses_are_fine_on_lo_and_on_ingress() -> None:
    assert plan("netem", {"delay": "1ms", "to": "10.9.0.1", "interface": "lo"}).steps
    assert plan("partition", {"to": "10.9.0.1", "direction": "ingress"}).steps


def test_the_host_s_lifelines_are_always_exceptions() -> None:
    spec = {"delay": "1ms", "host_network": True, "interface": "eth0", "but": "10.9.0.9"}
    (step,) = filters(plan("netem", spec, host=True, lifelines=(SSH,)))
    assert step.but == (parse_remote("10.9.0.9"), SSH)
    assert ", but not 10.9.0.9/32, */tcp<-:22: redirect" in step.summary()


@pytest.mark.parametrize("kind", ["netem", "partition", "bandwidth"])
def test_lifelines_are_hit_only_when_it_is_meant(kind: str) -> None:
    more = {"netem": {"delay": "1ms"}, "partition": {}, "bandwidth": {"rate": "1mbit"}}[kind]
    spec = {**more, "host_network": True, "interface": "eth0", "lifelines": False}
    with pytest.raises(Refused, match="nobody may reach the node") as caught:
        plan(kind, spec, host=True, lifelines=(SSH,))
    assert "--i-know lifeline" in caught.value.hint
    made = plan(kind, spec, host=True, lifelines=(SSH,), acknowledge=("lifeline",))
    assert made.guards == ("lifeline",)
    assert [step.but for step in filters(made)] == [()] * len(filters(made))
    with pytest.raises(InvalidSpec, match="add --host-network"):
        plan(kind, {**more, "lifelines": False})
    # asked for in vain: in a workload's own namespace there are none
    assert plan(kind, {**spec, "interface": None}).guards == ()


def test_others_filters_are_a_guard_rail() -> None:
    busy = ETH0.model_copy(
        update={"filters": (("egress", "bpf pref 2"), ("ingress", "u32 pref 9"))}
    )
    with pytest.raises(Refused, match="bpf pref 2") as caught:
        plan("netem", {"delay": "1ms"}, interfaces=(busy,))
    assert "--i-know other-filters" in caught.value.hint
    assert "u32" not in str(caught.value)
    known = plan("netem", {"delay": "1ms"}, interfaces=(busy,), acknowledge=("other-filters",))
    assert known.guards == ("other-filters",)


def test_a_name_is_all_its_addresses() -> None:
    """CASES 43."""
    names = (("db.internal", ("10.0.0.1", "10.0.0.2", "fd00::2")), ("ok.internal", ("10.0.0.9",)))
    spec = {"delay": "1ms", "to": "db.internal:5432/tcp,10.1.0.0/16", "but": "ok.internal"}
    (step,) = filters(plan("netem", spec, names=names))
    assert [flow.text() for flow in step.flows] == [
        "10.0.0.1/32:5432/tcp", "10.0.0.2/32:5432/tcp", "[fd00::2]/128:5432/tcp", "10.1.0.0/16",
    ]  # fmt: skip
    assert [flow.text() for flow in step.but] == ["10.0.0.9/32"]
    assert [flow.text() for flow in step.names] == ["db.internal:5432/tcp"]
    assert (step.refresh_s, step.resolver_pid) == (30, None)
    never = filters(plan("netem", {**spec, "refresh": "0s"}, names=names, processes=((7, 1),)))[0]
    assert (never.refresh_s, never.resolver_pid) == (0, 7)
    plain = filters(plan("netem", {"delay": "1ms", "to": "10.0.0.1"}))[0]
    assert (plain.names, plain.refresh_s) == ((), 0)
    with pytest.raises(Refused, match=r"db\.internal has no address"):
        plan("netem", spec)


@pytest.mark.parametrize("missing", ["netem", "ifb", "mirred"])
def test_loss_goes_on_without_netem_and_other_things_name_what_is_missing(missing: str) -> None:
    facts = FACTS.model_copy(update={"net_features": tuple(f for f in ALL if f != missing)})
    made = plan("netem", {"loss": "5%"}, facts=facts)
    assert made.mechanism == "tc-bpf"
    (step,) = filters(made)
    assert step.act == Drop(chance=214748365)
    for spec in ({"delay": "1ms"}, {"loss": "5%", "loss_correlation": "5%"}, {"duplicate": "1%"}):
        with pytest.raises(Refused, match=f"no .*{missing}"):
            plan("netem", spec, facts=facts)


@pytest.mark.parametrize(("mode", "how"), [("reject", "reset"), ("unreachable", "unreachable")])
def test_refusals_need_a_program(mode: str, how: str) -> None:
    able = {"btf": True, "libbpf": "libbpf.so.1", "bpf_objects": ("net_reject",)}
    facts = FACTS.model_copy(update=able)
    made = plan("partition", {"mode": mode, "to": "10.9.0.2"}, facts=facts)
    assert made.mechanism == "tc-reject"
    assert [f.act.how for f in filters(made) if isinstance(f.act, Reject)] == [how, how]
    assert f"reject with {how}" in filters(made)[0].summary()
    assert plan_from_data(made.model_dump(mode="json")) == made
    assert plan("partition", {}, facts=facts).mechanism == "tc-drop"
    with pytest.raises(Refused, match="net_reject"):
        plan("partition", {"mode": mode}, facts=facts.model_copy(update={"bpf_objects": ()}))
    with pytest.raises(Refused, match="BTF"):
        plan("partition", {"mode": mode})


def test_a_seed_needs_a_kernel_that_takes_one() -> None:
    facts = FACTS.model_copy(update={"net_features": tuple(f for f in ALL if ":" not in f)})
    with pytest.raises(Refused, match="takes no seed"):
        plan("netem", {"loss": "5%", "seed": 1}, facts=facts)


def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    (a,) = filters(plan("netem", {"delay": "1ms", **one}, lifelines=(SSH,)))
    (b,) = filters(plan("netem", {"delay": "1ms", **other}, ident="t-2", lifelines=(SSH,)))
    assert a.key() == b.key()
    assert a.overlaps(b) == b.overlaps(a)
    return a.overlaps(b)


def test_two_faults_compose_when_no_packet_is_meant_by_both() -> None:
    assert overlap({}, {})
    assert overlap({"to": "10.0.0.0/8"}, {"to": "10.1.0.0/16:80/tcp"})
    assert not overlap({"to": "10.0.0.0/8"}, {"to": "11.0.0.0/8"})
    assert not overlap({"to": "10.0.0.0/8:80/tcp"}, {"to": "10.0.0.0/8:80/udp"})
    assert not overlap({"to": "10.0.0.0/8"}, {"to": "10.0.0.0/8", "direction": "ingress"})
    # an exception of the one would hold for the other as well
    assert overlap({"to": "10.0.0.0/8", "but": "11.0.0.1"}, {"to": "11.0.0.0/8"})


def test_new_addresses_of_a_name_are_in_the_evidence() -> None:
    kind = kind_named("partition")
    (step, _) = plan("partition", {}).steps
    data = {"matched": {"packets": 1, "bytes": 1}, "addresses": ["10.0.0.7/32"], "unresolved": ""}
    spec = kind.spec.model_validate({})
    found = kind.evidence(spec, (Measured(step, data),))
    assert found.details == {"new_addresses": ["10.0.0.7/32"]}
    found = kind.evidence(spec, (Measured(step, {**data, "unresolved": "no answer"}),))
    assert found.details["unresolved"] == "no answer"


def test_evidence_counts_what_was_hit() -> None:
    kind = kind_named("netem")
    (step,) = filters(plan("netem", {"delay": "1ms"}))
    data = {
        "filters": 3,
        "matched": {"packets": 10, "bytes": 1000},
        "qdisc": {"packets": 8, "bytes": 800, "drops": 2, "queued": 1, "overlimits": 0},
    }

    def of(spec: dict[str, Any]) -> Any:
        return kind.evidence(kind.spec.model_validate(spec), (Measured(step, data),))

    assert of({"delay": "1ms"}).hits == 10
    assert any("queue" in s for s in of({"delay": "1ms"}).statements)  # it dropped as well
    assert of({"loss": "5%"}).hits == 2
    assert not of({"duplicate": "5%"}).counted
    assert of({"corrupt": "100%"}).hits == 10
    assert not of({"loss": "5%"}).model_copy(update={"hits": 0}).biting


@pytest.mark.parametrize(
    "name", ["netem", "partition", "bandwidth", "link-down", "port-taken", "conntrack-full", "dns"]
)
def test_examples_plan(name: str) -> None:
    able = {"btf": True, "libbpf": "libbpf.so.1", "bpf_objects": ("net_reject", "net_dns")}
    facts = FACTS.model_copy(update=able | {"net_features": (*ALL, "conntrack")})
    two = (LO, ETH0, ETH0.model_copy(update={"name": "eth1", "ifindex": 3}))
    for line in kind_named(name).examples:
        words = shlex.split(line)
        pairs = dict(zip(words[3::2], words[4::2], strict=True))
        spec = {
            key[2:].replace("-", "_"): value
            for key, value in pairs.items()
            if key not in ("--pid", "--cgroup", "--netns")
        }
        peers = ("10.9.0.2",) if "to_pid" in spec else ()
        made = plan(name, spec, peers=peers, facts=facts, interfaces=two)
        assert made.steps
        assert made.collateral
        assert all(step.summary() for step in made.steps)
