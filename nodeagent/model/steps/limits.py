"""Steps on what a workload may still have more of: descriptors, processes.

How much there is now changes by itself, so the limit is worked out when the step is
applied and kept in the journal as its prior state.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nodeagent.model.process import CgroupScope, PidScope
from nodeagent.model.steps.base import StepBase


class DescriptorLimit(StepBase):
    """Lower RLIMIT_NOFILE of a process until only so many descriptors are left (prlimit(2)).

    The limit is a number that descriptors stay below, not a count of them.
    """

    op: Literal["descriptor_limit"] = "descriptor_limit"
    scope: PidScope
    leave: int = Field(ge=0, le=1 << 20)
    hard: bool = Field(description="the hard limit too, so that it cannot raise it again")

    def key(self) -> str:
        return f"process:{self.scope.pid}:{self.scope.start_ticks}:nofile"

    def summary(self) -> str:
        limit = f"<{self.leave} more than are open>"
        hard = limit if self.hard else ""
        return f"prlimit --pid {self.scope.pid} --nofile={limit}:{hard}"


class PidsLeave(StepBase):
    """Lower pids.max of a cgroup to what it has now and so many more."""

    op: Literal["pids_leave"] = "pids_leave"
    scope: CgroupScope
    leave: int = Field(ge=0, le=1 << 22)

    def key(self) -> str:
        return f"cgroup:{self.scope.id}:pids.max"

    def summary(self) -> str:
        folder = f"/sys/fs/cgroup{self.scope.path}"
        more = f" + {self.leave}" if self.leave else ""
        return f"echo $(($(cat {folder}/pids.current){more})) > {folder}/pids.max"
