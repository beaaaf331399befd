"""netem's loss models and slots as users write them: `p=1%,r=10%`. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)

from nodeagent.model.units import Duration, Percent

B = TypeVar("B", bound=BaseModel)


class _Words(BaseModel):
    """A model that is written as `name=value,name=value`."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Gilbert(_Words):
    """Gilbert-Elliott: a good and a bad state, each with its own loss (tc-netem(8), gemodel)."""

    p: Percent = Field(description="chance to go from good to bad, each packet")
    r: Percent | None = Field(default=None, description="chance to go back; without it 100% - p")
    bad: Percent = Field(default=Decimal(100), description="loss in the bad state (1-h)")
    good: Percent = Field(default=Decimal(0), description="loss in the good state (1-k)")


class States(_Words):
    """Four states: good, lost in a burst, received in a burst, lost alone (tc-netem(8), state)."""

    p13: Percent = Field(description="good to a burst of losses")
    p31: Percent | None = Field(default=None, description="back; without it 100% - p13")
    p32: Percent = Field(default=Decimal(0), description="burst of losses to received within it")
    p23: Percent = Field(default=Decimal(100), description="and back to losses")
    p14: Percent = Field(default=Decimal(0), description="a loss alone")


class Slot(_Words):
    """Packets leave in bursts."""

    min: Duration = Field(description="least time between two slots")
    max: Duration | None = Field(default=None, description="most; without it min")
    packets: int = Field(default=0, ge=0, lt=1 << 31, description="of a slot, 0 for any number")
    bytes: int = Field(default=0, ge=0, lt=1 << 31, description="of a slot, 0 for any number")

    @property
    def longest(self) -> timedelta:
        return self.min if self.max is None else self.max


def _parser(model: type[B]) -> Callable[[object], object]:
    def parse(value: object) -> object:
        if not isinstance(value, str):
            return value
        found: dict[str, str] = {}
        for part in value.split(","):
            name, sign, text = part.partition("=")
            if not sign or name in found:
                names = ", ".join(model.model_fields)
                raise ValueError(f"{part!r} is not one of {names} with a value, such as p=1%")
            found[name] = text
        return found

    return parse


def _text(model: BaseModel) -> str:
    data: dict[str, Any] = model.model_dump(mode="json", exclude_defaults=True)
    return ",".join(f"{name}={value}" for name, value in data.items())


def _written(model: type[BaseModel], example: str) -> tuple[Any, ...]:
    return (
        BeforeValidator(_parser(model)),
        PlainSerializer(_text, return_type=str),
        WithJsonSchema({"type": "string", "examples": [example]}),
        Field(json_schema_extra={"metavar": example.upper()}),
    )


GilbertText = Annotated[Gilbert, *_written(Gilbert, "p=1%,r=10%")]
StatesText = Annotated[States, *_written(States, "p13=1%,p31=20%")]
SlotText = Annotated[Slot, *_written(Slot, "min=10ms,packets=8")]
