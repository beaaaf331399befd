"""Faults on a cluster's own objects in an experiment: which targets they take, how a run names
them; pure.

Unlike the pods of other faults, what such a fault hits is chosen when it starts: pods that were
deleted by the one before are not there for the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from controller.experiment_pods import (
    HowManyOf,
    Labels,
    OneOrMore,
    PodsEntry,
    Text,
    several,
)

CLUSTER = "cluster"
"""What stands for a node where a fault is on the cluster's own objects."""
SCHEME = "objects:"
"""Of the address of that node; the API server's follows."""


class ObjectsEntry(BaseModel):
    """Objects of a cluster: nodes, or where the object lies that a fault names itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=False)

    namespace: Text | None = Field(
        default=None, description="of the object; absent: the kubeconfig's"
    )
    on_node: OneOrMore = Field(default=(), description="these nodes")
    node_selector: Labels | None = Field(default=None, description="nodes by labels")
    zone: OneOrMore = Field(default=(), description="nodes of these zones")
    pick: HowManyOf | None = Field(default=None, description="N, N% or all of those that match")
    everything: bool = Field(default=False, alias="all", description="the same as pick: all")
    pick_seed: Annotated[int, Field(strict=True)] | Text | None = Field(
        default=None, description="absent: by the run's seed"
    )

    @property
    def of_nodes(self) -> bool:
        """Whether it chooses nodes."""
        many = self.pick is not None or self.everything
        return bool(self.on_node or self.node_selector or self.zone or many)

    @model_validator(mode="after")
    def _goes_together(self) -> ObjectsEntry:
        many = self.pick is not None or self.everything
        if self.namespace is not None and self.of_nodes:
            raise ValueError("nodes lie in no namespace")
        if self.everything and self.pick is not None:
            raise ValueError("all and pick exclude each other")
        if self.on_node and many:
            raise ValueError("on_node names nodes by themselves: pick and all cannot go with it")
        if (self.node_selector or self.zone) and not (many or self.on_node):
            raise ValueError("how many of them? pick, or all: true")
        if self.pick_seed is not None and self.pick is None:
            raise ValueError("pick_seed goes with pick")
        return self

    def options(self, seed: str) -> dict[str, Any]:
        """The values of the options of `inject` that say the same."""
        none = ("selector", "field_selector", "owner", "zone_cap", "volume")
        return {
            **dict.fromkeys(none),
            "pod": (),
            "container": (),
            "namespace": self.namespace,
            "on_node": several(self.on_node),
            "node_selector": self.node_selector,
            "zone": several(self.zone),
            "pick": None if self.pick is None else str(self.pick),
            "everything": self.everything,
            "pick_seed": seed if self.pick_seed is None else str(self.pick_seed),
        }


def words_of(entry: PodsEntry | ObjectsEntry) -> dict[str, Any]:
    """An entry as a target of a plan, in the file's own words."""
    sort = "pods" if isinstance(entry, PodsEntry) else "objects"
    return {"type": sort, **entry.model_dump(mode="json", by_alias=True, exclude_defaults=True)}


def object_target(
    entry: PodsEntry | ObjectsEntry, seed: str, namespace: str | None = None
) -> dict[str, Any]:
    """The target of one fault on objects. namespace: where the kubeconfig's was found out."""
    found = {**words_of(entry), "seed": seed}
    if isinstance(entry, PodsEntry):
        known = entry.namespace or any("/" in pod for pod in several(entry.pod))
    else:
        known = entry.namespace or entry.of_nodes
    return found if known or not namespace else {**found, "namespace": namespace}


def options_of(target: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the options of `inject` that say the same as a target."""
    words = {key: value for key, value in target.items() if key not in ("type", "seed")}
    model = PodsEntry if target["type"] == "pods" else ObjectsEntry
    return model.model_validate(words).options(str(target["seed"]))
