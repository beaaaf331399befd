"""Steps on processes: signals that stop them (signal(7))."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nodeagent.model.process import PidScope
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
