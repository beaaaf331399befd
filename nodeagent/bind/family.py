"""What a family of targets gets to bind with.

A family is a module of this package with `bind(scene, ask)`; a kind names its own in
`FaultKind.family`. So one type of target, a process, can mean its net namespace to one
kind and its threads to another.
"""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.bind.node import Node
from nodeagent.model.facts import Facts
from nodeagent.model.kind import FaultKind, FaultSpec
from nodeagent.model.target import TargetBase


@dataclass(frozen=True)
class Scene:
    """This node, and the directories whose devices are guarded."""

    node: Node
    protected: tuple[str, ...]


@dataclass(frozen=True)
class Ask:
    """One request, validated."""

    kind: FaultKind
    fault_id: str
    target: TargetBase
    spec: FaultSpec
    facts: Facts
