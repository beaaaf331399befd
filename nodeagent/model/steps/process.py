"""Steps on processes: signals (signal(7)), and load that runs beside them."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from nodeagent.model.process import CgroupScope, PidScope
from nodeagent.model.steps.base import StepBase


class ProcessStop(StepBase):
    """SIGSTOP to a process, SIGCONT at the revert; with off_ms it runs in between."""

    op: Literal["process_stop"] = "process_stop"
    scope: PidScope
    on_ms: int = Field(default=0, ge=0, le=1 << 40)
    off_ms: int = Field(default=0, ge=0, le=1 << 40)

    def key(self) -> str:
        return f"process:{self.scope.pid}:{self.scope.start_ticks}:stop"

    def summary(self) -> str:
        turns = f" for {self.on_ms} ms, then -CONT for {self.off_ms} ms" if self.off_ms else ""
        return f"kill -STOP {self.scope.pid}{turns}"


class StressRun(StepBase):
    """stress-ng in a cgroup of our own below the target's; ended by cgroup.kill.

    A journal's revert needs the paths only, no pid. Files that it writes outlive a boot.
    Where there is no cgroup of v2 to be below, `folders` are the directories that get one of
    ours each: the root of v2 (hierarchy `node`), or the target's in every hierarchy of v1.
    """

    patience_s: ClassVar[int] = 90
    survives_boot: ClassVar[bool] = True

    op: Literal["stress_run"] = "stress_run"
    scope: CgroupScope | None = None
    hierarchy: Literal["v2", "v1", "node"] = "v2"
    folders: tuple[str, ...] = ()
    limits: tuple[tuple[str, str], ...] = Field(
        default=(), description="files of our own cgroup and what is written to them"
    )
    child: str = Field(pattern=r"^faultctl-stress-[a-z0-9-]+$", description="name of our cgroup")
    args: tuple[str, ...] = Field(min_length=1)
    workers: int = Field(ge=1, description="how many are to be alive before it is armed")
    memory: int = Field(default=0, ge=0, description="bytes that are to be held before that")
    cpus_micro: int = Field(default=0, ge=0, description="CPUs that are asked for, in millionths")
    oom_score_adj: int = Field(ge=-1000, le=1000)
    folder: str = Field(default="", description="where scratch files go; empty: none")
    restart: bool = Field(default=False, description="a run with a dead worker is started again")

    @property
    def v1(self) -> bool:
        return self.hierarchy == "v1"

    @property
    def place(self) -> str:
        """Where it runs, for a person."""
        return self.scope.path if self.scope else self.folders[0]

    def key(self) -> str:
        return f"stress:{self.scope.id if self.scope else self.folders[0]}:{self.child}"

    def summary(self) -> str:
        limits = "".join(f", {name}={value}" for name, value in self.limits)
        return f"stress-ng {' '.join(self.args)}  # in {self.place}/{self.child}{limits}"


class ProcessKill(StepBase):
    """Signals to a target, once or every so often; what they did is not taken back.

    The repeating ends with the agent's process, and so does the step.
    """

    ephemeral: ClassVar[bool] = True

    op: Literal["process_kill"] = "process_kill"
    scope: PidScope | CgroupScope
    number: int = Field(ge=1, le=64, description="signal number (signal(7))")
    name: str
    whom: Literal["all", "one"] = "all"
    every_ms: int = Field(default=0, ge=0, le=1 << 40, description="0: once")
    seed: int = Field(default=0, ge=0, lt=1 << 63)

    def key(self) -> str:
        if isinstance(self.scope, PidScope):
            return f"process:{self.scope.pid}:{self.scope.start_ticks}:kill"
        return f"cgroup:{self.scope.id}:kill"

    def summary(self) -> str:
        if isinstance(self.scope, PidScope):
            what = str(self.scope.pid)
        else:
            pick = " | shuf -n 1" if self.whom == "one" else ""
            what = f"$(cat /sys/fs/cgroup{self.scope.path}/**/cgroup.procs{pick})"
        again = f", every {self.every_ms} ms" if self.every_ms else ""
        return f"kill -{self.name} {what}{again}"
