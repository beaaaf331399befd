"""Binding of where load is to run: a cgroup of either hierarchy, or the node itself."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from nodeagent.model.process import CgroupScope


class LoadBinding(BaseModel):
    """A place for stressors and what holds for it now, its ancestors counted in.

    Only what does not change by itself: a plan is compared by its digest.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    target: str
    hierarchy: Literal["v2", "v1", "node"] = "v2"
    path: str = Field(description="of the cgroup, below its hierarchy's root")
    scope: CgroupScope | None = Field(default=None, description="of a cgroup of v2")
    folders: tuple[str, ...] = Field(
        default=(), description="without scope: directories that get a cgroup of ours each"
    )
    controllers: tuple[str, ...] = Field(
        default=(), description="without scope: those that such a cgroup has"
    )
    type: str = Field(default="domain", description="cgroup.type")
    frozen: bool = False
    cpu_micro: int = Field(description="CPUs that it may use, in millionths")
    cpu_from: str
    memory: int = Field(description="bytes that it may use")
    memory_from: str
    memory_limited: bool = False
    node_memory: int = Field(description="MemTotal in bytes")
    oom_group: tuple[str, ...] = ()
    node_agents: tuple[str, ...] = ()
