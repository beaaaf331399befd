"""partition: packets between a workload and others are taken away without a trace."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from nodeagent.faults import _net as net
from nodeagent.model.evidence import Evidence
from nodeagent.model.facts import Need
from nodeagent.model.kind import Context, FaultKind, Measured, Rung
from nodeagent.model.steps import StepBase
from nodeagent.model.steps.net import Drop


class Spec(net.NetSpec):
    """Which packets never arrive."""

    direction: net.Direction = Field(
        default="both", description="packets that leave the namespace, that reach it, or both"
    )


def _needs(spec: Spec) -> tuple[Need, ...]:
    return net.needs_filters()


def _plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    return net.dropped(spec, context, Drop())


def _evidence(spec: Spec, measured: tuple[Measured, ...]) -> Evidence:
    found = net.counters(measured)
    return Evidence(counted=True, hits=found.get("matched_packets", 0), counters=found)


def _collateral(spec: Spec) -> tuple[str, ...]:
    return (
        "connections that timed out meanwhile stay closed; TCP that survived may wait up to two "
        "minutes for its next try",
    )


KIND = FaultKind(
    name="partition",
    summary="packets between a workload and others are taken away",
    doc="""\
Packets of the chosen ends vanish as on a cut cable, in one direction or both: the sender's stack
takes them for sent, nobody is told. Both IPv4 and IPv6, ARP and neighbour discovery too when no
network is named. The filters are in the workload's own net namespace, before its qdiscs, which
are not touched; they need no netem.

Between two workloads: name one as the target and the other by --to-pid, --to-cgroup or
--to-netns; the addresses that it has when the plan is made are used.""",
    spec=Spec,
    targets=net.TARGETS,
    ladder=(Rung("tc-drop", "filters that take packets away silently", _needs, _plan),),
    evidence=_evidence,
    collateral=_collateral,
    remedies=(
        "move the workload to another node: its new network namespace has no fault",
        "fail over to a replica on the other side",
        "tc qdisc del dev INTERFACE clsact in the namespace, which removes all filters there",
    ),
    family="net",
    guards=net.guards,
    no_hits_hint=net.NO_HITS,
    examples=(
        "faultctl inject partition --cgroup /kubepods/pod1 --to 10.1.2.3",
        "faultctl inject partition --pid 4242 --to-pid 4343 --direction egress",
        "faultctl inject partition --netns /run/netns/blue --but 10.0.0.53:53",
    ),
)
