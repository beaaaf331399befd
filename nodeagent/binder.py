"""From a validated request to a binding: reads the node, changes nothing."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from pydantic import BaseModel

from nodeagent.bind import pod, podvolume
from nodeagent.bind.family import Ask, Scene
from nodeagent.bind.node import Node
from nodeagent.model.facts import Facts
from nodeagent.model.kind import FaultKind, FaultSpec
from nodeagent.model.planner import Placed
from nodeagent.model.target import PodTarget, PodVolumeTarget, TargetBase

PROTECTED = ("/var/lib/kubelet", "/var/lib/containerd", "/var/lib/containers", "/var/lib/etcd")


class Binder:
    """Resolves targets on this node.

    protected: directories whose devices are guarded, the journal's among them.
    """

    def __init__(self, node: Node, protected: Iterable[str]) -> None:
        self._scene = Scene(node, tuple(protected))

    def bind(
        self, kind: FaultKind, fault_id: str, target: TargetBase, spec: FaultSpec, facts: Facts
    ) -> BaseModel:
        """The binding of a target by the kind's family. Raises Refused or InvalidSpec."""
        family = importlib.import_module(f"nodeagent.bind.{kind.family}")
        found: BaseModel = family.bind(self._scene, Ask(kind, fault_id, target, spec, facts))
        return found

    def place(self, kind: FaultKind, target: TargetBase) -> Placed:
        """What a pod stands for on this node; other targets stand for themselves."""
        if isinstance(target, PodTarget):
            return pod.place(self._scene.node, kind, target)
        if isinstance(target, PodVolumeTarget):
            return podvolume.place(self._scene.node, kind, target)
        return Placed(target)
