"""Steps on system calls."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from nodeagent.model.process import CgroupScope, PidScope
from nodeagent.model.steps.base import StepBase


class Hook(BaseModel):
    """Where one call is met: functions of the kernel, or one LSM hook."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    call: str
    functions: tuple[str, ...] = ()
    compat: tuple[str, ...] = Field(default=(), description="functions of its 32-bit forms")
    lsm: str = ""
    number: int = Field(default=-1, description="its native number, for an LSM hook")


class SyscallFail(StepBase):
    """Let system calls of a target return what they were told to, by BPF.

    way: `modret` and `lsm` skip the call and return an error, `entry` skips it with any
    value, `return` runs it and changes what it returns. Which of the calls in scope:
    the first `first`, of those each `every`-th, of those a share of rate_ppm, and at most
    `at_most` in all; 0 is no such end.
    """

    ephemeral: ClassVar[bool] = True
    composes: ClassVar[bool] = True

    op: Literal["syscall_fail"] = "syscall_fail"
    way: Literal["modret", "entry", "return", "lsm"]
    hooks: tuple[Hook, ...] = Field(min_length=1)
    scope: PidScope | CgroupScope
    value: int = Field(ge=-(1 << 63), lt=1 << 63, description="return value; an errno is negative")
    rate_ppm: int = Field(default=1_000_000, ge=0, le=1_000_000)
    every: int = Field(default=1, ge=1, lt=1 << 32)
    first: int = Field(default=0, ge=0, lt=1 << 63)
    at_most: int = Field(default=0, ge=0, lt=1 << 63)
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    uid: int | None = Field(default=None, ge=0, lt=1 << 32)
    fd_types: int = Field(default=0, ge=0, lt=1 << 16, description="bits of S_IFMT >> 12")
    paths: tuple[str, ...] = Field(default=(), description="patterns, see encode/globs.py")
    exes: tuple[str, ...] = Field(default=(), description="patterns of the program's path")
    device: tuple[int, int] | None = Field(default=None, description="major and minor")
    ports: tuple[int, ...] = Field(default=(), max_length=8, description="of either end")
    nets: tuple[str, ...] = Field(default=(), max_length=4, description="of the other end")
    when: str = Field(default="", description="a predicate, see encode/predicate.py")
    spare_runtime: bool = False

    @property
    def by_file(self) -> bool:
        """Whether it is asked what file or socket a call is about."""
        return bool(self.fd_types or self.paths or self.device or self.ports or self.nets)

    def key(self) -> str:
        scope = self.scope
        if isinstance(scope, PidScope):
            return f"syscall:pid:{scope.pid}:{scope.start_ticks}"
        return f"syscall:cgroup:{scope.id}"

    def summary(self) -> str:
        places = [f for h in self.hooks for f in (h.functions or (f"lsm/{h.lsm}",))]
        shown = ", ".join(dict.fromkeys(places[:6])) + (", ..." if len(places) > 6 else "")
        who = f"process {self.scope.pid}" if isinstance(self.scope, PidScope) else self.scope.path
        return f"BPF {self.way} on {shown}: calls of {who}{self._which()} return {self.value}"

    def _which(self) -> str:
        said = [("where", (self.when,)), ("by", self.exes), ("on", self.paths)]
        said += [("of port", tuple(map(str, self.ports)))]
        said += [("to", self.nets), ("on device", (":".join(map(str, self.device or ())),))]
        return "".join(f" {word} {' or '.join(named)}" for word, named in said if any(named))

    def overlaps(self, other: StepBase) -> bool:
        """Whether both would fail one call of one file; then it is unclear which does."""
        if not isinstance(other, SyscallFail):
            return False
        if not (_may_meet(self.paths, other.paths) and _may_meet(self.exes, other.exes)):
            return False
        if self.ports and other.ports and not set(self.ports) & set(other.ports):
            return False
        if self.fd_types and other.fd_types and not self.fd_types & other.fd_types:
            return False
        return bool({h.call for h in self.hooks} & {h.call for h in other.hooks})


def _may_meet(ours: tuple[str, ...], theirs: tuple[str, ...]) -> bool:
    """Whether one path may fit patterns of both: where neither's fixed beginning excludes it."""
    if not ours or not theirs:
        return True
    return any(
        a.startswith(b) or b.startswith(a) for a in map(_fixed, ours) for b in map(_fixed, theirs)
    )


def _fixed(pattern: str) -> str:
    if not any(c in pattern for c in "*?"):
        return pattern + "\0"  # the whole of it
    return re.split(r"/?[*?]", pattern, maxsplit=1)[0]
