"""Ports of a net namespace that somebody else has."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from nodeagent.model.netspec import PortRange, format_ports
from nodeagent.model.steps.base import StepBase
from nodeagent.model.steps.net import NetnsRef


class PortHolder(StepBase):
    """A process of ours that has sockets bound to ports, in the target's net namespace."""

    ephemeral: ClassVar[bool] = True
    composes: ClassVar[bool] = True

    op: Literal["port_holder"] = "port_holder"
    fault: str = Field(description="whose it is")
    netns: NetnsRef
    protocol: Literal["tcp", "udp"]
    ports: tuple[PortRange, ...] = Field(min_length=1)
    address: str | None = Field(default=None, description="one of the namespace's; None: all")
    listen: bool = Field(default=True, description="TCP: clients are connected, and never served")

    def numbers(self) -> list[int]:
        return [port for first, last in self.ports for port in range(first, last + 1)]

    def key(self) -> str:
        return f"ports:{self.netns.cookie}:{self.protocol}"

    def summary(self) -> str:
        where = "*" if self.address is None else self.address
        shown = ",".join(map(format_ports, self.ports))
        how = "listen" if self.protocol == "tcp" and self.listen else "bind"
        return f"{how} on {where} port {shown}/{self.protocol}"

    def overlaps(self, other: StepBase) -> bool:
        if not isinstance(other, PortHolder) or other.protocol != self.protocol:
            return False
        if self.address and other.address and self.address != other.address:
            return False
        return bool(set(self.numbers()) & set(other.numbers()))
