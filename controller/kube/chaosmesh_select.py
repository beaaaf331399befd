"""Chaos Mesh's selectors and words in ours; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from controller.kube.choose import ALL, HowMany, parse_how_many
from controller.kube.discover import Query
from controller.kube.labels import parse_selector, selector_text
from controller.kube.select import Ask

_GO = re.compile(r"(\d+(?:\.\d*)?)(ns|us|µs|ms|s|m|h)", re.ASCII)
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class Unmappable(Exception):
    """A field that has no equal here: `field: why`."""


def only(body: Mapping[str, Any], *known: str) -> None:
    """Raises Unmappable for a field beside these: it would change what the fault does."""
    for name, value in body.items():
        if name not in known and value not in (None, "", [], {}):
            raise Unmappable(f"{name}: has no equal here")


def go_duration(text: str) -> timedelta:
    """`300ms`, `1m30s`, `1.5h`, as Go's time.ParseDuration. Raises Unmappable."""
    parts = _GO.findall(text)
    if not parts or "".join(a + b for a, b in parts) != text:
        raise Unmappable(f"{text!r}: not a duration")
    return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in parts))


def selected(body: Mapping[str, Any], namespace: str) -> tuple[Query, Ask]:
    """The selector, mode and value of an object. Raises Unmappable."""
    selector = body.get("selector") or {}
    only(selector, "namespaces", "labelSelectors", "expressionSelectors", "fieldSelectors", "nodes",
         "nodeSelectors", "podPhaseSelectors", "pods")  # fmt: skip
    phases = [one for one in selector.get("podPhaseSelectors") or () if one != "Running"]
    if phases:
        raise Unmappable(f"selector.podPhaseSelectors: {phases[0]} pods have nothing to hit")
    space, names = _named(selector, namespace)
    labels = selector_text(selector.get("labelSelectors") or {},
                           selector.get("expressionSelectors") or ())  # fmt: skip
    fields = [f"{k}={v}" for k, v in (selector.get("fieldSelectors") or {}).items()]
    node_labels = ",".join(f"{k}={v}" for k, v in (selector.get("nodeSelectors") or {}).items())
    parse_selector(labels)
    parse_selector(node_labels)
    query = Query(space, names, labels if not names else "",
                  ",".join(fields) if not names else "", "", node_labels)  # fmt: skip
    how_many = None if names and body.get("mode") == "all" else _mode(body)
    if names and how_many is not None:
        raise Unmappable("selector.pods: only with mode all")
    if names and (labels or fields):
        raise Unmappable("selector.pods: not together with other selectors")
    ask = Ask(space, names, True, tuple(selector.get("nodes") or ()), (), bool(node_labels),
              how_many)  # fmt: skip
    return query, ask


def _named(selector: Mapping[str, Any], namespace: str) -> tuple[str, tuple[str, ...]]:
    pods = selector.get("pods") or {}
    spaces = list(pods) or list(selector.get("namespaces") or ()) or [namespace]
    if len(spaces) != 1:
        raise Unmappable(f"selector.namespaces: {len(spaces)} of them, only one at a time")
    return str(spaces[0]), tuple(pods.get(spaces[0], ()))


def _mode(body: Mapping[str, Any]) -> HowMany:
    mode, value = body.get("mode"), str(body.get("value", ""))
    if mode == "one":
        return HowMany(number=1)
    if mode == "all":
        return ALL
    if mode == "fixed":
        return parse_how_many(value)
    if mode == "fixed-percent":
        return parse_how_many(f"{value}%")
    raise Unmappable(f"mode {mode}: how many would change from run to run")
