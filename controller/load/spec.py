"""Loads as data: what is asked, how often, and when the answers are healthy."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
    WithJsonSchema,
    model_validator,
)

from controller.probes.spec import GrpcPlace, HttpProbe, SqlProbe
from nodeagent.model.units import Duration, Percent

MAX_RATE = 1_000_000
MAX_REQUESTS = 50_000_000
_RATE = re.compile(r"(\d+(?:\.\d+)?)/(s|m|h)", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def parse_rate(value: object) -> Fraction:
    """Requests a second from `50/s`, `90/m`, `0.5/s`, `10/h`; 0/s is a pause.

    Raises ValueError with a sentence for a person.
    """
    if isinstance(value, Fraction):
        return value
    text = str(value)
    match = _RATE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a rate: write for example 50/s, 90/m, 10/h")
    rate = Fraction(match[1]) / _SECONDS[match[2]]
    if rate > MAX_RATE:
        raise ValueError(f"{text!r} is more than {MAX_RATE}/s")
    return rate


def format_rate(value: Fraction) -> str:
    """The text that `parse_rate` reads back: `50/s`, or per minute or hour where that is exact."""
    for unit, seconds in _SECONDS.items():
        scaled = value * seconds
        if scaled.denominator == 1:
            return f"{scaled}/{unit}"
    return f"{float(value):.6f}/s"


Rate = Annotated[
    Fraction,
    BeforeValidator(parse_rate),
    PlainSerializer(format_rate, return_type=str),
    WithJsonSchema({"type": "string", "format": "rate", "examples": ["50/s"]}),
]


class GrpcCall(GrpcPlace):
    """A unary gRPC call with a fixed message; status OK is a success."""

    type: Literal["grpc"] = "grpc"
    method: str = Field(default="/grpc.health.v1.Health/Check", pattern=r"^/[^/]+/[^/]+$")
    message: str = Field(default="", pattern=r"^([0-9a-fA-F]{2})*$", description="hexadecimal")


class Stage(BaseModel):
    """A stretch at one rate, or a ramp to another. A spike is a short stage."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rate: Rate
    to: Rate | None = Field(default=None, description="absent: the rate stays")
    duration: Duration = Field(alias="for")

    @model_validator(mode="after")
    def _lasts(self) -> Stage:
        if self.duration <= timedelta(0):
            raise ValueError("for: must be more than 0s")
        return self

    @property
    def requests(self) -> Fraction:
        """How many requests it holds."""
        seconds = Fraction(self.duration // timedelta(microseconds=1), 10**6)
        return (self.rate + (self.rate if self.to is None else self.to)) / 2 * seconds


class LoadSpec(BaseModel):
    """An open-loop load: requests start when the plan says, whatever became of those before."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    request: Annotated[HttpProbe | GrpcCall | SqlProbe, Field(discriminator="type")]
    stages: tuple[Stage, ...] = Field(min_length=1, max_length=10_000)
    arrivals: Literal["uniform", "poisson"] = "poisson"
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    in_flight: int = Field(
        default=10_000, ge=1, le=100_000, description="requests open at once; more is an error"
    )
    lag: Duration = Field(
        default=timedelta(milliseconds=50),
        description="a request that starts later than this after its time is an error",
    )
    window: Duration = Field(default=timedelta(seconds=1), description="one sample for each")
    success: Percent = Field(default=Decimal(99), description="share of good answers, else fail")
    latency: Duration | None = Field(default=None, description="p99 above this is a failure")

    @model_validator(mode="after")
    def _possible(self) -> LoadSpec:
        if self.window < timedelta(milliseconds=100):
            raise ValueError("window: at least 100ms")
        if sum((s.requests for s in self.stages), Fraction(0)) > MAX_REQUESTS:
            raise ValueError(f"stages: more than {MAX_REQUESTS} requests")
        if isinstance(self.request, SqlProbe) and self.request.engine != "postgresql":
            raise ValueError("request: the driver of MySQL blocks, which is no open loop")
        if isinstance(self.request, HttpProbe) and self.request.follow:
            raise ValueError("request: a load does not follow redirects")
        return self

    @property
    def gap_ns(self) -> int:
        """Longest time between two samples that is no hole."""
        return 2 * (self.window // timedelta(microseconds=1)) * 1000


_ADAPTER: TypeAdapter[LoadSpec] = TypeAdapter(LoadSpec)


def parse_load(data: Any) -> LoadSpec:
    """A load from decoded YAML or JSON. Raises pydantic.ValidationError."""
    return _ADAPTER.validate_python(data)
