"""The JSON schema of experiment files, for editors."""

from __future__ import annotations

import json
from typing import Any

from controller.experiment import Experiment
from controller.kube.kinds import cluster_kinds
from controller.options import schema_of
from nodeagent.faults import kinds

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def experiment_schema(*, with_kinds: bool = False) -> dict[str, Any]:
    """The schema; `with_kinds` adds the spec of every kind that is installed, so that an editor
    completes `spec:` by `kind:`. The published file has none, since kinds come and go."""
    schema = schema_of(Experiment)
    schema = {
        "$schema": DIALECT,
        **schema,
        "title": "faultctl experiment",
        "description": "What to break, where, when, and what must hold meanwhile.",
    }
    if with_kinds:
        fault = schema["$defs"]["FaultEntry"]
        fault["properties"]["kind"] = {"enum": [*kinds(), *cluster_kinds()]}
        fault["allOf"] = [_by_kind(schema, name) for name in (*kinds(), *cluster_kinds())]
    return schema


def _by_kind(schema: dict[str, Any], name: str) -> dict[str, Any]:
    own = cluster_kinds().get(name)
    spec = schema_of(own.spec if own else kinds()[name].spec, name + "-")
    for inner, data in spec.pop("$defs", {}).items():
        schema["$defs"][f"{name}-{inner}"] = data
    return {
        "if": {"properties": {"kind": {"const": name}}, "required": ["kind"]},
        "then": {"properties": {"spec": spec}},
    }


def schema_text() -> str:
    """The published file: schemas/experiment.schema.json."""
    return json.dumps(experiment_schema(), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
