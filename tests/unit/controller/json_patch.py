"""JSON patch (RFC 6902) and managedFields, as far as faults on objects use them."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any


class Untrue(Exception):
    """A test of the patch has failed, or a path leads nowhere."""


def json_patched(old: dict[str, Any], steps: list[dict[str, Any]], manager: str) -> dict[str, Any]:
    """The object with the steps carried out, and who did it in its managedFields."""
    new = copy.deepcopy(old)
    for step in steps:
        parts = [p.replace("~1", "/").replace("~0", "~") for p in step["path"].split("/")[1:]]
        home: Any = new
        for part in parts[:-1]:
            home = _into(home, part)
        _step(home, parts[-1], step)
        if step["op"] != "test":
            _managed(new, parts, manager)
    return new


def _into(home: Any, part: str) -> Any:
    try:
        return home[int(part)] if isinstance(home, list) else home[part]
    except (KeyError, IndexError) as exc:
        raise Untrue(part) from exc


def _step(home: Any, last: str, step: dict[str, Any]) -> None:
    if step["op"] == "test":
        if _into(home, last) != step["value"]:
            raise Untrue(step["path"])
    elif step["op"] == "remove":
        _into(home, last)
        del home[int(last) if isinstance(home, list) else last]
    elif isinstance(home, list) and step["op"] == "add":
        home.insert(len(home) if last == "-" else int(last), step["value"])
    elif isinstance(home, list):
        home[int(last)] = step["value"]
    else:
        home[last] = step["value"]


def _managed(new: dict[str, Any], parts: list[str], manager: str) -> None:
    """The newest writer of a field is its manager, and nobody else."""
    fields: dict[str, Any] = {}
    for part in reversed(parts):
        fields = {f"f:{part}": fields}
    kept = [one for one in new["metadata"].get("managedFields", ()) if one["fieldsV1"] != fields]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    one = {"manager": manager, "operation": "Update", "time": now, "fieldsV1": fields}
    new["metadata"]["managedFields"] = [*kept, one]
