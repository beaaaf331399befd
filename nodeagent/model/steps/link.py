"""An interface that is down."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nodeagent.model.steps.base import StepBase
from nodeagent.model.steps.net import NetnsRef


class LinkDown(StepBase):
    """One interface without IFF_UP; what the kernel drops with it comes back with it."""

    op: Literal["link_down"] = "link_down"
    netns: NetnsRef
    ifindex: int = Field(ge=1)
    ifname: str

    def key(self) -> str:
        return f"linkstate:{self.netns.cookie}:{self.ifindex}"

    def summary(self) -> str:
        return f"ip link set {self.ifname} down"
