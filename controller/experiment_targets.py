"""Nodes and targets of an experiment file, and how names and times are written in it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from controller.client import AgentAddress
from controller.experiment_objects import ObjectsEntry
from controller.experiment_pods import PodsEntry, cluster_node
from nodeagent.model.units import Duration

NAME_PATTERN = r"^[a-z0-9][a-z0-9-]{0,62}$"
NODE_PATTERN = r"^[a-z0-9][a-z0-9.-]{0,252}$"
"""Names of a cluster's nodes have dots."""

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
NodeName = Annotated[str, Field(pattern=NODE_PATTERN)]


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError("must be more than 0s")
    return value


def _agent(url: str) -> str:
    cluster_node(url)
    return url


PositiveDuration = Annotated[Duration, AfterValidator(_positive)]


class NodeEntry(BaseModel):
    """A node and its agent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    agent: Annotated[str, AfterValidator(_agent)] = Field(
        description="unix:///PATH, tcp://HOST:PORT, or kube://NODE of a cluster"
    )
    zone: str = Field(default="", description="what it shares a fate with; for limits")
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    tls_server_name: str | None = None

    def address(self, default: AgentAddress) -> AgentAddress:
        """Its address; TLS files not given here are those of the command line."""
        return AgentAddress(
            self.agent,
            self.tls_cert or default.cert,
            self.tls_key or default.key,
            self.tls_ca or default.ca,
            self.tls_server_name or default.server_name,
            default.patience,
        )


class TargetEntry(BaseModel):
    """Something that can be broken: a target on a node, pods, or objects; as part of a service."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node: Annotated[str, Field(pattern=NODE_PATTERN)] = Field(
        default="", description="needed, but with pods"
    )
    service: Name = Field(description="the service that it is part of, for limits and blame")
    target: dict[str, Any] = Field(
        default={},
        description="needed, but with pods: as `faultctl inject` knows it, with its type",
    )
    pods: PodsEntry | None = Field(
        default=None, description="instead of node and target: pods of a cluster"
    )
    objects: ObjectsEntry | None = Field(
        default=None, description="instead of both: objects of a cluster, for faults on them"
    )
    kinds: tuple[str, ...] | None = Field(
        default=None, description="kinds that schedules and noise may use on it; absent: any"
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> TargetEntry:
        if self.pods is not None and self.objects is not None:
            raise ValueError("pods or objects, one of them")
        if not self.of_cluster:
            lacking = [name for name in ("node", "target") if not getattr(self, name)]
            if lacking:
                raise ValueError(f"{' and '.join(lacking)} is missing (or pods or objects instead)")
        elif self.node or self.target or self.kinds is not None:
            word = "pods" if self.objects is None else "objects"
            raise ValueError(f"{word} stands for node and target, and no schedule draws from it: "
                             "leave node, target and kinds out")  # fmt: skip
        return self

    @property
    def of_cluster(self) -> bool:
        """Whether it is looked up in a cluster, and not a target on a node that is named."""
        return self.pods is not None or self.objects is not None
