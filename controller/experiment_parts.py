"""Parts of an experiment that other rooms read: which function knows each of them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from nodeagent.model.errors import InvalidSpec

PARTS: dict[str, str] = {
    "probes": "controller.probes.spec:parse_probe",
    "load": "controller.load.spec:parse_load",
    "oracles": "controller.oracle_spec:parse_oracle",
}
"""Key of the experiment -> parser of one of its entries: decoded data to a model; raises
ValidationError or InvalidSpec."""


def parse_part(room: str, data: dict[str, Any]) -> Any:
    """The model of one entry. Raises ValidationError or InvalidSpec."""
    module, _, name = PARTS[room].partition(":")
    return getattr(importlib.import_module(module), name)(data)


def parse_parts(room: str, entries: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The models of all entries by name. Raises ValidationError or InvalidSpec."""
    return {name: parse_part(room, data) for name, data in entries.items()}


def part_problems(room: str, data: dict[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    """What is wrong with one entry: (where inside it, what)."""
    try:
        parse_part(room, data)
    except ValidationError as exc:
        found = []
        for error in exc.errors(include_url=False, include_input=False):
            # The first part of a tagged union's location names the branch, not a key.
            loc = tuple(part for part in error["loc"] if part in data or part == error["loc"][-1])
            found.append((loc, error["msg"].removeprefix("Value error, ")))
        return found
    except InvalidSpec as exc:
        return [((), str(exc))]
    return []
