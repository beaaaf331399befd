"""Pods of a cluster as targets of an experiment: what the file asks for, and what was found; pure.

The words are those of the options of `faultctl inject`, and so is what they mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from controller.kube.choose import NARROW, parse_how_many
from controller.kube.labels import parse_field_selector, parse_selector
from nodeagent.model.errors import InvalidSpec
from nodeagent.model.units import Size

AGENT_SCHEME = "kube://"
"""Of a node's agent that is a pod of the cluster; the node's name there follows."""
NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_POD = re.compile(rf"({NODE_NAME.pattern}/)?{NODE_NAME.pattern}", re.ASCII)
_WORDS = {"all": "all: true", "i-know": "acknowledge:", "hard-end": "for:"}


def agent_url(node: str) -> str:
    """Where the agent of a node of the cluster is, as an experiment has it."""
    return AGENT_SCHEME + node


def cluster_node(agent: str) -> str | None:
    """The node's name in the cluster, of a kube:// agent; None for another. Raises ValueError."""
    if not agent.startswith(AGENT_SCHEME):
        return None
    name = agent.removeprefix(AGENT_SCHEME)
    if len(name) > 253 or not NODE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a node of a cluster: kube://NODE")
    return name


def in_file_words(text: str) -> str:
    """Words of the command line as a file has them: `--pick 1` is `pick: 1`."""
    text = re.sub(r"--pick (\d+%?|all)", r"pick: \1", text)
    return re.sub(r"--([a-z][a-z-]*)", lambda m: _WORDS.get(m[1], m[1].replace("-", "_")), text)


def _right(parse: Callable[[str], Any]) -> Callable[[str], str]:
    """A check by a parser that raises InvalidSpec."""

    def check(value: str) -> str:
        try:
            parse(value)
        except InvalidSpec as exc:
            raise ValueError(in_file_words(str(exc))) from exc
        return value

    return check


def _owner(text: str) -> Any:
    from controller.kube.discover import owner_of  # the cluster's client comes with it

    return owner_of(text)


def _how_many(value: int | str) -> int | str:
    _right(parse_how_many)(str(value))
    return value


def _pod_name(names: str | tuple[str, ...]) -> str | tuple[str, ...]:
    for name in several(names):
        if not _POD.fullmatch(name):
            raise ValueError(f"{name!r} is not a pod: NAME or NAMESPACE/NAME")
    return names


def several(value: str | tuple[str, ...]) -> tuple[str, ...]:
    """One, or several."""
    return (value,) if isinstance(value, str) else value


Labels = Annotated[str, AfterValidator(_right(parse_selector)), Field(min_length=1)]
Fields = Annotated[str, AfterValidator(_right(parse_field_selector)), Field(min_length=1)]
OwnerName = Annotated[str, AfterValidator(_right(_owner))]
Text = Annotated[str, Field(min_length=1)]
OneOrMore = Text | tuple[Text, ...]
HowManyOf = Annotated[
    Annotated[int, Field(strict=True)] | str, AfterValidator(_how_many), Field(examples=["50%"])
]


class PodsEntry(BaseModel):
    """Pods of a cluster, chosen once at the start of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=False)

    namespace: Text | None = Field(default=None, description="absent: the kubeconfig's")
    pod: Annotated[OneOrMore, AfterValidator(_pod_name)] = Field(
        default=(), description="NAME or NAMESPACE/NAME, or several of one namespace"
    )
    selector: Labels | None = Field(default=None, description="by labels: app=cart,tier!=cache")
    field_selector: Fields | None = Field(default=None, description="by fields")
    owner: OwnerName | None = Field(
        default=None, description="deployment/cart; of a statefulset, daemonset, replicaset, job"
    )
    on_node: OneOrMore = Field(default=(), description="only on these nodes")
    node_selector: Labels | None = Field(default=None, description="only on nodes of these labels")
    zone: OneOrMore = Field(default=(), description="only on nodes of these zones")
    container: OneOrMore = Field(
        default=(), description="absent: all but init containers and known sidecars"
    )
    pick: HowManyOf | None = Field(
        default=None, description="N, N% or all of those that match; a share is rounded up"
    )
    everything: bool = Field(default=False, alias="all", description="the same as pick: all")
    pick_seed: Annotated[int, Field(strict=True)] | Text | None = Field(
        default=None, description="makes the same choice again; absent: by the run's seed"
    )
    zone_cap: HowManyOf | None = Field(default=None, description="at most N or N% of each zone")
    volume: Text | None = Field(
        default=None, description="for faults on disks: its name in the pod"
    )
    file: Text | None = Field(default=None, description="on the volume, relative to its mount")
    offset: Size | None = Field(default=None, description="first byte of the range in the file")
    length: Size | None = Field(default=None, description="absent: to the file's end")
    follow: Literal["move", "stay"] | None = Field(
        default=None,
        description="hit the pods that take the place of those that were hit, on other nodes as "
        "well (move), or end there (stay); absent: what goes is not followed",
    )

    @model_validator(mode="after")
    def _goes_together(self) -> PodsEntry:
        many = self.pick is not None or self.everything
        others = (self.selector, self.field_selector, self.owner, many, self.pick_seed is not None)
        if self.pod and any(others):
            raise ValueError(
                "pod names pods by themselves: selector, field_selector, owner, pick, all and "
                "pick_seed cannot go with it"
            )
        if self.everything and self.pick is not None:
            raise ValueError("all and pick exclude each other")
        if not (self.pod or many or any(getattr(self, name) for name in NARROW)):
            raise ValueError("every pod of the namespace: say all: true, or narrow it")
        spaces = {p.partition("/")[0] for p in several(self.pod) if "/" in p}
        if len(spaces | ({self.namespace} if self.namespace else set())) > 1:
            raise ValueError("pods of one namespace at a time")
        if self.file is None and not (self.offset is None and self.length is None):
            raise ValueError("offset and length are of a file: add file")
        if self.volume is None and self.file is not None:
            raise ValueError("which volume is the file on? add volume")
        return self

    @property
    def part(self) -> dict[str, Any]:
        """file, offset and length, as far as they are given, in words as a target takes them."""
        return self.model_dump(include={"file", "offset", "length"}, exclude_none=True)

    def options(self, seed: str) -> dict[str, Any]:
        """The values of the options of `inject` that say the same; `seed` where none is given."""
        return {
            "pod": several(self.pod),
            "namespace": self.namespace,
            "selector": self.selector,
            "field_selector": self.field_selector,
            "owner": self.owner,
            "on_node": several(self.on_node),
            "node_selector": self.node_selector,
            "zone": several(self.zone),
            "container": several(self.container),
            "pick": None if self.pick is None else str(self.pick),
            "everything": self.everything,
            "pick_seed": seed if self.pick_seed is None else str(self.pick_seed),
            "zone_cap": None if self.zone_cap is None else str(self.zone_cap),
            "volume": self.volume,
        }


class PeersEntry(BaseModel):
    """The far ends of a network fault: pods, and the services before them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespace: Text | None = Field(default=None, description="absent: that of the fault's pods")
    selector: Labels | None = Field(default=None, description="by labels; absent: all pods")
    zone: OneOrMore = Field(default=(), description="only those on nodes of these zones")

    @model_validator(mode="after")
    def _narrow(self) -> PeersEntry:
        if not (self.selector or self.zone):
            raise ValueError("which pods? selector, or zone")
        return self


class FoundPod(BaseModel):
    """A pod that was chosen."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pod: str = Field(description="NAMESPACE/NAME")
    uid: str
    node: str = Field(description="as the run names it")
    containers: dict[str, str] = Field(default={}, description="name -> id, those that run")
    owner: str = Field(default="", description="UID of its workload, if it is followed")
    place: str = Field(default="", description="the volume that is hit, if that outlives the pod")


class FoundPods(BaseModel):
    """What came of one entry of `targets`, for the record."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str
    namespace: str
    matching: int = Field(description="pods that could be hit; the base of a share")
    how_many: str
    seed: str = ""
    pods: tuple[FoundPod, ...]
    left_out: dict[str, str] = Field(default={}, description="pod -> why it was not hit")
    follow: Literal["", "move", "stay"] = ""
    others: tuple[str, ...] = Field(
        default=(), description="UIDs of pods that were there and are never hit, if it follows"
    )
    notes: tuple[str, ...] = ()


class FoundObjects(BaseModel):
    """What a fault on objects would have done when the run was planned, for the record."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fault: str
    target: str
    namespace: str
    spaces: tuple[str, ...] = Field(description="namespaces of all that would be changed")
    changes: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hit:
    """One fault on one pod, container or volume: where, and as its agent is asked for it."""

    node: str
    zone: str
    name: str
    """In the entry: the pod, and the container where the pod has several targets."""
    target: Mapping[str, Any]
    follow: Literal["", "move", "stay"] = ""


@dataclass(frozen=True)
class Found:
    """What a cluster has for an experiment."""

    cluster: str
    """Which one: take-over asks no other."""
    pods: tuple[FoundPods, ...] = ()
    hits: Mapping[tuple[str, str], Sequence[Hit]] | None = None
    """By name of the fault and of its target."""
    specs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of faults whose far ends are pods, with their addresses."""
    objects: Sequence[FoundObjects] = ()
    """What faults on the cluster's own objects would do now."""
