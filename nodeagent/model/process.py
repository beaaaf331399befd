"""Bindings of processes and cgroups: what the kernel knows them by."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class PidScope(_Frozen):
    """A thread group: all its threads, those of later too.

    The start time tells it from a later process with the same pid.
    """

    pid: int = Field(description="thread group id in the initial pid namespace")
    start_ticks: int = Field(description="field 22 of /proc/PID/stat: 1/100 s since boot")
    tree: bool = Field(default=False, description="its descendants as well, future ones too")


class CgroupScope(_Frozen):
    """A cgroup of the v2 hierarchy with all below it."""

    id: int = Field(description="inode of its directory, the kernfs id")
    level: int = Field(ge=1, description="its depth; the root is 0")
    path: str = Field(description="below the root cgroup")


class ProcessBinding(_Frozen):
    """Who is meant, and what of it is to be known before it is hit."""

    target: str
    scope: PidScope | CgroupScope
    comm: str = Field(default="", description="name of the process, or of the first one found")
    processes: int = Field(description="how many there were when it was bound")
    node_agents: tuple[str, ...] = Field(
        default=(), description="kubelet, container runtimes and the like among them"
    )
    compat: tuple[int, ...] = Field(default=(), description="pids of 32-bit programs")
    io_uring: tuple[int, ...] = Field(default=(), description="pids that have an io_uring open")
    device: tuple[int, int] | None = Field(
        default=None, description="major and minor of the device that a filter asks for"
    )
    notes: tuple[str, ...] = ()
