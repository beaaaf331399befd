"""dns: chosen names get wrong, late or no answers, in a workload's net namespace only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from ipaddress import ip_address
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from nodeagent.encode import net_dns
from nodeagent.faults import _net as net
from nodeagent.faults._netem_qdisc import ns
from nodeagent.model.errors import Refused
from nodeagent.model.evidence import Evidence
from nodeagent.model.facts import Need, NeedBpf
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Guard, Measured, Rung
from nodeagent.model.net import NetInterface
from nodeagent.model.netspec import Flow, Ports, Remotes
from nodeagent.model.steps import StepBase
from nodeagent.model.steps.net import Dns, IfbShaper, NetemQdisc, TcFilters
from nodeagent.model.units import Duration

MAX_NAMES = 10_000
DNS_PORT = 53
LIMIT = 10_000
"""Queries that may wait; more than a resolver has under way."""
_NONE = timedelta(0)


def _words(value: object) -> list[str]:
    if isinstance(value, str):
        return [word for word in re.split(r"[,\s]+", value) if word]
    if isinstance(value, Sequence):
        return [str(word) for word in value]
    raise ValueError("text, separated by commas")


def _parse_names(value: object) -> tuple[str, ...]:
    """`db.internal` and `*.internal`, in lower case; other names in their ASCII form."""
    found = []
    for word in _words(value):
        name = word.rstrip(".").encode("idna").decode() if not word.isascii() else word.rstrip(".")
        bare = name.removeprefix("*.")
        if "*" in bare and name != net_dns.EVERYTHING:
            raise ValueError(f"{word!r}: a star stands for all below a name, as in *.internal")
        if name != net_dns.EVERYTHING:
            net_dns.wire_name(bare)
        found.append(name.lower())
    if not 1 <= len(found) <= MAX_NAMES:
        raise ValueError(f"{len(found)} names: from 1 to {MAX_NAMES} can be chosen")
    return tuple(dict.fromkeys(found))


def _parse_addresses(value: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(ip_address(word)) for word in _words(value)))


def _joined(found: tuple[str, ...]) -> str | list[str]:
    return ",".join(found) if found else []


Names = Annotated[
    tuple[str, ...],
    BeforeValidator(_parse_names),
    PlainSerializer(_joined),
    WithJsonSchema({"type": "string", "examples": ["db.internal,*.example.com"]}),
    Field(json_schema_extra={"metavar": "NAMES"}),
]
Addresses = Annotated[
    tuple[str, ...],
    BeforeValidator(_parse_addresses),
    PlainSerializer(_joined),
    WithJsonSchema({"type": "string", "examples": ["192.0.2.1,2001:db8::1"]}),
    Field(json_schema_extra={"metavar": "ADDRESSES"}),
]


class Spec(FaultSpec):
    """Whose questions, and what they get."""

    names: Names = Field(
        default=("*",), description="db.internal, *.internal for all below it, * for all"
    )
    error: Literal["nxdomain", "servfail", "refused", "timeout"] | None = Field(
        default=None, description="the answer is this error, or there is none"
    )
    answer: Addresses = Field(
        default=(), description="the answer has these addresses; other types have none"
    )
    ttl: Duration = Field(
        default=timedelta(seconds=30),
        le=timedelta(days=7),
        description="how long --answer may be kept",
    )
    delay: Duration = Field(
        default=_NONE, le=timedelta(minutes=1), description="questions leave so much later"
    )
    servers: Remotes = Field(default=(), description="only questions to these: 10.96.0.10")
    but: Remotes = Field(default=(), description="not questions to these")
    ports: Ports = Field(default=((DNS_PORT, DNS_PORT),), description="of the servers")
    interface: str | None = Field(
        default=None,
        max_length=255,
        description="names separated by commas, or all; by default all that are up, with lo",
    )
    host_network: bool = Field(default=False, description="allow the node's own network")

    @model_validator(mode="after")
    def _one_thing(self) -> Spec:
        if sum((self.error is not None, bool(self.answer), self.delay > _NONE)) != 1:
            raise ValueError("what should happen? one of --error, --answer and --delay")
        for version in (4, 6):
            count = sum(ip_address(a).version == version for a in self.answer)
            if count > net_dns.most(version):
                raise ValueError(f"at most {net_dns.most(version)} IPv{version} addresses")
        if any(f.name or f.protocol or f.remote_port for f in (*self.servers, *self.but)):
            raise ValueError("servers are networks without a name; their port is --ports")
        return self


def _chosen(spec: Spec, context: Context) -> list[NetInterface]:
    binding = net.net(context)
    net.check_host(spec.host_network, binding)
    if spec.interface is not None:
        return net.interfaces(spec.interface, binding)
    found = [i for i in binding.interfaces if i.up]
    if not found:
        raise Refused(f"{binding.netns.path} has no interface that is up", "nothing is asked there")
    return found


def _flows(spec: Spec, servers: Sequence[Flow]) -> tuple[Flow, ...]:
    return tuple(
        Flow.model_validate({"remote": server.remote, "protocol": p, "remote_port": ports})
        for server in servers
        for ports in spec.ports
        for p in ("udp", "tcp")
    )


def _filters(
    spec: Spec, context: Context, interface: NetInterface, device: str | None
) -> TcFilters:
    return TcFilters(
        fault=context.fault_id,
        netns=net.net(context).netns,
        ifindex=interface.ifindex,
        ifname=interface.name,
        hook="egress",
        flows=_flows(spec, spec.servers or (Flow(),)),
        but=_flows(spec, spec.but),
        act=Dns(
            how=spec.error or ("answer" if spec.answer else "delay"),
            names=spec.names,
            answers=spec.answer,
            ttl_s=int(spec.ttl.total_seconds()) if spec.answer else 0,
            device=device,
        ),
    )


def _needs_answer(spec: Spec) -> tuple[Need, ...]:
    return (*net.needs_filters("bpf"), NeedBpf("net_dns"))


def _plan_answer(spec: Spec, context: Context) -> Sequence[StepBase]:
    return [_filters(spec, context, found, None) for found in _chosen(spec, context)]


def _supports_answer(spec: Spec, context: Context) -> str | None:
    return "it answers at once" if spec.delay else None


def _needs_delay(spec: Spec) -> tuple[Need, ...]:
    return (*net.needs_filters("bpf", "netem", "ifb", "mirred"), NeedBpf("net_dns"))


def _plan_delay(spec: Spec, context: Context) -> Sequence[StepBase]:
    steps: list[StepBase] = []
    late = NetemQdisc(limit=LIMIT, delay_ns=ns(spec.delay))
    for found in _chosen(spec, context):
        name = net.device_name(context.fault_id, found.name, "egress")
        netns = net.net(context).netns
        steps.append(IfbShaper(fault=context.fault_id, netns=netns, name=name, qdisc=late))
        steps.append(_filters(spec, context, found, name))
    return steps


def _supports_delay(spec: Spec, context: Context) -> str | None:
    return None if spec.delay else "it only delays"


def _guards(spec: Spec, context: Context) -> tuple[Guard, ...]:
    return net.other_filters(_chosen(spec, context), ("egress",))


def _evidence(spec: Spec, measured: tuple[Measured, ...]) -> Evidence:
    found = net.counters(measured)
    return Evidence(
        counted="answered_packets" in found,
        hits=found.get("answered_packets", 0),
        counters=found,
        statements=("hits are questions for the chosen names, and their repetitions",),
    )


def _collateral(spec: Spec) -> tuple[str, ...]:
    said = ["what a program made of it (a fail-over, an error that it keeps) stays"]
    if spec.answer:
        said.append(f"resolvers keep wrong addresses for up to {int(spec.ttl.total_seconds())} s")
    return tuple(said)


KIND = FaultKind(
    name="dns",
    summary="names have wrong, late or no answers",
    doc="""\
Questions for the chosen names, of all types and over UDP and TCP, IPv4 and IPv6, never reach
their server: --error gives that error as the server would, or no answer at all (timeout); with
--answer names have these addresses, and no records of other types; with --delay the question
goes to its server, later. Questions for other names are not touched, nor is /etc/resolv.conf.

A BPF program behind filters of the workload's interfaces reads the questions and turns them into
their answers, which come from the address that was asked. So it holds for whatever runs in the
namespace, through restarts, and no process has to live for it. lo is among the interfaces, for
resolvers in the namespace itself. Over TCP a question is seen when it begins a segment, as all
common resolvers send it; the server's end of such a connection is reset.

Not seen: DNS over TLS, HTTPS or QUIC, what a program or a cache has known before, questions in
fragments, and Docker's resolver 127.0.0.11, whose port is another one by then (see --ports).""",
    spec=Spec,
    targets=net.TARGETS,
    ladder=(
        Rung(
            "tc-answer",
            "a BPF program turns questions into answers, or drops them",
            _needs_answer,
            _plan_answer,
            _supports_answer,
        ),
        Rung(
            "tc-delay",
            "questions that a BPF program finds go over a device with sch_netem",
            _needs_delay,
            _plan_delay,
            _supports_delay,
        ),
    ),
    evidence=_evidence,
    collateral=_collateral,
    remedies=(
        "ask in another way: addresses in /etc/hosts, DNS over TLS, a resolver on another port",
        "move the workload to another node: its new network namespace has no fault",
        "tc qdisc del dev INTERFACE clsact in the namespace, which removes all filters there",
    ),
    family="net",
    polled=True,
    guards=_guards,
    no_hits_hint="nobody has asked for such a name: it is cached, or asked in another way",
    examples=(
        "faultctl inject dns --pid 4242 --error nxdomain --names '*.internal'",
        "faultctl inject dns --netns /run/netns/blue --answer 192.0.2.1 --names db.internal",
        "faultctl inject dns --cgroup /kubepods/pod1 --delay 2s",
    ),
)
