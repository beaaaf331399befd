"""What the faults on a cluster's objects would do now: looked up when a run starts.

They choose again when they start. This look finds what is wrong before anything is touched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from controller.experiment import Experiment
from controller.experiment_object_check import on_objects
from controller.experiment_objects import object_target
from controller.experiment_pods import FoundObjects
from controller.experiment_yaml import Path
from controller.kube.act import try_out
from controller.kube.collect import check_rights
from controller.kube.kinds import cluster_kinds, lines_of
from controller.kube.object_steps import chosen_for
from nodeagent.model.errors import FaultError, InvalidSpec
from nodeagent.model.policy import NODE

Note = Callable[[Path, FaultError], None]


def look_up(experiment: Experiment, cluster: Any, note: Note) -> tuple[FoundObjects, ...]:
    """What there is. note: is told what is wrong, by its path in the file."""
    found = []
    for name, fault in experiment.faults.items():
        for target in fault.targets if on_objects(fault) else ():
            entry = experiment.targets[target]
            sort = "objects" if entry.pods is None else "pods"
            path: Path = ("targets", target, sort)
            if cluster_kinds()[fault.kind].on == "object":
                path = ("faults", name, "spec")
            try:
                found.append(_one(experiment, cluster, name, target))
            except FaultError as exc:
                note(path, exc)
    return tuple(found)


def _one(experiment: Experiment, cluster: Any, name: str, target: str) -> FoundObjects:
    fault, entry = experiment.faults[name], experiment.targets[target]
    objects = entry.pods or entry.objects
    if objects is None:
        raise InvalidSpec(f"{target} is no object of a cluster")
    kind = cluster_kinds()[fault.kind]
    wanted = object_target(objects, f"{experiment.seed} {target} {name}")
    chosen = chosen_for(cluster, kind, wanted, fault.spec, fault.acknowledge)
    check_rights(cluster, chosen.found.work)
    try_out(cluster, chosen.found.work.patched)
    return FoundObjects(
        fault=name,
        target=target,
        namespace=chosen.namespace,
        spaces=tuple(sorted({place.namespace or NODE for place in chosen.places})),
        changes=tuple(lines_of(chosen.found.work)),
        notes=chosen.found.lines,
    )
