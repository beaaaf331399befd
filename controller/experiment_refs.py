"""Every name in an experiment that refers to another part of it."""

from __future__ import annotations

from collections.abc import Iterator

from controller.experiment import Experiment
from controller.experiment_objects import CLUSTER
from controller.experiment_yaml import Document, Path

Reference = tuple[Path, str, str, str]
"""Where it stands, the name, the key of the experiment that must have it, what to call it."""


def references(e: Experiment) -> Iterator[Reference]:
    """All references, those that hold and those that do not."""
    for name, target in e.targets.items():
        if not target.of_cluster:
            yield ("targets", name, "node"), target.node, "nodes", "node"
    for name, stage in e.stages.items():
        for other in stage.after:
            yield ("stages", name, "after"), other, "stages", "stage"
    yield from _of_faults(e)
    yield from _of_probes(e)
    for name in (e.noise.targets or ()) if e.noise else ():
        yield ("noise", "targets"), name, "targets", "target"
    for name, group in e.groups.items():
        for fault in group.faults:
            yield ("groups", name, "faults"), fault, "faults", "fault"


def _of_probes(e: Experiment) -> Iterator[Reference]:
    for name, remedy in e.remedies.items():
        if remedy.probe is not None:
            yield ("remedies", name, "probe"), remedy.probe, "probes", "probe"
        if remedy.act is not None and remedy.act.node is not None:
            yield ("remedies", name, "act", "node"), remedy.act.node, "nodes", "node"
    for name, probe in e.probes.items():
        if probe.get("type") == "exposure" and isinstance(probe.get("fault"), str):
            yield ("probes", name, "fault"), probe["fault"], "faults", "fault"
    for name, guard in e.guards.items():
        yield ("guards", name, "probe"), guard.probe, "probes", "probe"
    for name in e.steady.probes if e.steady else ():
        yield ("steady", "probes"), name, "probes", "probe"
    for name, group in e.groups.items():
        if group.overload is not None:
            path: Path = ("groups", name, "overload", "probe")
            yield path, group.overload.probe, "probes", "probe"


def _of_faults(e: Experiment) -> Iterator[Reference]:
    for name, fault in e.faults.items():
        here: Path = ("faults", name)
        for target in fault.targets:
            yield (*here, "target"), target, "targets", "target"
        if fault.stage is not None:
            yield (*here, "stage"), fault.stage, "stages", "stage"
        for remedy in fault.remedies:
            yield (*here, "remedies"), remedy, "remedies", "remedy"
        if fault.truth is not None and fault.truth.symptom_probe:
            yield (*here, "truth", "symptom_probe"), fault.truth.symptom_probe, "probes", "probe"


def check_references(document: Document, e: Experiment) -> None:
    """Notes every name that leads nowhere, and every one that is claimed twice."""
    for path, name, room, what in references(e):
        if name not in getattr(e, room):
            document.problem(path, f"there is no {what} {name!r}")
    for name, fault in e.faults.items():
        if len(set(fault.targets)) != len(fault.targets):
            document.problem(("faults", name, "target"), "a target is there twice")
    _check_noise(document, e)
    home: dict[str, str] = {}
    for name, group in e.groups.items():
        for member in group.faults:
            if member in home:
                text = f"{member!r} is in the group {home[member]!r} already"
                document.problem(("groups", name, "faults"), text)
            home[member] = name


def _check_noise(document: Document, e: Experiment) -> None:
    """Noise on pods is on the cluster's objects; on other objects there is none."""
    for name in (e.noise.targets or ()) if e.noise else ():
        entry = e.targets.get(name)
        if entry is not None and entry.objects is not None:
            text = f"{name!r} is objects: noise does not act on them"
            document.problem(("noise", "targets"), text)
        if entry is not None and entry.pods is not None and CLUSTER in e.nodes:
            document.problem(("nodes", CLUSTER), "a run calls the cluster so: choose another name")
