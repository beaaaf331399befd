"""link-down: an interface of the workload's net namespace is down."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from nodeagent.faults import _net as net
from nodeagent.model.errors import Refused
from nodeagent.model.evidence import Evidence
from nodeagent.model.facts import Need, NeedRoot
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Guard, Measured, Rung
from nodeagent.model.net import NetInterface
from nodeagent.model.steps import StepBase
from nodeagent.model.steps.link import LinkDown


class Spec(FaultSpec):
    """Which interfaces."""

    interface: str | None = Field(
        default=None,
        max_length=255,
        description="names separated by commas, or all; by default all that are up, without lo",
    )
    host_network: bool = Field(
        default=False, description="allow an interface of the node's own network"
    )


def _chosen(spec: Spec, context: Context) -> list[NetInterface]:
    """Raises Refused for the node's own network, and for a link that is down already."""
    binding = net.net(context)
    net.check_host(spec.host_network, binding)
    chosen = net.interfaces(spec.interface, binding)
    down = [found.name for found in chosen if not found.up]
    if down:
        raise Refused(f"{down[0]} is down already", f"in {binding.netns.path}")
    return chosen


def _needs(spec: Spec) -> tuple[Need, ...]:
    return (NeedRoot(),)


def _plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    netns = net.net(context).netns
    return [
        LinkDown(netns=netns, ifindex=found.ifindex, ifname=found.name)
        for found in sorted(_chosen(spec, context), key=_height)
    ]


def _height(found: NetInterface) -> tuple[bool, int]:
    """VLANs first, the youngest before what it may be on: they come up last, and only then can."""
    return (False, -found.ifindex) if found.kind == "vlan" else (True, 0)


def _guards(spec: Spec, context: Context) -> tuple[Guard, ...]:
    found = [i.name for i in _chosen(spec, context) if i.uplink]
    if not found or not net.net(context).host:
        return ()
    return (
        Guard(
            "uplink",
            f"the node's default route goes over {', '.join(found)}: nobody reaches the node "
            "until the lease ends",
        ),
    )


def _evidence(spec: Spec, measured: tuple[Measured, ...]) -> Evidence:
    data = [item.data for item in measured if "no_route" in item.data]
    hits = max((item["no_route"] for item in data), default=0)
    said = ["hits are packets of the namespace that found no route since"]
    if any(item["up"] for item in data):
        said.append("somebody has set an interface up again")
    return Evidence(
        counted=bool(data), hits=hits, counters={"out_no_routes": hits}, statements=tuple(said)
    )


def _collateral(spec: Spec) -> tuple[str, ...]:
    return (
        "what the namespace had learned about neighbours is forgotten, and learned anew",
        "what routers announce (IPv6 addresses and routes) comes back when they answer",
        "programs that watch links (DHCP clients, routing daemons) have seen it go down and up",
    )


KIND = FaultKind(
    name="link-down",
    summary="an interface of a workload is down",
    doc="""\
The interface is set down, as by `ip link set DEV down` or a pulled cable: nothing leaves, nothing
comes in, its peer sees no carrier. The kernel drops its routes, its fixed neighbours and its IPv6
addresses at that moment, and takes VLANs on it down as well; all are recorded before and put
back, and read back, at the revert. IPv6 addresses can be used at once then: they are not checked
for duplicates anew, but for the link-local one, which the kernel makes.

When somebody has made another route in the place of one that was there, theirs stays and the
revert says so. An interface that nexthop objects use is refused: they, and all that refers to
them, would be lost.""",
    spec=Spec,
    targets=net.TARGETS,
    ladder=(Rung("admin-down", "the interface loses IFF_UP (rtnetlink)", _needs, _plan),),
    evidence=_evidence,
    collateral=_collateral,
    remedies=(
        "ip link set DEV up in the namespace, and its routes and IPv6 addresses again",
        "move the workload to another node: its new network namespace has no fault",
    ),
    family="net",
    polled=True,
    guards=_guards,
    no_hits_hint="nothing in the namespace has tried to send where no route is left",
    examples=(
        "faultctl inject link-down --pid 4242",
        "faultctl inject link-down --netns /run/netns/blue --interface eth0,eth1",
    ),
)
