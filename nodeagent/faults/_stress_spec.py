"""stress: what a user may ask of stress-ng, and the need for it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from pydantic import Field, model_validator

from nodeagent.encode import stress_ng
from nodeagent.model.facts import Facts
from nodeagent.model.kind import FaultSpec
from nodeagent.model.target import AbsolutePath
from nodeagent.model.units import Percent, Size

MAX_WORKERS = 256
PLAIN = ("sock", "fault", "cache", "switch")
Workers = int | None


def _workers(what: str) -> Any:
    return Field(default=None, ge=1, le=MAX_WORKERS, description=f"workers: {what}")


@dataclass(frozen=True)
class NeedStressNg:
    """The program, in a version whose options are known."""

    def missing(self, facts: Facts) -> str | None:
        if not facts.stress_ng:
            return "stress-ng is not installed (Debian package stress-ng)"
        least = ".".join(map(str, stress_ng.MIN_VERSION))
        found = stress_ng.parse_version(facts.stress_ng)
        if found is None or found < stress_ng.MIN_VERSION:
            return f"{facts.stress_ng!r} is not stress-ng {least} or newer"
        return None


class Spec(FaultSpec):
    """Which load, and how much; at least one sort."""

    cpu: Workers = _workers("CPU")
    load: Percent = Field(
        default=Decimal(100), description="with cpu: for how much of the time each is busy"
    )
    cpu_percent: Percent | None = Field(
        default=None, description="share of the CPUs that the target may use: its quota, if any"
    )
    cpu_method: str = Field(
        default="int64", pattern="^[a-z0-9-]{1,32}$", description="one of stress-ng's own"
    )
    memory: Size | None = Field(default=None, description="bytes to take and hold")
    memory_percent: Percent | None = Field(
        default=None, description="share of the memory that the target may use: its limit, if any"
    )
    io: Workers = _workers("sync(2) again and again")
    hdd: Workers = _workers("write and read files")
    hdd_size: Size = Field(default=64 << 20, ge=1 << 20, description="file of each hdd worker")
    folder: AbsolutePath | None = Field(
        default=None, description="where scratch files go; without it the agent's own directory"
    )
    sock: Workers = _workers("sockets")
    fault: Workers = _workers("page faults")
    cache: Workers = _workers("CPU caches")
    switch: Workers = _workers("context switches")
    stressor: tuple[str, ...] = Field(
        default=(), max_length=16, description="any other of stress-ng: NAME=WORKERS"
    )
    oom_victim: Literal["stressor", "target"] = Field(
        default="stressor", description="who is killed first when memory runs out"
    )
    restart: bool = Field(
        default=False, description="start it again when a worker has died, of memory or otherwise"
    )

    @property
    def has_memory(self) -> bool:
        return self.memory is not None or self.memory_percent is not None

    @model_validator(mode="after")
    def _sound(self) -> Spec:
        if self.cpu is not None and self.cpu_percent is not None:
            raise ValueError("cpu and cpu_percent cannot go together")
        if self.memory is not None and self.memory_percent is not None:
            raise ValueError("memory and memory_percent cannot go together")
        if self.load != int(self.load) or not self.load:
            raise ValueError("load: stress-ng takes whole percents, from 1%")
        if 0 in (self.cpu_percent, self.memory_percent) or (self.memory or 4096) < 4096:
            raise ValueError("that would be no load at all")
        asked = (self.cpu, self.cpu_percent, self.io, self.hdd, *self._plain.values())
        if not self.has_memory and not self.stressor and all(one is None for one in asked):
            raise ValueError("which load? cpu, memory, io, hdd, sock, fault, cache, switch, ...")
        stress_ng.named_args(self.stressor)
        return self

    @property
    def _plain(self) -> dict[str, int | None]:
        return {name: getattr(self, name) for name in PLAIN}

    @property
    def plain(self) -> dict[str, int]:
        """Workers that need nothing but their number, by stress-ng's names."""
        found = self._plain | {"io": self.io}
        return {name: count for name, count in found.items() if count}
