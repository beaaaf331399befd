"""Kubernetes probes: a CEL expression over an object that somebody else reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import celpy
from celpy.adapter import json_to_cel
from celpy.celparser import CELParseError
from celpy.evaluation import CELEvalError

from controller.probes.outcome import Outcome, failed, passed, unknown
from controller.probes.spec import K8sProbe
from nodeagent.model.errors import InvalidSpec, Unreachable


@dataclass(frozen=True)
class ObjectRef:
    """Which object of a cluster."""

    api_version: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace + '/' if self.namespace else ''}{self.name}"


ReadObject = Callable[[ObjectRef], dict[str, Any] | None]
"""Reads a live object, None if there is none. Raises Unreachable."""


@lru_cache(maxsize=256)
def program(expression: str) -> Any:
    """A compiled expression. Raises InvalidSpec."""
    environment = celpy.Environment()
    try:
        return environment.program(environment.compile(expression))
    except CELParseError as exc:
        where = f"line {exc.line}, column {exc.column}"
        raise InvalidSpec(f"{expression!r} is not CEL", where) from exc


def measure(spec: K8sProbe, read: ReadObject | None) -> Outcome:
    """Read and judge; true is healthy, whatever else comes out is not. Raises InvalidSpec."""
    compiled = program(spec.expression)
    fields = {name: program(text) for name, text in spec.fields.items()}
    if read is None:
        return unknown("no cluster is known to this run")
    ref = ObjectRef(spec.api_version, spec.kind, spec.namespace, spec.name)
    try:
        found = read(ref)
    except Unreachable as exc:
        return unknown(str(exc))
    if found is None:
        return failed(f"there is no {ref}", cause="absent")
    activation = {"object": json_to_cel(found)}
    data = {name: _plain(_value(one, activation)) for name, one in fields.items()}
    value = _value(compiled, activation)
    if isinstance(value, CELEvalError):
        return failed(f"{spec.expression}: {_words(value)}", **data, cause="cel")
    if not isinstance(value, bool | celpy.celtypes.BoolType):
        return failed(f"{spec.expression} gives no true or false but {value!r}", **data)
    return passed(**data) if value else failed(f"{spec.expression} is false", **data)


def _value(compiled: Any, activation: dict[str, Any]) -> Any:
    try:
        return compiled.evaluate(activation)
    except CELEvalError as exc:
        return exc


def _words(exc: Any) -> str:
    return str(exc.args[0] if exc.args else exc).split("\n")[0][:200]


def _plain(value: Any) -> Any:
    """A CEL value for JSON; None for what could not be computed."""
    if isinstance(value, CELEvalError):
        return None
    if isinstance(value, celpy.celtypes.BoolType):
        return bool(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return None if value is None else str(value)
