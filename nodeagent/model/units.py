"""Quantities with units: durations, sizes, percentages, shifts and drifts of clocks.

One grammar for the command line, spec files and the wire. A bare number is refused
wherever a unit matters, since guessing seconds or bytes is how faults become a
thousand times too small.
"""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

MAX_DURATION = timedelta(days=365)
MAX_SIZE = 1 << 62
MAX_TEXT = 64

_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h|d))+", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)(B|k|K|M|G|T|P|Ki|Mi|Gi|Ti|Pi)(B?)", re.ASCII)
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%", re.ASCII)
_PARTS = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h|d)", re.ASCII)
_NANOSECONDS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
_NANOSECONDS |= {"m": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9}
_BARE = re.compile(r"[+-]?\d+(\.\d+)?", re.ASCII)

_SIZE_FACTORS = {"B": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_SIZE_FACTORS |= {f"{p}i": 1024 ** (i + 1) for i, p in enumerate("KMGTP")}


def parse_duration(value: object) -> timedelta:
    """A duration such as `1m30s`, `250ms`, `1.5h`, `2d`; at most 365 days, zero allowed.

    Units: ns, us, ms, s, m, h, d. Resolution is one microsecond; what is finer is refused,
    never rounded. Raises ValueError with a sentence for a person.
    """
    if isinstance(value, timedelta):
        return _bounded(value, str(value))
    text = _short(value)
    if _BARE.fullmatch(text):
        raise ValueError(f"{text!r} has no unit: write {text}s, {text}ms or {text}m")
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration: write for example 90s, 1m30s, 250ms, 2h, 1d")
    parts = (Fraction(n) * _NANOSECONDS[unit] for n, unit in _PARTS.findall(text))
    micros = sum(parts, Fraction(0)) / 1000
    if micros.denominator != 1:
        raise ValueError(f"{text!r} is finer than a microsecond")
    longest = MAX_DURATION // timedelta(microseconds=1)
    return _bounded(timedelta(microseconds=min(int(micros), longest + 1)), text)


def _short(value: object) -> str:
    text = str(value)
    if len(text) > MAX_TEXT:
        raise ValueError(f"'{text[:MAX_TEXT]}...' is too long")
    return text


def _bounded(value: timedelta, text: str) -> timedelta:
    if value < timedelta(0):
        raise ValueError(f"{text!r} is negative")
    if value > MAX_DURATION:
        raise ValueError(f"{text!r} is longer than 365 days")
    return value


def format_duration(value: timedelta) -> str:
    """The shortest exact text that `parse_duration` reads back: `1m30s`, `250ms`, `0s`."""
    micros = value // timedelta(microseconds=1)
    parts: list[str] = []
    for unit, size in (("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000)):
        count, micros = divmod(micros, size)
        if count:
            parts.append(f"{count}{unit}")
    for unit, size in (("s", 1_000_000), ("ms", 1_000), ("us", 1)):
        count, micros = divmod(micros, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_size(value: object) -> int:
    """A size in bytes: `512B`, `64Ki`, `1.5Gi` (powers of 1024), `10M` (powers of 1000).

    The suffixes are those of Kubernetes quantities, with an optional final B.
    Raises ValueError with a sentence for a person.
    """
    text = _short(value)
    match = _SIZE.fullmatch(text)
    if match is None or (match[2] == "B" and match[3]):
        if _BARE.fullmatch(text):
            raise ValueError(f"{text!r} has no unit: write {text}B, {text}Ki or {text}Mi")
        raise ValueError(f"{text!r} is not a size: write for example 512B, 64Ki, 1.5Gi")
    number = Fraction(match[1]) * _SIZE_FACTORS[match[2]]
    if number.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return _size_in_range(int(number), text)


def _size_in_range(value: int, text: str) -> int:
    if value < 0:
        raise ValueError(f"{text!r} is negative")
    if value > MAX_SIZE:
        raise ValueError(f"{text!r} is larger than any device")
    return value


def format_size(value: int) -> str:
    """The largest exact binary unit: `64Ki`, `1Gi`, `513B`."""
    for suffix in ("Pi", "Ti", "Gi", "Mi", "Ki"):
        factor = _SIZE_FACTORS[suffix]
        if value and value % factor == 0:
            return f"{value // factor}{suffix}"
    return f"{value}B"


def parse_percent(value: object) -> Decimal:
    """A percentage from 0% to 100% such as `2.5%`. Raises ValueError for a person."""
    if isinstance(value, Decimal):
        number, text = value, f"{value}%"
    else:
        text = _short(value)
        match = _PERCENT.fullmatch(text)
        if match is None:
            hint = f": write {text}%" if _BARE.fullmatch(text) else ", such as 2.5%"
            raise ValueError(f"{text!r} is not a percentage{hint}")
        number = Decimal(match[1])
    if not number.is_finite() or not 0 <= number <= 100:
        raise ValueError(f"{text!r} is not between 0% and 100%")
    return number


def format_percent(value: Decimal) -> str:
    """`2.5%`: no exponent, no trailing zeros."""
    text = format(value, "f")
    return (text.rstrip("0").rstrip(".") if "." in text else text) + "%"


def _unit(parse: Any, fmt: Any, name: str, example: str) -> tuple[Any, ...]:
    schema = {"type": "string", "format": name, "examples": [example]}
    return (
        BeforeValidator(parse),
        PlainSerializer(fmt, return_type=str),
        WithJsonSchema(schema),
        Field(json_schema_extra={"metavar": name.upper()}),
    )


Duration = Annotated[timedelta, *_unit(parse_duration, format_duration, "duration", "1m30s")]
Size = Annotated[int, *_unit(parse_size, format_size, "size", "64Mi")]
Percent = Annotated[Decimal, *_unit(parse_percent, format_percent, "percent", "2.5%")]


# --- clocks -----------------------------------------------------------------------

MAX_DRIFT_PPB = 100_000_000
"""10 %: what adjtimex(2) takes in its tick."""
_DRIFT = re.compile(r"([+-]?\d+(?:\.\d+)?)(ppm|%)", re.ASCII)


def parse_shift(value: object) -> timedelta:
    """A duration with a sign, `+30d` or `-1h30m`; without one it is plus.

    Raises ValueError with a sentence for a person.
    """
    if isinstance(value, timedelta):
        return -parse_duration(-value) if value < timedelta(0) else parse_duration(value)
    text = _short(value)
    if text.startswith("-"):
        return -parse_duration(text[1:])
    return parse_duration(text.removeprefix("+"))


def format_shift(value: timedelta) -> str:
    """`+30d`, `-250ms`: what `parse_shift` reads back."""
    return ("-" if value < timedelta(0) else "+") + format_duration(abs(value))


def parse_drift(value: object) -> int:
    """How much faster or slower a clock runs, `+100ppm` or `-2%`, in parts per 10^9.

    At most 10 % either way. Raises ValueError with a sentence for a person.
    """
    text = _short(value)
    match = _DRIFT.fullmatch(text)
    if match is None:
        hint = f": write {text}ppm" if _BARE.fullmatch(text) else ", such as +100ppm or -2%"
        raise ValueError(f"{text!r} is not a drift{hint}")
    number = Fraction(match[1]) * (1000 if match[2] == "ppm" else 10_000_000)
    if number.denominator != 1:
        raise ValueError(f"{text!r} is finer than 0.001ppm")
    if abs(number) > MAX_DRIFT_PPB:
        raise ValueError(f"{text!r} is more than the 10% that the kernel takes")
    return int(number)


def format_drift(ppb: int) -> str:
    """`+100ppm`: what `parse_drift` reads back."""
    text = format(Decimal(abs(ppb)) / 1000, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return ("-" if ppb < 0 else "+") + text + "ppm"


Shift = Annotated[timedelta, *_unit(parse_shift, format_shift, "shift", "+30d")]
Drift = Annotated[int, *_unit(parse_drift, format_drift, "drift", "+100ppm")]
