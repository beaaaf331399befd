"""A connection table that is full."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from nodeagent.model.steps.base import StepBase
from nodeagent.model.steps.net import NetnsRef


class ConntrackFill(StepBase):
    """Entries of ours in a net namespace's connection table, up to its limit."""

    composes: ClassVar[bool] = False

    op: Literal["conntrack_fill"] = "conntrack_fill"
    fault: str = Field(description="whose they are")
    netns: NetnsRef
    free: int = Field(default=0, ge=0, description="entries that are left for others")

    def key(self) -> str:
        return f"conntrack:{self.netns.cookie}"

    def summary(self) -> str:
        left = f" but {self.free}" if self.free else ""
        return f"conntrack -I -p udp -s 198.18.0.1 -d 198.19.255.254 ... for all entries{left}"
