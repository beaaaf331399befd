"""A target as the network knows it: its net namespace, interfaces, what filters there."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from nodeagent.model.netspec import Flow
from nodeagent.model.steps.net import Hook, NetnsRef


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NetInterface(_Frozen):
    """One interface of the namespace."""

    name: str
    ifindex: int
    kind: str = Field(default="", description="as `ip link ... type`; empty for hardware")
    up: bool = True
    loopback: bool = False
    mtu: int = 1500
    addresses: tuple[str, ...] = Field(default=(), description="with their prefix length")
    qdisc: str = Field(default="", description="kind and handle of the root qdisc, untouched")
    uplink: bool = Field(default=False, description="a default route goes over it")
    filters: tuple[tuple[Hook, str], ...] = Field(
        default=(), description="others' filters in its clsact, each as a line"
    )

    def filters_on(self, hook: Hook) -> tuple[str, ...]:
        return tuple(line for where, line in self.filters if where == hook)


class NetBinding(_Frozen):
    """All that a planner of a network fault may look at."""

    target: str
    netns: NetnsRef
    host: bool = Field(description="the node's own namespace, or the agent's")
    interfaces: tuple[NetInterface, ...]
    processes: tuple[tuple[int, int], ...] = Field(
        default=(), description="(pid, start time in clock ticks) that led here"
    )
    peers: tuple[str, ...] = Field(default=(), description="addresses of the other workload")
    names: tuple[tuple[str, tuple[str, ...]], ...] = Field(
        default=(), description="host names of the spec, and the addresses that they have now"
    )
    lifelines: tuple[Flow, ...] = Field(
        default=(), description="the host's own: agent, ssh, kubelet, API servers, name servers"
    )
    notes: tuple[str, ...] = ()
