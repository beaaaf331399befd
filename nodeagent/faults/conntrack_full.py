"""conntrack-full: no room for another connection in a workload's net namespace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from nodeagent.faults import _net as net
from nodeagent.model.evidence import Evidence
from nodeagent.model.facts import Facts, Need, NeedRoot
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Guard, Measured, Rung
from nodeagent.model.steps import StepBase
from nodeagent.model.steps.conntrack import ConntrackFill


class Spec(FaultSpec):
    """How full the table is."""

    free: int = Field(
        default=0, ge=0, le=1_000_000, description="connections that there is still room for"
    )
    host_network: bool = Field(default=False, description="allow the node's own network")


@dataclass(frozen=True)
class _NeedConntrack:
    """ctnetlink, tried out by the facts in a namespace of their own."""

    def missing(self, facts: Facts) -> str | None:
        if "conntrack" in facts.net_features:
            return None
        return "the kernel has no nf_conntrack_netlink (CONFIG_NF_CT_NETLINK)"


def _needs(spec: Spec) -> tuple[Need, ...]:
    return (NeedRoot(), _NeedConntrack())


def _plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    binding = net.net(context)
    return [ConntrackFill(fault=context.fault_id, netns=binding.netns, free=spec.free)]


def _guards(spec: Spec, context: Context) -> tuple[Guard, ...]:
    """Raises Refused for the node's own network, unless it is asked for."""
    binding = net.net(context)
    net.check_host(spec.host_network, binding)
    if not binding.host:
        return ()
    return (
        Guard(
            "lifeline",
            "new connections to the node are dropped, to its agent and ssh too, until the lease "
            "ends",
        ),
    )


def _evidence(spec: Spec, measured: tuple[Measured, ...]) -> Evidence:
    found = [item.data for item in measured if "drop" in item.data]
    if not found:
        return Evidence(counted=False)
    data = found[0]
    said = [f"{data['count']} of {data['max']} entries, {data['count_before']} before"]
    if data["count_before"] == 0:
        said.append(
            "the table was empty before: perhaps no rule here needs connections, and then a full "
            "table changes nothing"
        )
    if data["early_drop"]:
        said.append("flows that had no answer yet were thrown out for new ones")
    counters = {name: data[name] for name in ("drop", "early_drop", "count", "max")}
    hits = data["drop"] + data["early_drop"]
    return Evidence(counted=True, hits=hits, counters=counters, statements=tuple(said))


def _collateral(spec: Spec) -> tuple[str, ...]:
    return (
        "flows without an answer yet are thrown out for new ones, as in any full table",
        "what a program did meanwhile (a time-out, a fail-over) stays done",
    )


KIND = FaultKind(
    name="conntrack-full",
    summary="the connection table of a workload's net namespace is full",
    doc="""\
The table of connections (nf_conntrack) of the workload's net namespace is filled up to the
node's limit with entries between addresses that are for benchmarks only (198.18.0.0/15), and
kept full: packets of new connections are dropped ("nf_conntrack: table full, dropping packet"),
established ones go on. The limit itself, which is one for all namespaces of the node, is not
changed, and other namespaces have tables of their own.

It bites where rules of the namespace track connections (NAT, `ct state`), as on most nodes and
in pods with a service mesh. The entries take kernel memory, up to 512 bytes each; it is refused
where that would be a quarter of what is available. At the revert exactly these entries go.""",
    spec=Spec,
    targets=net.TARGETS,
    ladder=(Rung("fill", "entries by ctnetlink, and none of others", _needs, _plan),),
    evidence=_evidence,
    collateral=_collateral,
    remedies=(
        "conntrack -D -s 198.18.0.0/15 in the namespace, again and again",
        "sysctl net.netfilter.nf_conntrack_max=... on the node: the table is filled up again",
        "move the workload to another node: its new network namespace has no fault",
    ),
    family="net",
    polled=True,
    guards=_guards,
    no_hits_hint="no packet needed a new entry: no traffic, or no rule here tracks connections",
    examples=(
        "faultctl inject conntrack-full --pid 4242",
        "faultctl inject conntrack-full --netns /run/netns/blue --free 100",
    ),
)
