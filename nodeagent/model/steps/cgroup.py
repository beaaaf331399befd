"""Steps on cgroups of the v2 hierarchy (Documentation/admin-guide/cgroup-v2.rst)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nodeagent.model.process import CgroupScope
from nodeagent.model.steps.base import StepBase

IO_KEYS = ("rbps", "wbps", "riops", "wiops")
"""Keys of a device's line in io.max (blk-throttle.c, tg_prfill_limit)."""


class CgroupWrite(StepBase):
    """Write one interface file of a cgroup; its prior content is put back.

    value is as the kernel reads it back. With `device` the file is nested keyed (io.max):
    value is the keys to change on that device's line, `rbps=1048576 wiops=100`.
    """

    op: Literal["cgroup_write"] = "cgroup_write"
    scope: CgroupScope
    file: Literal["cpu.max", "memory.high", "pids.max", "io.max", "memory.oom.group"]
    value: str
    device: str = Field(default="", description="major:minor of a whole disk")

    def key(self) -> str:
        device = f":{self.device}" if self.device else ""
        return f"cgroup:{self.scope.id}:{self.file}{device}"

    def summary(self) -> str:
        device = f"{self.device} " if self.device else ""
        return f"echo {device}{self.value} > /sys/fs/cgroup{self.scope.path}/{self.file}"


class CgroupFreeze(StepBase):
    """Stop all processes of a cgroup by its freezer; with off_ms they run in between.

    on_ms, off_ms: how long they stand still and how long they run, in turns; both 0: always.
    """

    op: Literal["cgroup_freeze"] = "cgroup_freeze"
    scope: CgroupScope
    on_ms: int = Field(default=0, ge=0, le=1 << 40)
    off_ms: int = Field(default=0, ge=0, le=1 << 40)

    def key(self) -> str:
        return f"cgroup:{self.scope.id}:cgroup.freeze"

    def summary(self) -> str:
        turns = f" for {self.on_ms} ms, 0 for {self.off_ms} ms, and again" if self.off_ms else ""
        return f"echo 1{turns} > /sys/fs/cgroup{self.scope.path}/cgroup.freeze"


def parse_io_line(text: str, device: str) -> dict[str, str]:
    """A device's limits in io.max, `max` where it has none. Unknown keys are ignored."""
    limits = dict.fromkeys(IO_KEYS, "max")
    for line in text.splitlines():
        words = line.split()
        if words and words[0] == device:
            pairs = (word.partition("=") for word in words[1:])
            limits |= {key: value for key, _, value in pairs if key in limits}
    return limits
