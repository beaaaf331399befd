"""Options, help and schema of every kind come from its spec, and go back to it."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from typing import Annotated, Any, Literal

import click
import kind_kit
import pytest
from pydantic import Field, TypeAdapter

from controller.cli.inject import common_options
from controller.options import (
    field_option,
    model_options,
    option_name,
    schema_of,
    spec_from,
    target_from,
)
from nodeagent.faults import kind_named, kinds
from nodeagent.model.errors import InvalidSpec
from nodeagent.model.kind import FaultKind, FaultSpec
from nodeagent.model.target import TARGET_TYPES
from nodeagent.model.units import Duration, Percent, Size

KINDS = list(kinds().values())


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_no_option_of_a_kind_is_there_twice(kind: FaultKind) -> None:
    params = kind_kit.options_of(kind)
    flags = Counter(flag for p in params for flag in (*p.opts, *p.secondary_opts))
    assert [flag for flag, count in flags.items() if count > 1] == []
    fields = Counter(p.name for p in params)
    assert [name for name, count in fields.items() if count > 1] == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_every_field_has_one_option_with_help(kind: FaultKind) -> None:
    options = {p.name: p for p in kind_kit.options_of(kind) if isinstance(p, click.Option)}
    for name, info in kind.spec.model_fields.items():
        assert info.description, name
        assert option_name(name) in options[name].opts
        assert info.description in (options[name].help or "")
    for type_name in kind.targets:
        for name in TARGET_TYPES[type_name].model_fields:
            assert name == "type" or name in options


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_the_help_page_of_a_kind_renders(kind: FaultKind) -> None:
    text = kind_kit.inject_module.inject_command(kind).get_help(click.Context(click.Command("x")))
    assert kind.summary.split()[0].lower() in text.lower()


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_a_kind_says_all_that_it_must(kind: FaultKind) -> None:
    assert kind_named(kind.name) is kind
    assert kind.summary and kind.doc and kind.remedies and kind.ladder and kind.targets
    assert not kind.summary.endswith(".")
    assert set(kind.targets) <= set(TARGET_TYPES)
    assert len({rung.name for rung in kind.ladder}) == len(kind.ladder)
    default = kind.spec.model_construct()
    assert all(isinstance(line, str) and line for line in kind.collateral(default))
    for rung in kind.ladder:
        assert rung.needs(default), f"{rung.name} needs nothing: not even root?"


KEYWORDS = {
    "type",
    "format",
    "examples",
    "default",
    "description",
    "title",
    "enum",
    "const",
    "anyOf",
    "oneOf",
    "items",
    "properties",
    "required",
    "additionalProperties",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "pattern",
    "$ref",
    "$defs",
    "metavar",
    "prefixItems",
    "discriminator",
    "ge",  # of pydantic, on a field whose type has a text form: an annotation to others
    "le",
    "gt",
    "lt",
}
TYPES = {"string", "integer", "number", "boolean", "array", "object", "null"}


def check_schema(schema: Any) -> None:
    assert isinstance(schema, dict)
    assert set(schema) <= KEYWORDS, set(schema) - KEYWORDS
    assert schema.get("type", "string") in TYPES
    for key in ("properties", "$defs"):
        for inner in schema.get(key, {}).values():
            check_schema(inner)
    for key in ("anyOf", "oneOf", "prefixItems"):
        for inner in schema.get(key, []):
            check_schema(inner)
    if isinstance(schema.get("items"), dict):
        check_schema(schema["items"])


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_the_json_schema_of_a_kind_is_one_and_closed(kind: FaultKind) -> None:
    schema = schema_of(kind.spec)
    assert json.loads(json.dumps(schema)) == schema
    check_schema(schema)
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(kind.spec.model_fields)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_the_default_of_a_field_is_written_as_it_is_read(kind: FaultKind) -> None:
    """Shown in help and schema with its unit, and read back to the same value."""
    for name, inner in schema_of(kind.spec)["properties"].items():
        if inner.get("default") is None:
            continue
        info = kind.spec.model_fields[name]
        adapter: TypeAdapter[Any] = TypeAdapter(Annotated[info.annotation, info])
        assert adapter.validate_python(inner["default"]) == info.default


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
@pytest.mark.parametrize("bad", [{"no_such_field": 1}, {"": 1}, {"__class__": 1}])
def test_an_unknown_field_is_an_error(kind: FaultKind, bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Extra inputs|required"):
        kind.spec.model_validate(bad)


# --- derivation -------------------------------------------------------------------


class Everything(FaultSpec):
    """One field of each sort."""

    text: str = Field(default="x", description="a text")
    number: int = Field(default=3, ge=1, description="a number")
    delay: Duration = Field(default=timedelta(milliseconds=5), description="a delay")
    size: Size | None = Field(default=None, description="a size")
    rate: Percent | None = Field(default=None, description="a rate")
    on_write: Literal["heal", "keep"] = Field(default="heal", description="a choice")
    evict: bool = Field(default=True, description="a flag")
    words: tuple[str, ...] = Field(default=(), description="some words")


def run(*args: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    command = click.Command(
        "x", params=model_options(Everything), callback=lambda **v: found.update(v)
    )
    command.main(list(args), standalone_mode=False)
    return spec_from(Everything, found)


def test_nothing_given_is_nothing_said() -> None:
    assert run() == {}


def test_given_options_become_json_data() -> None:
    found = run(
        *("--text", "y", "--number", "7", "--delay", "1m30s", "--size", "64Ki", "--rate", "2.5%"),
        *("--on-write", "keep", "--no-evict", "--words", "a", "--words", "b c"),
    )
    assert found == {
        "text": "y",
        "number": 7,
        "delay": "1m30s",
        "size": "64Ki",
        "rate": "2.5%",
        "on_write": "keep",
        "evict": False,
        "words": ["a", "b c"],
    }
    assert Everything.model_validate(json.loads(json.dumps(found))).delay == timedelta(seconds=90)


def test_help_shows_units_choices_and_defaults() -> None:
    options = {o.name: o for o in model_options(Everything) if isinstance(o, click.Option)}
    assert options["delay"].metavar == "DURATION"
    assert options["size"].metavar == "SIZE"
    assert options["rate"].metavar == "PERCENT"
    assert "[default: 5ms]" in (options["delay"].help or "")
    assert "[default: True]" in (options["evict"].help or "")
    assert "default" not in (options["size"].help or "")
    assert isinstance(options["on_write"].type, click.Choice)
    assert options["evict"].opts == ["--evict"]
    assert options["evict"].secondary_opts == ["--no-evict"]


@pytest.mark.parametrize(
    ("args", "flag"),
    [
        (["--delay", "5"], "--delay"),
        (["--size", "64"], "--size"),
        (["--rate", "2"], "--rate"),
        (["--number", "0"], "--number"),
        (["--number", "x"], "--number"),
        (["--delay", "-5s"], "--delay"),
    ],
)
def test_a_bad_value_names_its_option(args: list[str], flag: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        run(*args)
    assert caught.value.why.startswith(f"{flag}: ")


def test_field_option_of_a_plain_field() -> None:
    option = field_option(Everything, "number", Everything.model_fields["number"])
    assert (option.opts, option.metavar) == (["--number"], "N")


# --- targets ----------------------------------------------------------------------

LATENT = kind_named("latent-sector")


def test_exactly_one_target_is_named() -> None:
    with pytest.raises(InvalidSpec, match="which target"):
        target_from(LATENT, {})
    with pytest.raises(InvalidSpec, match="more than one"):
        target_from(LATENT, {"file": "/x", "device": "/dev/x"})
    assert target_from(LATENT, {"file": "/x", "device": None}) == {"type": "file", "file": "/x"}


def test_options_of_another_target_are_refused_by_name() -> None:
    with pytest.raises(InvalidSpec, match="--offset cannot go with --device"):
        target_from(LATENT, {"device": "/dev/x", "offset": "1Ki"})


@pytest.mark.parametrize("path", ["", "relative", "./x", "/" + "x" * 5000, "/a\0b"])
def test_a_bad_path_names_its_option(path: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        target_from(LATENT, {"file": path})
    assert "--file" in caught.value.why


@pytest.mark.parametrize("path", ["/a b", "/a\nb", "/é", "/'\"$`;", "/-x", "/..//x"])
def test_odd_names_are_kept_as_they_are(path: str) -> None:
    assert target_from(LATENT, {"file": path})["file"] == path


def test_common_options_are_the_same_for_all_kinds() -> None:
    common = [p.name for p in common_options()]
    for kind in KINDS:
        assert [p.name for p in kind_kit.options_of(kind)][-len(common) :] == common
