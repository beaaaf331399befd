"""Steps on sysctls: files below /proc/sys (proc_sys(5))."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from nodeagent.model.steps.base import StepBase
from nodeagent.model.steps.net import NetnsRef
from nodeagent.model.sysctl import group_of, name_of, reaches


class SysctlWrite(StepBase):
    """Write one sysctl; its prior value is put back, and what followed it as well.

    Files of which one write may change the other share a key.
    """

    composes: ClassVar[bool] = True

    op: Literal["sysctl_write"] = "sysctl_write"
    netns: NetnsRef | None = Field(default=None, description="whose it is; None: the node's")
    path: str = Field(description="below /proc/sys")
    value: str = Field(description="as it reads back, one space between words")

    def key(self) -> str:
        whose = self.netns.cookie if self.netns else "node"
        return f"sysctl:{whose}:{group_of(self.path)}"

    def summary(self) -> str:
        enter = f"nsenter --net={self.netns.path} " if self.netns else ""
        return f"{enter}sysctl -w {name_of(self.path)}={self.value!r}"

    def overlaps(self, other: StepBase) -> bool:
        return isinstance(other, SysctlWrite) and reaches(self.path, other.path)
