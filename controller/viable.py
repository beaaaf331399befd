"""Viable targets: which kinds could be injected into which targets now, asked of the nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from controller.experiment import Experiment
from controller.experiment_targets import TargetEntry
from controller.run_ports import NodePort
from controller.schedule import profile_named
from controller.schedule_core import Place
from nodeagent.faults import kinds
from nodeagent.model.errors import FaultError
from nodeagent.model.plan import FaultRequest

MAX_THREADS = 32
_ID = "viable"


@dataclass(frozen=True)
class Pair:
    """One kind on one target."""

    target: str
    service: str
    node: str
    kind: str
    viable: bool
    mechanism: str = ""
    why: str = ""


@dataclass(frozen=True)
class Viable:
    """All pairs."""

    pairs: tuple[Pair, ...]

    def rows(self) -> list[Pair]:
        """Viable ones first, by target and kind."""
        return sorted(self.pairs, key=lambda p: (not p.viable, p.target, p.kind))

    def places(self, places: Iterable[Place]) -> tuple[Place, ...]:
        """Places with only the kinds that are viable; those without any are left out."""
        takes: dict[str, set[str]] = {}
        for pair in self.pairs:
            if pair.viable:
                takes.setdefault(pair.service, set()).add(pair.kind)
        return tuple(
            replace(place, kinds=frozenset(takes[place.service]))
            for place in places
            if place.service in takes
        )


def viable_targets(experiment: Experiment, ports: Mapping[str, NodePort]) -> Viable:
    """Every kind on every target. The node plans it and touches nothing; what it answers to a
    plan is what it would answer to an injection now."""
    specs = {name: example_spec(name) for name in kinds()}

    def one(pair: tuple[str, TargetEntry, str]) -> Pair:
        name, entry, kind = pair
        return _ask(name, entry, kind, specs[kind], ports[entry.node])

    asked = [
        (name, entry, kind)
        for name, entry in sorted(experiment.targets.items())
        for kind in kinds()
        if entry.node in ports
    ]
    with ThreadPoolExecutor(MAX_THREADS) as pool:
        return Viable(tuple(pool.map(one, asked)))


def example_spec(kind: str) -> dict[str, Any]:
    """The mildest spec that the default profile has for a kind; else its defaults."""
    share = profile_named("default").mix.get(kind)
    if share is None or not share.severities:
        return {}
    mildest = max(sorted(share.severities.items()), key=lambda pair: pair[1].weight)[1]
    return {key: 0 if value == "$seed" else value for key, value in mildest.spec.items()}


def _ask(name: str, entry: TargetEntry, kind: str, spec: dict[str, Any], port: NodePort) -> Pair:
    no = Pair(name, entry.service, entry.node, kind, False)
    type_name = str(entry.target.get("type", ""))
    if entry.kinds is not None and kind not in entry.kinds:
        return replace(no, why="the experiment does not allow it on this target")
    if type_name not in kinds()[kind].targets:
        takes = ", ".join(kinds()[kind].targets)
        return replace(no, why=f"it does not take a {type_name}; it takes {takes}")
    request = FaultRequest(id=_ID, kind=kind, target=entry.target, spec=spec)
    try:
        plan, _ = port.plan(request)
    except FaultError as exc:
        return replace(no, why=" ".join(str(exc).split()))
    return replace(no, viable=True, mechanism=plan.mechanism)
