"""The step of strace(1)'s own injection."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from nodeagent.model.process import PidScope
from nodeagent.model.steps.base import StepBase


class StraceInject(StepBase):
    """System calls of a process and its descendants return what strace writes into them.

    result: `error=EIO` or `retval=0`, as `strace -e inject` takes it.
    """

    patience_s: ClassVar[int] = 60
    ephemeral: ClassVar[bool] = True

    op: Literal["strace_inject"] = "strace_inject"
    calls: tuple[str, ...] = Field(min_length=1)
    result: str = Field(pattern=r"^(error=E[A-Z0-9]+|retval=[0-9]+)$")
    scope: PidScope

    def argv(self) -> list[str]:
        """The command, without the processes that it attaches to."""
        calls = ",".join(self.calls)
        quiet = "quiet=attach,exit,path-resolution,personality,thread-execve"
        inject = f"inject={calls}:{self.result}"
        return ["strace", "-f", "-e", quiet, "-e", "signal=none", "-e", f"trace={calls}",
                "-e", inject]  # fmt: skip

    def key(self) -> str:
        return f"trace:{self.scope.pid}:{self.scope.start_ticks}"

    def summary(self) -> str:
        return " ".join([*self.argv(), "-p", str(self.scope.pid)])
