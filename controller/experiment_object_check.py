"""What is wrong with faults on a cluster's objects, as far as the experiment's file tells; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from controller.experiment import Experiment, FaultEntry
from controller.experiment_objects import CLUSTER
from controller.experiment_pods import in_file_words
from controller.experiment_yaml import Path
from controller.kube.kinds import ClusterKind, cluster_kinds
from nodeagent.model.errors import FaultError

_DISK = ("container", "volume", "file", "offset", "length")


def object_problems(experiment: Experiment, name: str) -> Iterator[tuple[Path, str]]:
    """What is wrong with a fault on objects, and where, as far as the file tells."""
    fault = experiment.faults[name]
    here, kind = ("faults", name), cluster_kinds()[fault.kind]
    yield from _spec_problems((*here, "spec"), kind, fault.spec)
    if fault.mechanism is not None:
        yield (*here, "mechanism"), f"{kind.name} is done by the API server: there are no others"
    if fault.to_pods is not None:
        yield (*here, "to_pods"), f"{kind.name} has no far end"
    for target in fault.targets:
        for text in _target_problems(experiment, kind, target):
            yield (*here, "target"), text
    if CLUSTER in experiment.nodes:
        yield ("nodes", CLUSTER), f"a run with {kind.name} calls the cluster so: choose another"
    for probe, data in experiment.probes.items():
        if data.get("type") == "exposure" and data.get("fault") == name:
            text = f"{kind.name} hits no processes: nobody is exposed to it"
            yield ("probes", probe, "fault"), text


def _spec_problems(
    path: Path, kind: ClusterKind, spec: Mapping[str, Any]
) -> Iterator[tuple[Path, str]]:
    try:
        kind.check(kind.spec.model_validate(dict(spec)))
    except ValidationError as exc:
        for error in exc.errors(include_url=False, include_input=False):
            text = error["msg"].removeprefix("Value error, ")
            if error["type"] in ("extra_forbidden", "missing"):
                missing = error["type"] == "missing"
                text = "is missing" if missing else "is not a key that is known here"
            yield (*path, *error["loc"][:1]), text
    except FaultError as exc:
        yield path, in_file_words(str(exc))


def _target_problems(experiment: Experiment, kind: ClusterKind, name: str) -> Iterator[str]:
    entry = experiment.targets[name]
    if kind.on == "pods":
        if entry.pods is None:
            yield f"{kind.name} acts on pods: {name!r} is none, it needs the key pods"
            return
        stray = [word for word in _DISK if getattr(entry.pods, word)]
        if stray:
            yield f"{kind.name} acts on whole pods: {name!r} has {', '.join(stray)}"
        alone = all(on_objects(f) for f in experiment.faults.values() if name in f.targets)
        if entry.pods.follow is not None and alone:
            yield f"{kind.name} chooses its pods when it starts: {name!r} has follow, of no use"
    elif entry.objects is None:
        yield f"{kind.name} acts on objects: {name!r} is none, it needs the key objects"
    elif kind.on == "nodes" and not entry.objects.of_nodes:
        yield f"which nodes? {name!r} needs on_node, node_selector or zone, or all: true"
    elif kind.on == "object" and entry.objects.of_nodes:
        yield f"{kind.name} names its object itself: {name!r} may have a namespace only"


def on_objects(fault: FaultEntry) -> bool:
    """Whether a fault is on the cluster's own objects."""
    return fault.kind in cluster_kinds()
