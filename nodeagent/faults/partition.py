"""partition: packets between a workload and others are taken away, or refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from nodeagent.faults import _net as net
from nodeagent.faults._net_names import resolved
from nodeagent.model.evidence import Evidence
from nodeagent.model.facts import Need, NeedBpf
from nodeagent.model.kind import Context, FaultKind, Measured, Rung
from nodeagent.model.steps import StepBase
from nodeagent.model.steps.net import Drop, Reject


class Spec(net.NetSpec):
    """Which packets never arrive."""

    direction: net.Direction = Field(
        default="both", description="packets that leave the namespace, that reach it, or both"
    )
    mode: Literal["drop", "reject", "unreachable"] = Field(
        default="drop",
        description="silently, with a TCP reset (others: port unreachable), or host unreachable",
    )


def _needs(spec: Spec) -> tuple[Need, ...]:
    return net.needs_filters()


def _plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    return net.dropped(spec, context, Drop())


def _supports_drop(spec: Spec, context: Context) -> str | None:
    return None if spec.mode == "drop" else "it tells nobody"


def _needs_reject(spec: Spec) -> tuple[Need, ...]:
    return (*net.needs_filters("bpf"), NeedBpf("net_reject"))


def _plan_reject(spec: Spec, context: Context) -> Sequence[StepBase]:
    how: Literal["reset", "unreachable"] = "reset" if spec.mode == "reject" else "unreachable"
    return net.dropped(spec, context, Reject(how=how))


def _supports_reject(spec: Spec, context: Context) -> str | None:
    return "it tells the sender" if spec.mode == "drop" else None


def _evidence(spec: Spec, measured: tuple[Measured, ...]) -> Evidence:
    found = net.counters(measured)
    said = ("answers that pass by are counted too",) if spec.mode != "drop" else ()
    return Evidence(
        counted=True,
        hits=found.get("matched_packets", 0),
        counters=found,
        statements=said,
        details=resolved(measured),
    )


def _collateral(spec: Spec) -> tuple[str, ...]:
    if spec.mode == "reject":
        return ("connections that were reset meanwhile stay closed",)
    return (
        "connections that timed out meanwhile stay closed; TCP that survived may wait up to two "
        "minutes for its next try",
    )


KIND = FaultKind(
    name="partition",
    summary="packets between a workload and others are taken away, or refused",
    doc="""\
Packets of the chosen ends vanish as on a cut cable, in one direction or both: the sender's stack
takes them for sent, nobody is told. Both IPv4 and IPv6, ARP and neighbour discovery too when no
network is named; not these where something is left alone, by --but or as a lifeline, since nobody
would find it any more. The filters are in the workload's own net namespace, before its qdiscs,
which are not touched; they need no netem.

With --mode reject the sender is told, as by a firewall on the way: TCP by a reset (connection
refused, or reset), anything else by ICMP port unreachable; with --mode unreachable all by ICMP
host unreachable, as by a router. On egress the target's own programs are told, on ingress the
others. The packet itself is turned into the answer by a BPF program behind the same filters, no
firewall rule is made, and so no local sender sees an EPERM. Resets and ICMP unreachables pass;
other ICMP but echo requests, ARP, neighbour discovery, multicast and fragments without a header
are dropped silently.

Between two workloads: name one as the target and the other by --to-pid, --to-cgroup or
--to-netns; the addresses that it has when the plan is made are used.""",
    spec=Spec,
    targets=net.TARGETS,
    ladder=(
        Rung("tc-drop", "filters that take packets away silently", _needs, _plan, _supports_drop),
        Rung(
            "tc-reject",
            "a BPF program behind filters turns packets into their own refusal",
            _needs_reject,
            _plan_reject,
            _supports_reject,
        ),
    ),
    evidence=_evidence,
    collateral=_collateral,
    remedies=(
        "move the workload to another node: its new network namespace has no fault",
        "fail over to a replica on the other side",
        "tc qdisc del dev INTERFACE clsact in the namespace, which removes all filters there",
    ),
    family="net",
    polled=True,
    guards=net.guards,
    no_hits_hint=net.NO_HITS,
    examples=(
        "faultctl inject partition --cgroup /kubepods/pod1 --to 10.1.2.3",
        "faultctl inject partition --pid 4242 --to-pid 4343 --direction egress",
        "faultctl inject partition --pid 4242 --to 10.1.2.3:5432/tcp --mode reject",
        "faultctl inject partition --netns /run/netns/blue --but 10.0.0.53:53",
    ),
)
