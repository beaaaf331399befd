"""Profiles, presets, limits and schedule files as validated data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from controller.schedule_core import LimitSet, Mix, Place, Quiet
from controller.schedule_draw import INVERSE_CDF, Distribution
from nodeagent.model.units import Duration

SCHEDULE_FORMAT = 1
MAX_FAULTS = 100_000
_MS = timedelta(milliseconds=1)


def milliseconds(value: timedelta) -> int:
    """Whole milliseconds. Raises ValueError for a finer duration."""
    if value % _MS:
        raise ValueError("a schedule counts in whole milliseconds")
    return value // _MS


def _whole(value: timedelta) -> timedelta:
    milliseconds(value)
    return value


Millis = Annotated[Duration, AfterValidator(_whole)]


class Strict(BaseModel):
    """Immutable; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DistributionSpec(Strict):
    """A named distribution of durations with its parameters."""

    distribution: Literal["constant", "uniform", "exponential", "lognormal", "weibull"]
    value: Millis | None = None
    low: Millis | None = None
    high: Millis | None = None
    mean: Millis | None = None
    median: Millis | None = None
    scale: Millis | None = None
    sigma: Decimal | None = Field(default=None, ge=0, le=10)
    shape: Decimal | None = Field(default=None, gt=0, le=100)
    least: Millis = Field(default=timedelta(0), description="draw again below it")
    most: Millis | None = Field(default=None, description="draw again above it")

    @model_validator(mode="after")
    def _complete(self) -> DistributionSpec:
        wanted = INVERSE_CDF[self.distribution][0]
        names = ("value", "low", "high", "mean", "median", "scale", "sigma", "shape")
        given = [name for name in names if getattr(self, name) is not None]
        missing = [name for name in wanted if name not in given]
        stray = [name for name in given if name not in wanted]
        if missing or stray:
            words = [f"{name} is missing" for name in missing]
            words += [f"{name} does not belong to it" for name in stray]
            raise ValueError(f"{self.distribution}: {', '.join(words)}")
        if self.most is not None and self.most < self.least:
            raise ValueError("most is less than least")
        return self

    def made(self) -> Distribution:
        """For the engine: everything in milliseconds."""
        parameters: dict[str, Decimal] = {}
        for name in INVERSE_CDF[self.distribution][0]:
            value = getattr(self, name)
            if isinstance(value, timedelta):
                value = Decimal(milliseconds(value))
            parameters[name] = value
        most = None if self.most is None else milliseconds(self.most)
        return Distribution(self.distribution, parameters, milliseconds(self.least), most)


class Severity(Strict):
    """How hard a kind strikes: a weight and the spec that does it."""

    weight: int = Field(ge=1, le=1_000_000)
    spec: dict[str, Any] = Field(default={}, description='"$seed" stands for the slot\'s seed')


class KindShare(Strict):
    """One kind's share of the mix."""

    weight: int = Field(ge=1, le=1_000_000)
    severities: dict[str, Severity] = {}


class QuietWindow(Strict):
    """A window of the schedule in which no fault starts."""

    start: Millis
    end: Millis
    live: bool = Field(default=False, description="true: no fault lives in it either")

    @model_validator(mode="after")
    def _forward(self) -> QuietWindow:
        if self.end <= self.start:
            raise ValueError("a quiet window ends after it starts")
        return self


class Limits(Strict):
    """What a schedule may not do. Absent is no limit."""

    max_concurrent: int | None = Field(default=None, ge=1, description="faults live at once")
    per_service: int | None = Field(default=1, ge=1, description="live at once on one service")
    per_node: int | None = Field(default=None, ge=1, description="live at once on one node")
    per_zone: int | None = Field(default=None, ge=1, description="live at once in one zone")
    cool_down: Millis = Field(
        default=timedelta(0), description="between an end and the next start on a service"
    )
    quiet: tuple[QuietWindow, ...] = ()
    max_delay: Millis = Field(
        default=timedelta(minutes=5),
        description="how long a limit may delay a start; after that the fault is dropped",
    )

    def made(self) -> LimitSet:
        """For the engine."""
        return LimitSet(
            self.max_concurrent,
            self.per_service,
            self.per_node,
            self.per_zone,
            milliseconds(self.cool_down),
            tuple(Quiet(milliseconds(q.start), milliseconds(q.end), q.live) for q in self.quiet),
            milliseconds(self.max_delay),
        )


class Profile(Strict):
    """Where the numbers of a schedule come from."""

    name: str = Field(min_length=1, max_length=64)
    origin: str = Field(min_length=1, description="where the numbers come from, in words")
    calibrated: bool = Field(
        default=False, description="true only in profiles that `schedule fit` made from data"
    )
    arrivals: DistributionSpec
    lives: DistributionSpec
    mix: dict[str, KindShare] = Field(min_length=1)

    def made_mix(self, left_out: Sequence[str] = ()) -> Mix:
        """For the engine, in order of names, without the kinds that no target takes."""
        kinds = tuple(
            (name, share.weight) for name, share in sorted(self.mix.items()) if name not in left_out
        )
        severities = {
            name: tuple((s, v.weight) for s, v in sorted(share.severities.items()))
            for name, share in self.mix.items()
        }
        return Mix(kinds, severities)

    def spec(self, kind: str, severity: str, seed: int) -> dict[str, Any]:
        """The spec of a drawn fault."""
        found = self.mix[kind].severities.get(severity)
        spec = dict(found.spec) if found else {}
        return {name: seed if value == "$seed" else value for name, value in spec.items()}


class Preset(Strict):
    """A profile with a length and limits of its own."""

    profile: str = "default"
    about: str
    window: Millis = Field(description="faults arrive in it; their lives may pass its end")
    count: int | None = Field(default=None, ge=1, le=MAX_FAULTS)
    arrivals: DistributionSpec | None = None
    lives: DistributionSpec | None = None
    limits: Limits = Limits()
    services: int = Field(default=12, ge=1, le=10_000, description="of the placeholder pool")
    nodes: int = Field(default=3, ge=1, le=10_000)
    zones: int = Field(default=3, ge=1, le=1000)

    def pool(self) -> tuple[Place, ...]:
        """Placeholders, used when no targets are given: service-01 on node-1 in zone-1, ..."""
        return tuple(
            Place(
                f"service-{number + 1:02d}",
                f"node-{number % self.nodes + 1}",
                f"zone-{number % self.nodes % self.zones + 1}",
            )
            for number in range(self.services)
        )


class ScheduledFault(Strict):
    """One fault of a schedule; times in milliseconds from its start."""

    slot: str
    arrival_ms: int = Field(ge=0, description="as drawn, before any limit")
    start_ms: int = Field(ge=0)
    end_ms: int = Field(gt=0)
    kind: str
    severity: str = ""
    service: str
    node: str
    zone: str = ""
    seed: int
    spec: dict[str, Any] = {}

    @model_validator(mode="after")
    def _forward(self) -> ScheduledFault:
        if self.end_ms <= self.start_ms:
            raise ValueError(f"{self.slot} ends before it starts")
        return self


class ScheduleChange(Strict):
    """What a limit dropped or delayed."""

    slot: str
    action: Literal["dropped", "delayed"]
    rule: str
    arrival_ms: int
    by_ms: int = 0
    kind: str = ""


class Schedule(Strict):
    """A schedule file."""

    format: Literal[1] = 1
    seed: int
    preset: str = ""
    profile: str
    calibrated: bool = False
    origin: str = ""
    left_out: tuple[str, ...] = Field(default=(), description="kinds that no target takes")
    window_ms: int
    limits: Limits = Limits()
    faults: tuple[ScheduledFault, ...]
    changes: tuple[ScheduleChange, ...] = ()

    @model_validator(mode="after")
    def _slots(self) -> Schedule:
        slots = [fault.slot for fault in self.faults]
        if len(set(slots)) != len(slots):
            raise ValueError("two faults have the same slot")
        return self

    @property
    def end_ms(self) -> int:
        """When the last fault ends."""
        return max((fault.end_ms for fault in self.faults), default=0)

    def text(self) -> str:
        """The file, byte for byte the same for the same draw: sorted keys, LF, ASCII."""
        data = self.model_dump(mode="json")
        return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=True) + "\n"

    @property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return hashlib.sha256(self.text().encode()).hexdigest()
