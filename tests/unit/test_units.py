"""One grammar for quantities everywhere: exact, with units, and one clear error for the rest."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from nodeagent.model.units import (
    MAX_DURATION,
    MAX_SIZE,
    Duration,
    Percent,
    Size,
    format_drift,
    format_duration,
    format_percent,
    format_shift,
    format_size,
    parse_drift,
    parse_duration,
    parse_percent,
    parse_shift,
    parse_size,
)


class Quantities(BaseModel):
    d: Duration = timedelta(0)
    s: Size = 0
    p: Percent = Decimal(0)


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("90s", 90_000_000),
        ("1m30s", 90_000_000),
        ("1.5m", 90_000_000),
        ("2h", 7_200_000_000),
        ("1d2h3m50s", 93_830_000_000),
        ("250ms", 250_000),
        ("0.1s", 100_000),
        ("1us", 1),
        ("1µs", 1),
        ("1000ns", 1),
        ("0s", 0),
        ("0.000001s", 1),
        ("365d", 31_536_000_000_000),
        ("1s1m", 61_000_000),
        ("007s", 7_000_000),
    ],
)
def test_durations_that_are_taken_are_exact(text: str, micros: int) -> None:
    assert parse_duration(text) == timedelta(microseconds=micros)


BAD_DURATIONS = [
    "",
    " ",
    "0",
    "90",
    "+90",
    "-5",
    "1.5",
    "-5s",
    "+5s",
    "1d?",
    "5 min",
    "5min",
    "5 s",
    " 5s",
    "5s ",
    "5s\n",
    "\uff19\uff10s",
    "٣s",
    "1e3s",
    "1E3s",
    "0x10s",
    "1_000s",
    "1,5s",
    ".5s",
    "5.s",
    "1.2.3s",
    "s",
    "ms",
    "1S",
    "1M",
    "1w",
    "1y",
    "1mo",
    "1sec",
    "01:30",
    "1:30:00",
    "PT5S",
    "inf",
    "infs",
    "nan",
    "nans",
    "None",
    "True",
    "1ns",
    "999ns",
    "1.5us",
    "0.0000001s",
    "366d",
    "8761h",
    "99999999999999999999",
    "100000000000000000000s",
    "9" * 5000 + "s",
    "1d" * 5000,
    "1s;2s",
    "1s 2s",
    "1s-2s",
    "1s\0",
    "1\u200bs",
    "1μs",
]


@pytest.mark.parametrize("text", BAD_DURATIONS)
def test_durations_that_are_refused_have_one_short_sentence(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_duration(text)
    assert type(caught.value) is ValueError
    assert 5 < len(str(caught.value)) < 300
    with pytest.raises(ValidationError):
        Quantities.model_validate({"d": text})
    with pytest.raises(ValidationError):
        Quantities.model_validate_json(json.dumps({"d": text}))


@pytest.mark.parametrize(
    "value", [90, 0, -1, 1.5, float("nan"), float("inf"), True, None, [], {}, b"5s"]
)
def test_a_value_that_is_no_text_has_no_unit(value: object) -> None:
    for field in "dsp":
        with pytest.raises(ValidationError):
            Quantities.model_validate({field: value})


@pytest.mark.parametrize("text", ["90", "1.5"])
def test_a_bare_number_is_told_how_to_write_a_unit(text: str) -> None:
    with pytest.raises(ValueError, match=f"write {text}s"):
        parse_duration(text)
    with pytest.raises(ValueError, match=f"write {text}B"):
        parse_size(text)
    with pytest.raises(ValueError, match=f"write {text}%"):
        parse_percent(text)


@given(st.timedeltas(timedelta(0), MAX_DURATION))
def test_a_duration_reads_back_as_itself(value: timedelta) -> None:
    assert parse_duration(format_duration(value)) == value
    again = Quantities.model_validate_json(Quantities(d=value).model_dump_json())
    assert again.d == value


@given(st.text())
def test_any_text_is_a_duration_in_bounds_or_a_value_error(text: str) -> None:
    try:
        found = parse_duration(text)
    except ValueError:
        return
    assert timedelta(0) <= found <= MAX_DURATION
    assert parse_duration(format_duration(found)) == found


@given(
    st.lists(
        st.tuples(st.integers(0, 99), st.sampled_from(["ns", "us", "ms", "s", "m", "h", "d"])),
        max_size=9,
    )
)
def test_parts_add_up_or_are_refused(parts: list[tuple[int, str]]) -> None:
    nanos = {
        "ns": 1,
        "us": 10**3,
        "ms": 10**6,
        "s": 10**9,
        "m": 6 * 10**10,
        "h": 36 * 10**11,
        "d": 864 * 10**11,
    }
    total = sum(n * nanos[unit] for n, unit in parts)
    text = "".join(f"{n}{unit}" for n, unit in parts)
    try:
        found = parse_duration(text)
    except ValueError:
        assert not parts or total % 1000 or total > MAX_DURATION.total_seconds() * 10**9
        return
    assert found == timedelta(microseconds=total // 1000)


# --- sizes ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512B", 512),
        ("64Ki", 65536),
        ("64KiB", 65536),
        ("64k", 64_000),
        ("64K", 64_000),
        ("64kB", 64_000),
        ("1.5Gi", 1_610_612_736),
        ("10M", 10_000_000),
        ("0.5Ki", 512),
        ("0B", 0),
        ("4096Pi", MAX_SIZE),
    ],
)
def test_sizes_that_are_taken_are_exact(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "512",
        "-1B",
        "+1B",
        "1 Ki",
        "1b",
        "1kib",
        "1BB",
        "1Bi",
        "1KB1",
        "1Ei",
        "1Zi",
        "0.5B",
        "0.3Ki",
        "1.0000000000000000000000000000001Ki",
        "1e3B",
        "0x10B",
        "１Ki",
        "Ki",
        "4097Pi",
        "9" * 5000 + "B",
        "1_0B",
        "inf",
        "nanB",
        "1KiKi",
        "1s",
    ],
)
def test_sizes_that_are_refused_have_one_short_sentence(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_size(text)
    assert 5 < len(str(caught.value)) < 300
    with pytest.raises(ValidationError):
        Quantities.model_validate({"s": text})


@given(st.integers(0, MAX_SIZE))
def test_a_size_reads_back_as_itself(value: int) -> None:
    assert parse_size(format_size(value)) == value
    assert Quantities.model_validate_json(Quantities(s=f"{value}B").model_dump_json()).s == value  # type: ignore[arg-type]


# --- percentages --------------------------------------------------------------------


@pytest.mark.parametrize("text", ["0%", "100%", "2.5%", "0.001%", "00.50%"])
def test_percentages_that_are_taken(text: str) -> None:
    assert parse_percent(text) == Decimal(text[:-1])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "50",
        "0.5",
        "101%",
        "100.1%",
        "-1%",
        "+1%",
        "1e1%",
        "5 %",
        "%",
        "50%%",
        "５0%",
        "nan%",
        "inf%",
        "9" * 5000 + "%",
        "0." + "0" * 5000 + "1%",
        "1,5%",
        ".5%",
        "5.%",
    ],
)
def test_percentages_that_are_refused_have_one_short_sentence(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_percent(text)
    assert 5 < len(str(caught.value)) < 300


@pytest.mark.parametrize("value", ["NaN", "sNaN", "Infinity", "-Infinity", "-0.1", "100.1"])
def test_decimals_that_are_no_percentage_are_refused(value: str) -> None:
    with pytest.raises(ValueError):
        parse_percent(Decimal(value))


@given(st.decimals(0, 100, allow_nan=False, places=6))
def test_a_percentage_reads_back_as_itself(value: Decimal) -> None:
    assert parse_percent(format_percent(value)) == value
    assert Quantities.model_validate_json(Quantities(p=value).model_dump_json()).p == value


# --- clocks -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"), [("+30d", 2_592_000), ("-1h30m", -5400), ("250ms", 0.25), ("+0s", 0)]
)
def test_shifts_have_a_sign(text: str, seconds: float) -> None:
    assert parse_shift(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "+", "-", "--1s", "+-1s", "- 1s", "30", "-30", "366d", "-1y"])
def test_shifts_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_shift(text)


@given(st.timedeltas(-timedelta(days=365), timedelta(days=365)))
def test_a_shift_reads_back_as_itself(value: timedelta) -> None:
    assert parse_shift(format_shift(value)) == value == parse_shift(value)


@pytest.mark.parametrize(
    ("text", "ppb"),
    [("+100ppm", 100_000), ("-2%", -20_000_000), ("0.001ppm", 1), ("10%", 100_000_000)],
)
def test_drifts_that_are_taken_are_exact(text: str, ppb: int) -> None:
    assert parse_drift(text) == ppb


@pytest.mark.parametrize(
    "value", ["", "100", 100, "10.1%", "-100001ppm", "0.0001ppm", "1 %", "ppm"]
)
def test_drifts_that_are_refused_have_one_short_sentence(value: object) -> None:
    with pytest.raises(ValueError) as caught:
        parse_drift(value)
    assert 5 < len(str(caught.value)) < 300


@given(st.integers(-100_000_000, 100_000_000))
def test_a_drift_reads_back_as_itself(ppb: int) -> None:
    assert parse_drift(format_drift(ppb)) == ppb
