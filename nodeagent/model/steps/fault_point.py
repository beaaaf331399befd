"""Steps on the kernel's own fault points (Documentation/fault-injection)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from nodeagent.model.process import PidScope
from nodeagent.model.steps.base import StepBase

Point = Literal["failslab", "fail_page_alloc", "fail_make_request", "fail_futex", "fail_function"]
Knob = Literal[
    "probability",
    "interval",
    "times",
    "space",
    "verbose",
    "task-filter",
    "ignore-gfp-wait",
    "ignore-gfp-highmem",
    "ignore-private",
    "min-order",
]


class FaultPointSet(StepBase):
    """Knobs of one fault point in debugfs, written in this order and put back in the other.

    device: a block device whose requests it fails, for fail_make_request.
    """

    op: Literal["fault_point_set"] = "fault_point_set"
    point: Point
    knobs: tuple[tuple[Knob, str], ...] = Field(min_length=1)
    device: tuple[int, int] | None = None

    def key(self) -> str:
        return f"fault-point:{self.point}"

    def summary(self) -> str:
        folder = f"/sys/kernel/debug/{self.point}"
        said = [f"echo {value} > {folder}/{name}" for name, value in self.knobs]
        if self.device:
            said.insert(0, "echo 1 > /sys/dev/block/{}:{}/make-it-fail".format(*self.device))
        return "; ".join(said)


class TaskFlag(StepBase):
    """A fault point's file of each thread of a process: make-it-fail, or fail-nth.

    make-it-fail is inherited by threads and children, fail-nth is not (dup_task_struct in
    kernel/fork.c).
    """

    op: Literal["task_flag"] = "task_flag"
    file: Literal["make-it-fail", "fail-nth"]
    value: int = Field(ge=1, lt=1 << 31)
    scope: PidScope

    def key(self) -> str:
        """The mark make-it-fail is one for all fault points: two that are armed at once would
        each hit the other's process as well (fault_task_filter, lib/fault-inject.c)."""
        if self.file == "make-it-fail":
            return self.file
        return f"{self.file}:{self.scope.pid}:{self.scope.start_ticks}"

    def summary(self) -> str:
        return f"echo {self.value} > /proc/{self.scope.pid}/task/*/{self.file}"


class FunctionFail(StepBase):
    """A function on the kernel's error-injection list becomes one of fail_function's."""

    composes: ClassVar[bool] = False

    op: Literal["function_fail"] = "function_fail"
    function: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")
    value: int = Field(ge=-(1 << 63), lt=1 << 63, description="what it returns")

    def key(self) -> str:
        return f"fail_function:{self.function}"

    def summary(self) -> str:
        folder, name = "/sys/kernel/debug/fail_function", self.function
        return f"echo {name} > {folder}/inject; echo {self.value} > {folder}/{name}/retval"
