"""Probes that run on a node, as data: what to measure, how often, and when to call it healthy."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from nodeagent.model.target import AbsolutePath
from nodeagent.model.units import Duration, Size

Verdict = Literal["pass", "fail", "unknown"]


class ProbeSpec(BaseModel):
    """What all probes share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    timeout: Duration = Field(default=timedelta(seconds=5), description="for one sample")
    interval: Duration = Field(default=timedelta(seconds=1), description="between two starts")
    count: int = Field(default=1, ge=1, le=1_000_000, description="number of samples")

    @model_validator(mode="after")
    def _bounded(self) -> ProbeSpec:
        if self.timeout <= timedelta(0):
            raise ValueError("timeout: must be more than 0s")
        return self

    @property
    def longest(self) -> timedelta:
        """The longest that the whole probe can take."""
        return self.count * max(self.interval, self.timeout)


class ExecProbe(ProbeSpec):
    """Runs a program on the node; exit status 0 is healthy."""

    type: Literal["exec"] = "exec"
    command: tuple[str, ...] = Field(min_length=1, description="program and arguments, no shell")
    output: str | None = Field(default=None, description="text that standard output must contain")


class TcpProbe(ProbeSpec):
    """Connects to a TCP port from the node; an accepted connection is healthy."""

    type: Literal["tcp"] = "tcp"
    host: str = Field(min_length=1, description="name or address; IPv6 bare or in brackets")
    port: int = Field(ge=1, le=65535)


class ReadProbe(ProbeSpec):
    """Reads a range of a file or block device with O_DIRECT, past the page cache."""

    type: Literal["read"] = "read"
    path: AbsolutePath = Field(description="regular file or block device")
    offset: Size = Field(default=0, description="first byte")
    length: Size | None = Field(default=None, description="to the end of a file when not given")
    block: Size = Field(default=4096, description="bytes read at once")


Probe = Annotated[ExecProbe | TcpProbe | ReadProbe, Field(discriminator="type")]
PROBE_TYPES: dict[str, type[ProbeSpec]] = {
    "exec": ExecProbe,
    "tcp": TcpProbe,
    "read": ReadProbe,
}
_ADAPTER: TypeAdapter[ProbeSpec] = TypeAdapter(Probe)


def parse_probe(data: Any) -> ProbeSpec:
    """A probe from decoded JSON. Raises pydantic.ValidationError."""
    return _ADAPTER.validate_python(data)


class Sample(BaseModel):
    """One measurement; a probe that cannot measure says unknown, never pass."""

    model_config = ConfigDict(frozen=True)

    boottime_ns: int = Field(description="CLOCK_BOOTTIME of the node at the start")
    verdict: Verdict
    duration_ns: int
    reason: str = ""
    data: dict[str, Any] = {}
