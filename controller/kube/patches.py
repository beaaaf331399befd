"""Changes of an object's fields that know their way back; pure.

A change is one place and its prior value, not a copy of the object: what others change beside
it, or over it, stays theirs.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from controller.kube.lists import Part, item_part, located, merge_key, position
from nodeagent.model.errors import InvalidSpec

MAX_CHANGES = 200
FORBIDDEN = ("metadata", "status", "kind", "apiVersion")
PUT_BACK = ("labels", "annotations")
"""Of metadata only these can be put back as they were."""


class Change(BaseModel):
    """One field. Without `has` (`had`) it is absent afterwards (was absent before)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: tuple[str | int, ...] = Field(min_length=1)
    had: bool
    prior: Any = None
    has: bool = True
    value: Any = None

    @property
    def pointer(self) -> str:
        """As JSON patch names it (RFC 6901); items of lists by their keys."""
        return pointer_of(self.path)

    def pointer_in(self, current: Mapping[str, Any]) -> str:
        """As JSON patch names it in an object of this moment."""
        return pointer_of(located(current, self.path))


Where = Literal["prior", "ours", "foreign"]


def pointer_of(path: Sequence[Part]) -> str:
    """A path as a JSON pointer (RFC 6901)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def changes_of(
    current: Mapping[str, Any], patch: Mapping[str, Any], *, strategic: bool = False
) -> tuple[Change, ...]:
    """A JSON merge patch (RFC 7396) as changes of this object; what is so already is none.

    strategic: items of lists that have a merge key are merged, others are as they were.
    Raises InvalidSpec for what cannot be put back.
    """
    found = tuple(_walk(current, patch, (), strategic))
    if not found:
        raise InvalidSpec("the patch changes nothing", "the object is as it says already")
    if len(found) > MAX_CHANGES:
        raise InvalidSpec(f"the patch changes {len(found)} fields", f"at most {MAX_CHANGES}")
    check_patch(patch)
    return found


def check_patch(patch: Mapping[str, Any]) -> None:
    """Raises InvalidSpec for what could not be put back."""
    for key, value in patch.items():
        inner = value if key == "metadata" and isinstance(value, Mapping) else {}
        stray = [name for name in inner if name not in PUT_BACK]
        if stray or (key in FORBIDDEN and not inner):
            where = "/".join(("", key, *stray[:1]))
            raise InvalidSpec(f"{where} cannot be patched", "it could not be put back as it was")


def _walk(
    current: Any, patch: Mapping[str, Any], path: tuple[Part, ...], strategic: bool
) -> list[Change]:
    found: list[Change] = []
    for key, value in patch.items():
        at = (*path, key)
        had = isinstance(current, Mapping) and key in current
        prior = current[key] if had else None
        merged = merge_key(str(key), value, prior) if strategic else ""
        if strategic and key.startswith("$"):
            raise InvalidSpec(f"{key} is no field", "directives of a patch are not taken")
        if isinstance(value, Mapping) and isinstance(prior, Mapping):
            found += _walk(prior, value, at, strategic)
        elif merged and isinstance(prior, list):
            found += _items(prior, value, at, merged)
        elif value is None:
            if had:
                found.append(Change(path=at, had=True, prior=prior, has=False))
        else:
            whole = _without_nulls(value)
            if not had or prior != whole:
                found.append(Change(path=at, had=had, prior=prior, value=whole))
    return found


def _items(prior: list[Any], items: list[Any], path: tuple[Part, ...], key: str) -> list[Change]:
    """Changes of the items that are there; others are added at the end."""
    found: list[Change] = []
    for item in items:
        part = item_part(key, item[key])
        index = position(prior, part)
        if index is None:
            found.append(Change(path=(*path, part), had=False, value=_without_nulls(item)))
        else:
            found += _walk(prior[index], item, (*path, part), strategic=True)
    return found


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return value


def read(current: Any, path: Sequence[str | int]) -> tuple[bool, Any]:
    """(whether the field is there, its value)."""
    for part in path:
        at: Any = position(current, part) if isinstance(current, list) else part
        keyed = isinstance(current, Mapping) and at in current
        listed = isinstance(current, list) and at is not None and at < len(current)
        if not keyed and not listed:
            return False, None
        current = current[at]
    return True, current


def where(current: Mapping[str, Any], change: Change) -> Where:
    """Whether a field is as we left it, as it was before, or neither: then it is somebody else's.

    A value that the API server has completed with defaults is still ours.
    """
    there, value = read(current, change.path)
    if there == change.has and (not there or _holds(value, change.value)):
        return "ours"
    if there == change.had and (not there or value == change.prior):
        return "prior"
    return "foreign"


def _holds(value: Any, ours: Any) -> bool:
    """Equal, or with more keys in objects: what the API server fills in."""
    if isinstance(value, Mapping) and isinstance(ours, Mapping):
        return all(key in value and _holds(value[key], ours[key]) for key in ours)
    if isinstance(value, list) and isinstance(ours, list):
        return len(value) == len(ours) and all(
            _holds(a, b) for a, b in zip(value, ours, strict=True)
        )
    return bool(value == ours)


def forward(current: Mapping[str, Any], changes: Sequence[Change]) -> list[dict[str, Any]]:
    """JSON patch (RFC 6902) that makes the changes, and fails if a field is not as captured."""
    steps: list[dict[str, Any]] = [_version(current)]
    for change in changes:
        pointer = change.pointer_in(current)
        if change.had:
            steps.append({"op": "test", "path": pointer, "value": change.prior})
        steps.append(_step(pointer, change.had, change.has, change.value))
    return steps


def backward(
    current: Mapping[str, Any], changes: Sequence[Change]
) -> tuple[list[dict[str, Any]], list[Change]]:
    """(JSON patch that puts back what is still ours, fields that are somebody else's now)."""
    steps: list[dict[str, Any]] = []
    foreign: list[Change] = []
    left = copy.deepcopy(dict(current))
    for change in reversed(changes):
        state = where(left, change)
        if state == "foreign":
            foreign.append(change)
        elif state == "ours":
            pointer = change.pointer_in(left)
            steps.append(_step(pointer, change.has, change.had, change.prior))
            if not change.had:
                _take_out(left, change)  # what comes after it in a list moves up
    if steps:
        steps.insert(0, _version(current))
    return steps, foreign


def _take_out(current: dict[str, Any], change: Change) -> None:
    """An item of a list, in a copy of the object."""
    *parents, last = change.path
    _, home = read(current, parents)
    index = position(home, last) if isinstance(home, list) else None
    if index is not None:
        del home[index]


def _version(current: Mapping[str, Any]) -> dict[str, Any]:
    """Nobody may have changed the object since it was read."""
    value = current["metadata"]["resourceVersion"]
    return {"op": "test", "path": "/metadata/resourceVersion", "value": value}


def _step(pointer: str, there: bool, wanted: bool, value: Any) -> dict[str, Any]:
    if not wanted:
        return {"op": "remove", "path": pointer}
    return {"op": "replace" if there else "add", "path": pointer, "value": value}


def shown(change: Change) -> str:
    """`/spec/replicas: 3 -> 0`."""

    def text(there: bool, value: Any) -> str:
        raw = json.dumps(value, sort_keys=True) if there else "(absent)"
        return raw if len(raw) <= 60 else raw[:57] + "..."

    return f"{change.pointer}: {text(change.had, change.prior)} -> {text(change.has, change.value)}"
