"""Probes that run on a node, as data: what to measure, how often, and when to call it healthy."""

from __future__ import annotations

import ipaddress
import re
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from nodeagent.model.target import AbsolutePath
from nodeagent.model.units import Duration, Size

Verdict = Literal["pass", "fail", "unknown"]


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("a word of a command cannot contain a NUL byte")
    return value


def _host(value: str) -> str:
    """The bare host. Raises ValueError with a sentence for a person."""
    bare = value.removeprefix("[").removesuffix("]")
    if value != bare and (value != f"[{bare}]" or ":" not in bare):
        raise ValueError(f"{value!r}: brackets go around an IPv6 address, both of them")
    if ":" in bare:
        try:
            ipaddress.IPv6Address(bare)
        except ValueError:
            raise ValueError(f"{value!r} is not an IPv6 address") from None
        return bare
    labels = bare.rstrip(".").split(".")
    if len(bare) > 253 or not all(re.fullmatch(r"[\w-]{1,63}", label) for label in labels):
        raise ValueError(f"{value[:80]!r} is not a host name or address")
    return bare


Word = Annotated[str, AfterValidator(_no_nul)]
Host = Annotated[str, AfterValidator(_host), Field(json_schema_extra={"metavar": "HOST"})]


class ProbeSpec(BaseModel):
    """What all probes share."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    timeout: Duration = Field(
        default=timedelta(seconds=5), le=timedelta(hours=1), description="for one sample"
    )
    interval: Duration = Field(
        default=timedelta(seconds=1), le=timedelta(days=1), description="between two starts"
    )
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
    command: tuple[Word, ...] = Field(min_length=1, description="program and arguments, no shell")
    contains: str | None = Field(default=None, description="text that standard output must contain")


class TcpProbe(ProbeSpec):
    """Connects to a TCP port from the node; an accepted connection is healthy."""

    type: Literal["tcp"] = "tcp"
    host: Host = Field(description="name or address; IPv6 bare or in brackets")
    port: int = Field(ge=1, le=65535)


class ReadProbe(ProbeSpec):
    """Reads a range of a file or block device with O_DIRECT, past the page cache."""

    type: Literal["read"] = "read"
    path: AbsolutePath = Field(description="regular file or block device")
    offset: Size = Field(default=0, description="first byte")
    length: Size | None = Field(default=None, description="to the end of a file when not given")
    block: Size = Field(
        default=4096, gt=0, le=16 << 20, description="bytes read at once, a multiple of 512B"
    )

    @model_validator(mode="after")
    def _aligned(self) -> ReadProbe:
        if self.block % 512:
            raise ValueError("block: must be a multiple of 512B")
        if self.offset % self.block:
            raise ValueError("offset: must be a multiple of block")
        return self


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

    model_config = ConfigDict(frozen=True, defer_build=True)

    boottime_ns: int = Field(description="CLOCK_BOOTTIME of the node at the start")
    verdict: Verdict
    duration_ns: int
    reason: str = ""
    data: dict[str, Any] = {}
