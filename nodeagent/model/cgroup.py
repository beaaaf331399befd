"""Binding of a cgroup as what limits its processes: its files, limits and who is in it."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from nodeagent.model.process import CgroupScope


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Disk(_Frozen):
    """A whole disk, as io.max names it."""

    path: str
    major: int
    minor: int

    @property
    def numbers(self) -> str:
        """`major:minor`."""
        return f"{self.major}:{self.minor}"


class CgroupBinding(_Frozen):
    """A cgroup v2 and what holds for it now, its ancestors counted in.

    Only what does not change by itself: a plan is compared by its digest.
    """

    target: str
    scope: CgroupScope
    type: str = Field(default="domain", description="cgroup.type")
    frozen: bool = Field(default=False, description="cgroup.freeze of it or of an ancestor")
    values: Mapping[str, str] = Field(
        default={}, description="its interface files that a fault may write, and their content"
    )
    cpu_micro: int = Field(description="CPUs that it may use, in millionths")
    cpu_from: str = Field(description="what says so: a cpu.max, a cpuset, or the node")
    memory: int = Field(description="bytes that it may use: min of the limits and the node's")
    memory_from: str = Field(description="what says so: a memory.max, or the node")
    memory_limited: bool = Field(default=False, description="whether some memory.max applies")
    node_memory: int = Field(description="MemTotal in bytes")
    oom_group: tuple[str, ...] = Field(
        default=(), description="it and its ancestors that have memory.oom.group set"
    )
    node_agents: tuple[str, ...] = Field(
        default=(), description="kubelet, container runtimes and the like among its processes"
    )
    disk: Disk | None = None
