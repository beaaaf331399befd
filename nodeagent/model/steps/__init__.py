"""Steps: reversible changes of kernel state, as data.

A step says what to change and names the kernel object that it changes (`key`). The
prior state is captured by its backend when it is applied and kept beside it in the
journal; step plus prior is all that a revert needs, whoever does it. A step's data is
versioned by its `v`: a journal written by an older agent stays readable.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from functools import cache
from typing import Any

from nodeagent.model.steps.base import Status, StepBase

__all__ = ["Status", "StepBase", "step_from_data", "step_from_json", "step_types"]


@cache
def step_types() -> dict[str, type[StepBase]]:
    """Every step class by its `op`, found by walking this package."""
    found: dict[str, type[StepBase]] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, StepBase):
                op = value.model_fields.get("op")
                if op is not None and not op.is_required():  # else it is a base of others
                    found[str(op.default)] = value
    return found


def step_from_data(data: Any) -> StepBase:
    """A step from decoded JSON. Raises ValueError for an unknown op or bad data."""
    op = data.get("op") if isinstance(data, dict) else None
    cls = step_types().get(str(op))
    if cls is None:
        raise ValueError(f"step op {op!r} is not known to this agent")
    return cls.model_validate(data)


def step_from_json(text: str | bytes) -> StepBase:
    """A step from the journal or the wire. Raises ValueError."""
    return step_from_data(json.loads(text))
