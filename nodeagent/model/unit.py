"""Binding of a systemd service."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from nodeagent.model.process import CgroupScope


class UnitBinding(BaseModel):
    """A service that is active, and its cgroup, which its next start may replace."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    target: str
    unit: str = Field(description="its Id, with suffix: an alias is resolved")
    scope: CgroupScope | None = Field(
        default=None, description="None where the hierarchy is not v2, or it has no process"
    )
    frozen: bool = False
    cpu_max: str = Field(default="", description="content of cpu.max; empty: no such file")
    node_agents: tuple[str, ...] = Field(
        default=(), description="kubelet, container runtimes and the like among its processes"
    )
    lifeline: str = Field(default="", description="why people may lose the node with it")
    restarts: str = Field(default="", description="its Restart= (systemd.service(5))")
