"""Fault kinds, found by walking this package: a module has a KIND, or a table of KINDS."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from nodeagent.model.errors import InvalidSpec
from nodeagent.model.kind import FaultKind


@cache
def kinds() -> dict[str, FaultKind]:
    """All fault kinds by name, in alphabetical order."""
    found: dict[str, FaultKind] = {}
    for info in pkgutil.iter_modules(__path__):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{__name__}.{info.name}")
        offered: tuple[FaultKind, ...] = getattr(module, "KINDS", ()) or (module.KIND,)
        found.update((kind.name, kind) for kind in offered)
    return dict(sorted(found.items()))


def kind_named(name: str) -> FaultKind:
    """The kind of this name. Raises InvalidSpec that lists the known ones."""
    try:
        return kinds()[name]
    except KeyError:
        check_preset(name)
        raise InvalidSpec(
            f"there is no fault kind {name!r}",
            f"known kinds: {', '.join(kinds())}",
            "see: faultctl faults",
        ) from None


def check_preset(name: str) -> None:
    """Raises InvalidSpec for a name of khaos that has no preset, with what comes closest."""
    from nodeagent.faults._khaos_table import INSTEAD

    instead = INSTEAD.get(name.removeprefix("khaos:")) if name.startswith("khaos:") else None
    if instead is not None:
        raise InvalidSpec(
            f"{name} has no preset",
            "it is experimental in khaos, and what it does is written nowhere",
            f"what comes closest: faultctl inject {instead}",
        )


def about_calls(names: tuple[str, ...]) -> tuple[str, ...]:
    """What is known of system calls or families, a line each. Raises InvalidSpec."""
    from nodeagent.faults._syscall_evidence import about

    try:
        return about(names)
    except ValueError as exc:
        raise InvalidSpec("--call is not valid", str(exc)) from exc
