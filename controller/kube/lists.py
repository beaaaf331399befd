"""Items of an object's lists by what tells them apart, as a strategic merge patch has them; pure.

A position would be another item's after somebody else has put one before it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

MERGE_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "imagePullSecrets": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "port"),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey",),
}
"""Field to its patchMergeKey (k8s.io/api core/v1; `ports` of a container, or of a Service)."""
_ITEM = re.compile(r"\[(\w+)=(.*)\]", re.ASCII | re.DOTALL)

Part = str | int


def merge_key(field: str, *lists: Any) -> str:
    """What tells the items of some lists of a field apart; empty where nothing does."""
    for key in MERGE_KEYS.get(field, ()):
        if all(isinstance(one, list) for one in lists) and all(
            isinstance(item, Mapping) and key in item for one in lists for item in one
        ):
            return key
    return ""


def item_part(key: str, value: Any) -> str:
    """A part of a path: the item whose key has a value."""
    return f"[{key}={value}]"


def split(part: Part) -> tuple[str, str] | None:
    """(key, value) of a part that means an item, None for another."""
    found = _ITEM.fullmatch(part) if isinstance(part, str) else None
    return (found[1], found[2]) if found else None


def position(items: Any, part: Part) -> int | None:
    """Where in a list an item is; None if it is not there."""
    wanted = split(part)
    if isinstance(part, int) or wanted is None or not isinstance(items, list):
        return part if isinstance(part, int) else None
    key, value = wanted
    for index, item in enumerate(items):
        if isinstance(item, Mapping) and str(item.get(key)) == value:
            return index
    return None


def located(current: Any, path: Sequence[Part]) -> tuple[Part, ...]:
    """The path with positions of this moment; the end of a list for an item that is not there."""
    found: list[Part] = []
    for part in path:
        if isinstance(current, list):
            index = position(current, part)
            found.append("-" if index is None else index)
            good = index is not None and index < len(current)
            current = current[index] if good and index is not None else None
        else:
            found.append(part)
            current = current.get(part) if isinstance(current, Mapping) else None
    return tuple(found)
