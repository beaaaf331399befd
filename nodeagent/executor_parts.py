"""What an executor works with on one node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel

from nodeagent.backends import Registry
from nodeagent.journal import Journal
from nodeagent.model.facts import Facts
from nodeagent.model.kind import FaultKind, FaultSpec
from nodeagent.model.planner import Placed
from nodeagent.model.target import TargetBase
from nodeagent.statedir import MutationLock

Bind = Callable[[FaultKind, str, TargetBase, FaultSpec, Facts], BaseModel]
Place = Callable[[FaultKind, TargetBase], Placed]


def _as_named(kind: FaultKind, target: TargetBase) -> Placed:
    return Placed(target)


@dataclass(frozen=True)
class Node:
    """Its journal, lock and backends; how targets are placed and bound; the agent's epoch."""

    journal: Journal
    lock: MutationLock
    backends: Registry
    bind: Bind
    facts: Callable[[], Facts]
    epoch: int
    place: Place = _as_named
