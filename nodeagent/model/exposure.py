"""Exposure: which running workloads an armed fault can still hit."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

How = Literal["file", "volume", "device", "scope", "netns", "node"]
"""file: has the file itself open or mapped. volume: has something else on its file system open,
mapped, or as its directory. device: has the block device open. scope: is the process, or in the
cgroup, that the fault is bound to. netns: is in the net namespace. node: all of them."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Workload(_Frozen):
    """A process that can be hit."""

    pid: int
    comm: str
    how: How
    cgroup: str = Field(default="", description="its path in the unified hierarchy")


class Exposure(_Frozen):
    """Who can be hit at one moment.

    Sectors of a file are read by who has the file open; a process that has other files of the
    volume open may open this one next. The kernel's own reads are no workload.
    """

    known: bool = Field(default=True, description="false: nothing can be said of such a target")
    complete: bool = Field(default=True, description="false: not all processes were looked at")
    workloads: tuple[Workload, ...] = ()
    note: str = ""

    @property
    def nobody(self) -> bool:
        """It is known of all processes that they cannot be hit."""
        return self.known and self.complete and not self.workloads
