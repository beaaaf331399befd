"""What network faults share: which packets of which interfaces, and how they are sent aside."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

from pydantic import Field, model_validator

from nodeagent.faults._net_names import addressed, followed, from_ports
from nodeagent.faults._net_reach import check_reach, peer_flows
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.facts import Need, NeedNet, NeedRoot
from nodeagent.model.kind import Context, FaultSpec, Guard, Measured
from nodeagent.model.net import NetBinding, NetInterface
from nodeagent.model.netspec import Flow, Ports, Remotes
from nodeagent.model.steps import StepBase
from nodeagent.model.steps.net import (
    AnyAct,
    AnyQdisc,
    Drop,
    Hook,
    IfbShaper,
    Redirect,
    Reject,
    TcFilters,
)
from nodeagent.model.target import AbsolutePath
from nodeagent.model.units import Duration

TARGETS = ("pid", "cgroup", "netns")
Direction = Literal["egress", "ingress", "both"]
HOST_HINT = "if the whole node is meant, add --host-network"
MAX_FLOWS = 20_000


class NetSpec(FaultSpec):
    """Which packets: of which interfaces, direction and ends."""

    interface: str | None = Field(
        default=None,
        max_length=255,
        description="names separated by commas, or all; by default all that are up, without lo",
    )
    direction: Direction = Field(
        default="egress", description="packets that leave the namespace, that reach it, or both"
    )
    to: Remotes = Field(
        default=(), description="only to (ingress: from) these: 10.0.0.0/8:5432/tcp,db.internal:80"
    )
    but: Remotes = Field(default=(), description="never to or from these, written as --to")
    local_ports: Ports = Field(default=(), description="only from (ingress: to) these own ports")
    to_pid: int | None = Field(
        default=None, ge=1, description="only to the addresses of this process's namespace"
    )
    to_cgroup: AbsolutePath | None = Field(
        default=None, description="only to the addresses of this cgroup's namespace"
    )
    to_netns: AbsolutePath | None = Field(
        default=None, description="only to the addresses of this namespace"
    )
    refresh: Duration = Field(
        default=timedelta(seconds=30),
        le=timedelta(hours=1),
        description="names in --to are resolved again so often, 0s for never",
    )
    host_network: bool = Field(
        default=False, description="allow the node's own network, with its lifelines left alone"
    )
    lifelines: bool = Field(
        default=True,
        description="on the node's own network, leave alone: the agent, ssh, the kubelet's API and "
        "its connections, API servers, name servers",
    )

    @model_validator(mode="after")
    def _one_peer(self) -> NetSpec:
        if sum(x is not None for x in (self.to_pid, self.to_cgroup, self.to_netns)) > 1:
            raise ValueError("to_pid, to_cgroup and to_netns exclude each other")
        if self.local_ports and any(flow.protocol == "icmp" for flow in self.to):
            raise ValueError("ICMP has no local ports")
        if not self.lifelines and not self.host_network:
            raise ValueError("only the node's own network has lifelines: add --host-network")
        return self

    @property
    def hooks(self) -> tuple[Hook, ...]:
        return ("egress", "ingress") if self.direction == "both" else (self.direction,)


def net(context: Context) -> NetBinding:
    """The binding, which the net family made."""
    if not isinstance(context.binding, NetBinding):
        raise InvalidSpec(f"{context.target.label()} has no net namespace")
    return context.binding


def needs_filters(*features: str) -> tuple[Need, ...]:
    """What every rung with filters needs, and more."""
    return (NeedRoot(), *(NeedNet(f) for f in ("clsact", "flower", "gact", *features)))


# --- which packets ----------------------------------------------------------------


def check_host(host_network: bool, binding: NetBinding) -> None:
    """The node's own network has to be asked for. Raises Refused."""
    if binding.host and not host_network:
        raise Refused(
            f"{binding.target} is on the node's own network",
            "everything on the node would be hit, not only the target",
            HOST_HINT,
        )


def interfaces(chosen: str | None, binding: NetBinding) -> list[NetInterface]:
    """Those of an option --interface. Raises Refused for one that is not there, or for none."""
    by_name = {found.name: found for found in binding.interfaces}
    if chosen not in (None, "all"):
        names = [name.strip() for name in str(chosen).split(",")]
        missing = [name for name in names if name not in by_name]
        if missing:
            raise Refused(
                f"there is no interface {missing[0]!r} in {binding.netns.path}",
                f"it has: {', '.join(by_name)}",
            )
        return [by_name[name] for name in dict.fromkeys(names)]
    if binding.host and chosen is None:
        raise Refused(
            "which of the node's interfaces?",
            f"it has: {', '.join(by_name)}",
            "name them by --interface, or write --interface all",
        )
    found = [i for i in binding.interfaces if i.up and not i.loopback]
    if not found:
        raise Refused(
            f"{binding.netns.path} has no interface that is up",
            f"it has: {', '.join(by_name)}",
            "for traffic within the namespace: --interface lo",
        )
    return found


def flows(spec: NetSpec, binding: NetBinding) -> tuple[Flow, ...]:
    """Packets that are meant. Raises Refused."""
    named = [*addressed(spec.to, binding), *peer_flows(binding)]
    remotes = from_ports(named or [Flow()], spec.local_ports)
    if len(remotes) > MAX_FLOWS:
        raise Refused(f"{len(remotes)} networks and ports are too many", f"at most {MAX_FLOWS}")
    return tuple(dict.fromkeys(remotes))


def exceptions(spec: NetSpec, binding: NetBinding) -> tuple[Flow, ...]:
    """What is left alone: asked for, and the host's own lifelines unless they are meant too."""
    spared = binding.lifelines if spec.lifelines else ()
    return tuple(dict.fromkeys((*addressed(spec.but, binding), *spared)))


def check(spec: NetSpec, context: Context) -> None:
    """Everything that a plan refuses about its packets. Raises Refused."""
    binding = net(context)
    check_host(spec.host_network, binding)
    chosen = interfaces(spec.interface, binding)
    flows(spec, binding)
    if Flow() in spec.but:
        raise InvalidSpec("nothing would be hit", "--but names everything")
    check_reach(spec, binding, chosen)


def guards(spec: NetSpec, context: Context) -> tuple[Guard, ...]:
    """Lifelines that are not spared, and others' filters that the packets would pass by."""
    check(spec, context)
    binding = net(context)
    cut: tuple[Guard, ...] = ()
    if binding.host and not spec.lifelines:
        why = "nobody may reach the node or its agent before the lease ends: --no-lifelines"
        cut = (Guard("lifeline", why),)
    return (*cut, *other_filters(interfaces(spec.interface, binding), spec.hooks))


def other_filters(chosen: Sequence[NetInterface], hooks: Sequence[Hook]) -> tuple[Guard, ...]:
    """A guard rail where somebody else's filters would be passed by."""
    hidden = [
        f"{i.name} {hook}: {line}" for i in chosen for hook in hooks for line in i.filters_on(hook)
    ]
    if not hidden:
        return ()
    shown = "; ".join(hidden[:4])
    return (
        Guard(
            "other-filters",
            f"packets that the fault takes pass by filters of somebody else ({shown})",
        ),
    )


# --- steps ------------------------------------------------------------------------


def shaped(spec: NetSpec, context: Context, qdisc: AnyQdisc) -> list[StepBase]:
    """A private device with the qdisc for each interface and direction, and the way there."""
    binding = net(context)
    steps: list[StepBase] = []
    for interface in interfaces(spec.interface, binding):
        for hook in spec.hooks:
            name = device_name(context.fault_id, interface.name, hook)
            steps.append(
                IfbShaper(fault=context.fault_id, netns=binding.netns, name=name, qdisc=qdisc)
            )
            steps.append(filters(spec, context, interface, hook, Redirect(device=name)))
    return steps


def dropped(spec: NetSpec, context: Context, act: Drop | Reject) -> list[StepBase]:
    """Filters that take packets away, or send them back."""
    return [
        filters(spec, context, interface, hook, act)
        for interface in interfaces(spec.interface, net(context))
        for hook in spec.hooks
    ]


def filters(
    spec: NetSpec, context: Context, interface: NetInterface, hook: Hook, act: AnyAct
) -> TcFilters:
    """One interface and direction."""
    binding = net(context)
    return TcFilters(
        fault=context.fault_id,
        netns=binding.netns,
        ifindex=interface.ifindex,
        ifname=interface.name,
        hook=hook,
        flows=flows(spec, binding),
        but=exceptions(spec, binding),
        act=act,
        **followed(spec.to, spec.local_ports, spec.refresh, binding),
    )


def device_name(fault_id: str, interface: str, hook: str) -> str:
    """`faultctl` and six digits of a hash: a name has at most 15 characters."""
    text = f"{fault_id}\0{interface}\0{hook}"
    return "faultctl" + hashlib.sha256(text.encode()).hexdigest()[:6]


# --- evidence ---------------------------------------------------------------------

NO_HITS = (
    "no packet has matched since: nothing is sent there, the direction is the other one, or the "
    "traffic takes another interface"
)


def counters(measured: Sequence[Measured]) -> dict[str, int]:
    """Sums of what the steps counted, by name."""
    found: dict[str, int] = {}
    for item in measured:
        for group in ("matched", "excluded", "dropped", "answered", "qdisc"):
            numbers = item.data.get(group, {})
            for name in ("packets", "bytes", "drops", "queued"):
                if name in numbers:
                    key = f"{group}_{name}"
                    found[key] = found.get(key, 0) + numbers[name]
    return found
