"""Oracles as data: which conditions over samples and events make a verdict."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from nodeagent.model.units import Duration, Percent

Window = Literal["hold", "before", "during"]
"""hold: from the moment that is judged, for the hold time. before: the steady state before
the first fault. during: from injection to the moment that is judged."""

Bound = Decimal | Duration
"""A number, or a duration with its unit for fields in ns."""

CAP = timedelta(seconds=1800)


class Part(BaseModel):
    """Immutable; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class OnProbe(Part):
    """A condition over the samples of one probe in a window."""

    probe: str = Field(min_length=1, description="name of a probe or of a load")
    window: Window = "hold"
    samples: int = Field(default=3, ge=1, description="fewer than these are no measurement")


class Level(OnProbe):
    """The probe is healthy all the time, after its thresholds."""

    type: Literal["level"] = "level"
    failures: int | None = Field(
        default=None, ge=1, description="in a row that make it unhealthy; absent: the probe's own"
    )
    successes: int | None = Field(
        default=None, ge=1, description="in a row that make it healthy; absent: the probe's own"
    )
    expect: Literal["pass", "fail"] = "pass"


class Rate(OnProbe):
    """The share of samples that pass."""

    type: Literal["rate"] = "rate"
    at_least: Percent


class Limits(Part):
    """One or both bounds of a number."""

    at_most: Bound | None = None
    at_least: Bound | None = None

    @model_validator(mode="after")
    def _some(self) -> Limits:
        if self.at_most is None and self.at_least is None:
            raise ValueError("at_most or at_least is needed")
        return self


class Percentile(OnProbe, Limits):
    """A percentile of a number of the samples, by nearest rank; a failed sample is slowest."""

    type: Literal["percentile"] = "percentile"
    field: str = Field(default="duration_ns", description="duration_ns, or a number of `data`")
    p: Decimal = Field(default=Decimal(99), gt=0, le=100)


class Baseline(OnProbe):
    """A statistic in the window compared with the same in the baseline window."""

    type: Literal["baseline"] = "baseline"
    stat: Literal["rate", "percentile", "min", "max"] = "percentile"
    field: str = "duration_ns"
    p: Decimal = Field(default=Decimal(99), gt=0, le=100)
    at_most_times: Decimal | None = Field(default=None, ge=0)
    at_least_times: Decimal | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _some(self) -> Baseline:
        if self.at_most_times is None and self.at_least_times is None:
            raise ValueError("at_most_times or at_least_times is needed")
        if self.window == "before":
            raise ValueError("the baseline cannot be compared with itself")
        return self


class Workload(OnProbe):
    """A workload is still there: never fewer than in the baseline, and still the same.

    Scaling up, rolling back and restarting are legitimate. `same` names fields that may not
    change, such as `image`, for workloads that could be replaced by a stub.
    """

    type: Literal["workload"] = "workload"
    field: str = Field(default="count", description="number in `data`: processes, replicas")
    same: tuple[str, ...] = ()


class Restarts(OnProbe):
    """How often the probe's `identity` changed inside the window."""

    type: Literal["restarts"] = "restarts"
    field: str = "identity"
    at_most: int = Field(default=0, ge=0)


class AgentAlive(Part):
    """The agent of the fault's node was heard in the window and never lost."""

    type: Literal["agent-alive"] = "agent-alive"


class Gone(Part):
    """The fault was remedied, or routed around while it was live."""

    type: Literal["gone"] = "gone"


class All(Part):
    """Every one of them."""

    type: Literal["all"] = "all"
    of: tuple[Condition, ...] = Field(min_length=1)


class AnyOf(Part):
    """One of them is enough."""

    type: Literal["any"] = "any"
    of: tuple[Condition, ...] = Field(min_length=1)


class AtLeast(Part):
    """So many of them."""

    type: Literal["at-least"] = "at-least"
    count: int = Field(ge=1)
    of: tuple[Condition, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _possible(self) -> AtLeast:
        if self.count > len(self.of):
            raise ValueError(f"{self.count} of {len(self.of)} can never hold")
        return self


Condition = Annotated[
    Level
    | Rate
    | Percentile
    | Baseline
    | Workload
    | Restarts
    | AgentAlive
    | Gone
    | All
    | AnyOf
    | AtLeast,
    Field(discriminator="type"),
]
All.model_rebuild()
AnyOf.model_rebuild()
AtLeast.model_rebuild()


class OracleSpec(Part):
    """How a fault, some faults, or the whole run is judged.

    Whatever `require` says, a fault must also be gone, and its agent alive: these two can be
    sharpened, never left out.
    """

    faults: tuple[str, ...] = Field(
        default=(), description="faults of the file that it judges; absent: all, and the run"
    )
    judge: Literal["submission", "repair"] = Field(
        default="submission",
        description="when the hold window starts: when the operator says so, else at the cap; "
        "or, for runs with many faults, when this fault was repaired",
    )
    hold: Duration = Field(default=timedelta(seconds=60), description="must be healthy so long")
    cap: Duration = Field(default=CAP, description="after injection; judged then at the latest")
    exposure: str | None = Field(
        default=None,
        description="probe that passes when no running workload can still be hit; "
        "without it only a remedied fault is gone",
    )
    require: Condition | None = Field(
        default=None, description="absent: the fault's symptom probe is healthy"
    )

    @model_validator(mode="after")
    def _held(self) -> OracleSpec:
        if self.hold <= timedelta(0) or self.cap <= timedelta(0):
            raise ValueError("hold and cap must be more than 0s")
        return self


_ADAPTER: TypeAdapter[OracleSpec] = TypeAdapter(OracleSpec)


def parse_oracle(data: Any) -> OracleSpec:
    """An oracle from decoded YAML or JSON. Raises pydantic.ValidationError."""
    return _ADAPTER.validate_python(data)


def probes_of(condition: Any) -> frozenset[str]:
    """Names of all probes that a condition looks at."""
    if isinstance(condition, All | AnyOf | AtLeast):
        return frozenset().union(*(probes_of(c) for c in condition.of))
    return frozenset({condition.probe}) if isinstance(condition, OnProbe) else frozenset()
