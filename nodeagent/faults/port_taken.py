"""port-taken: somebody else has the port that a workload wants."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address, ip_interface
from typing import Literal

from pydantic import Field, field_validator, model_validator

from nodeagent.faults import _net as net
from nodeagent.model.errors import Refused
from nodeagent.model.evidence import Evidence, NodeEvent, ProcessEvent
from nodeagent.model.facts import Need, NeedRoot
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Measured, Reaction, Rung
from nodeagent.model.netspec import Ports
from nodeagent.model.steps import StepBase
from nodeagent.model.steps.port import PortHolder

MAX_PORTS = 128
"""Each takes up to two descriptors of the agent for a moment."""


class Spec(FaultSpec):
    """Which ports are taken, and what becomes of their clients."""

    ports: Ports = Field(description=f"up to {MAX_PORTS}: 8080,9000-9005")
    protocol: Literal["tcp", "udp", "both"] = Field(default="tcp", description="whose ports")
    address: str | None = Field(
        default=None, max_length=45, description="only of this own address; by default of all"
    )
    clients: Literal["hang", "refuse"] = Field(
        default="hang", description="TCP: connected and never served, or refused as before"
    )
    host_network: bool = Field(default=False, description="allow the node's own network")

    @field_validator("address")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        return None if value is None else str(ip_address(value))

    @model_validator(mode="after")
    def _some(self) -> Spec:
        count = sum(last - first + 1 for first, last in self.ports)
        if not 1 <= count <= MAX_PORTS:
            raise ValueError(f"{count} ports: from 1 to {MAX_PORTS} can be taken")
        return self


def _needs(spec: Spec) -> tuple[Need, ...]:
    return (NeedRoot(),)


def _plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    binding = net.net(context)
    net.check_host(spec.host_network, binding)
    own = {str(ip_interface(a).ip) for i in binding.interfaces for a in i.addresses}
    if spec.address is not None and spec.address not in own:
        raise Refused(
            f"{spec.address} is no address of {binding.target}",
            f"it has: {', '.join(sorted(own)) or 'none'}",
        )
    protocols: tuple[Literal["tcp", "udp"], ...] = (
        ("tcp", "udp") if spec.protocol == "both" else (spec.protocol,)
    )
    return [
        PortHolder(
            fault=context.fault_id,
            netns=binding.netns,
            protocol=protocol,
            ports=spec.ports,
            address=spec.address,
            listen=spec.clients == "hang",
        )
        for protocol in protocols
    ]


def _evidence(spec: Spec, measured: tuple[Measured, ...]) -> Evidence:
    found = [item.data for item in measured if "held" in item.data]
    waiting = sum(item["waiting"] for item in found)
    said = ["nothing counts programs that found the port taken; hits are clients that wait at it"]
    if not all(item["held"] for item in found):
        said.append("somebody has ended the process that had the ports: they are free")
    return Evidence(
        counted=bool(found) and spec.clients == "hang" and spec.protocol != "udp",
        hits=waiting,
        counters={"waiting": waiting},
        statements=tuple(said),
        details={"pids": [item["pid"] for item in found]},
    )


def _react(spec: Spec, steps: tuple[StepBase, ...], event: NodeEvent) -> Reaction | None:
    if not isinstance(event, ProcessEvent):
        return None
    return Reaction(remedied=f"process {event.pid}, which had the ports, was ended")


def _collateral(spec: Spec) -> tuple[str, ...]:
    said = ["a program that did not get its port has ended, or waits for its next try"]
    if spec.clients == "hang" and spec.protocol != "udp":
        said.append("clients that were connected to it are reset when it ends")
    return tuple(said)


KIND = FaultKind(
    name="port-taken",
    summary="ports that a workload wants to listen on are taken",
    doc="""\
A small process has sockets bound to the ports, in the workload's net namespace, as a second copy
of the program or a forgotten one would: whoever binds them gets EADDRINUSE, also with
SO_REUSEADDR or SO_REUSEPORT. `ss -lntp` shows it as faultctl-port. By default it listens, so that
clients are connected to the wrong one and wait; with --clients refuse it only holds the port.

A port that is in use already is refused with the name of who has it: stop the workload first,
inject, and let it start again. Connections of a server that has just ended (TIME-WAIT) are no
obstacle, unless with --clients refuse, when two such sockets cannot be told from a live one.

The process ends with the fault, and with the agent; who ends it has remedied the fault. While it
lives the namespace does, too.""",
    spec=Spec,
    targets=net.TARGETS,
    ladder=(Rung("bound-socket", "sockets of a process of ours", _needs, _plan),),
    evidence=_evidence,
    collateral=_collateral,
    remedies=(
        "find who has the port (ss -lntp on the node) and end that process",
        "let the workload listen on another port",
        "move the workload to another node: its new network namespace has no fault",
    ),
    family="net",
    polled=True,
    react=_react,
    no_hits_hint="no client has connected; programs that found the port taken are not counted",
    examples=(
        "faultctl inject port-taken --pid 4242 --ports 8080",
        "faultctl inject port-taken --netns /run/netns/blue --ports 53 --protocol both",
    ),
)
