"""From specs and targets to click options, and back to JSON data; nothing is typed twice."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin

import click
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from nodeagent.model.errors import InvalidSpec
from nodeagent.model.kind import FaultKind
from nodeagent.model.target import TARGET_TYPES, TargetBase


def option_name(field: str) -> str:
    """`retry_delay` as `--retry-delay`."""
    return "--" + field.replace("_", "-")


def _bare(annotation: Any) -> Any:
    """The type without Optional."""
    if get_origin(annotation) in (Union, types.UnionType):
        kept = [arg for arg in get_args(annotation) if arg is not type(None)]
        return kept[0] if len(kept) == 1 else annotation
    return annotation


def _own_metavar(info: FieldInfo, bare: Any) -> str | None:
    extra = info.json_schema_extra
    found: Any = extra.get("metavar") if isinstance(extra, dict) else None
    for item in (*info.metadata, *get_args(bare)):
        nested = getattr(item, "json_schema_extra", None)
        if found is None and isinstance(nested, dict):
            found = nested.get("metavar")
    return None if found is None else str(found)


def _is_flag(info: FieldInfo) -> bool:
    """Whether an option is only there or not, without a --no form."""
    extra = info.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("flag"))


def _metavar(info: FieldInfo, bare: Any) -> str:
    inner = get_args(bare)[0] if get_origin(bare) is tuple else bare
    names = {int: "N", float: "X", str: "TEXT"}
    return _own_metavar(info, bare) or names.get(inner, "VALUE")


def schema_of(model: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    """A model's JSON schema, its defaults written with their units as they are read.

    prefix: stands before the names of inner models in references to them.
    """
    return model.model_json_schema(
        mode="serialization", ref_template="#/$defs/" + prefix + "{model}"
    )


def _default_text(model: type[BaseModel], name: str, info: FieldInfo) -> str:
    if info.is_required() or info.default is None or info.default == ():
        return ""
    shown = model.model_construct(**{name: info.default}).model_dump(mode="json", include={name})
    return f" [default: {shown[name]}]"


def field_option(model: type[BaseModel], name: str, info: FieldInfo) -> click.Option:
    """One click option for one field of a spec or target."""
    bare = _bare(info.annotation)
    text = (info.description or "") + _default_text(model, name, info)
    flag = option_name(name)
    if bare is bool and _is_flag(info):
        return click.Option([flag, name], is_flag=True, default=None, help=info.description)
    if bare is bool:
        return click.Option(
            [f"{flag}/--no-{flag[2:]}", name], default=None, help=text, show_default=False
        )
    if get_origin(bare) is Literal:
        choice = click.Choice([str(arg) for arg in get_args(bare)])
        return click.Option([flag, name], type=choice, default=None, help=text)
    multiple = get_origin(bare) is tuple and _own_metavar(info, bare) is None
    return click.Option(
        [flag, name],
        type=click.STRING,
        default=None,
        multiple=multiple,
        metavar=_metavar(info, bare),
        help=text,
    )


def model_options(model: type[BaseModel], skip: Iterable[str] = ()) -> list[click.Parameter]:
    """All options of a model, in the order of its fields."""
    left_out = set(skip)
    return [
        field_option(model, name, info)
        for name, info in model.model_fields.items()
        if name not in left_out
    ]


def target_options(kind: FaultKind) -> list[click.Parameter]:
    """Options for all the target types that a kind accepts."""
    options: dict[str, click.Parameter] = {}
    for type_name in kind.targets:
        for option in model_options(TARGET_TYPES[type_name], skip=("type",)):
            options.setdefault(str(option.name), option)
    return list(options.values())


def target_from(kind: FaultKind, values: Mapping[str, Any]) -> dict[str, Any]:
    """The target that the options name, as JSON data. Raises InvalidSpec."""
    named = [name for name in kind.targets if values.get(name) is not None]
    if not named and kind.targets[0] == "node":
        named = ["node"]  # what a kind names first is what it is for
    if len(named) != 1:
        flags = [option_name(name) for name in kind.targets]
        raise InvalidSpec(
            "which target?" if not named else "more than one target is named",
            f"{kind.name} takes exactly one of {', '.join(flags)}",
        )
    cls: type[TargetBase] = TARGET_TYPES[named[0]]
    fields = {name for name in cls.model_fields if name != "type"}
    others = {
        field
        for type_name in kind.targets
        for field in TARGET_TYPES[type_name].model_fields
        if field not in fields and field != "type"
    }
    stray = [option_name(f) for f in sorted(others) if values.get(f) is not None]
    if stray:
        raise InvalidSpec(f"{', '.join(stray)} cannot go with {option_name(named[0])}")
    data = {f: values[f] for f in fields if values.get(f) is not None}
    return checked(cls, {"type": named[0], **data})


def spec_from(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """A spec's given options as JSON data, validated here already. Raises InvalidSpec."""
    data = {
        name: values[name]
        for name in model.model_fields
        if values.get(name) is not None and values.get(name) != ()
    }
    return checked(model, data)


def checked(model: type[BaseModel], data: dict[str, Any]) -> dict[str, Any]:
    """The data if the model takes it, in its JSON form. Raises InvalidSpec naming the option."""
    try:
        valid = model.model_validate(data)
    except ValidationError as exc:
        raise InvalidSpec("an option is not valid", options_error(exc)) from exc
    return valid.model_dump(mode="json", exclude_unset=True)


def options_error(exc: ValidationError) -> str:
    """A pydantic error in terms of options, one line."""
    parts = []
    for error in exc.errors(include_url=False, include_input=False):
        text = error["msg"].removeprefix("Value error, ")
        where = option_name(str(error["loc"][0])) if error["loc"] else ""
        parts.append(f"{where}: {text}" if where else text)
    return "; ".join(parts)
