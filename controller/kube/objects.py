"""Pods and nodes as targeting needs them, read from the API's JSON; pure.

Only what decides is kept, so that tests can write them down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CONFIG_HASH = "kubernetes.io/config.hash"
CONFIG_MIRROR = "kubernetes.io/config.mirror"
ZONE = "topology.kubernetes.io/zone"
CONTROL_PLANE = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")


@dataclass(frozen=True)
class Mount:
    """Where a container has a volume; `path` is the devicePath of a raw block volume."""

    volume: str
    path: str
    sub_path: str = ""
    sub_path_expr: bool = False
    block: bool = False


@dataclass(frozen=True)
class Container:
    """A container of a pod. init: runs before the others; sidecar: an init that stays."""

    name: str
    init: bool = False
    sidecar: bool = False
    ephemeral: bool = False
    container_id: str = ""
    """Of the runtime, without its scheme; empty before the first start."""
    running: bool = False
    state: str = ""
    restarts: int = 0
    mounts: tuple[Mount, ...] = ()


@dataclass(frozen=True)
class Owner:
    """A controller of a pod, as in its ownerReferences."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True)
class Pod:
    """One pod at one moment."""

    namespace: str
    name: str
    uid: str
    node: str = ""
    phase: str = "Running"
    deleting: bool = False
    ready: bool = False
    host_network: bool = False
    ips: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    owner: Owner | None = None
    containers: tuple[Container, ...] = ()
    volumes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Name to source, such as {"persistentVolumeClaim": {...}}."""

    @property
    def full_name(self) -> str:
        """NAMESPACE/NAME."""
        return f"{self.namespace}/{self.name}"

    @property
    def static(self) -> bool:
        """Made from a file of its node; what the API shows is its mirror."""
        return CONFIG_MIRROR in self.annotations

    @property
    def cgroup_uid(self) -> str:
        """The UID in the names of its cgroups: a static pod's is the hash of its file."""
        return self.annotations.get(CONFIG_HASH, self.uid) if self.static else self.uid


@dataclass(frozen=True)
class Node:
    """One node of the cluster."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    ready: bool = True
    unschedulable: bool = False

    @property
    def zone(self) -> str:
        """Its zone; empty without the label."""
        return self.labels.get(ZONE, "")

    @property
    def control_plane(self) -> bool:
        """Whether it has the role's label, today's or the old one."""
        return any(role in self.labels for role in CONTROL_PLANE)


def pod_from(data: Mapping[str, Any]) -> Pod:
    """A pod from the API's JSON (k8s.io/api/core/v1, Pod)."""
    meta, spec, status = data["metadata"], data.get("spec", {}), data.get("status", {})
    owners = [o for o in meta.get("ownerReferences", ()) if o.get("controller")]
    return Pod(
        namespace=meta.get("namespace", ""),
        name=meta["name"],
        uid=meta.get("uid", ""),
        node=spec.get("nodeName", ""),
        phase=status.get("phase", "Pending"),
        deleting="deletionTimestamp" in meta,
        ready=condition(data, "Ready"),
        host_network=bool(spec.get("hostNetwork")),
        ips=tuple(one["ip"] for one in status.get("podIPs", ()))
        or ((status["podIP"],) if status.get("podIP") else ()),
        labels=meta.get("labels") or {},
        annotations=meta.get("annotations") or {},
        owner=Owner(owners[0]["kind"], owners[0]["name"], owners[0]["uid"]) if owners else None,
        containers=tuple(_containers(spec, status)),
        volumes={
            one["name"]: {k: v for k, v in one.items() if k != "name"}
            for one in spec.get("volumes") or ()
        },
    )


def _containers(spec: Mapping[str, Any], status: Mapping[str, Any]) -> list[Container]:
    found = []
    for sort in ("containers", "initContainers", "ephemeralContainers"):
        key = f"{sort.removesuffix('s')}Statuses"
        known = {one["name"]: one for one in status.get(key) or ()}
        for one in spec.get(sort) or ():
            found.append(_container(one, known.get(one["name"], {}), sort))
    return found


def _container(spec: Mapping[str, Any], status: Mapping[str, Any], sort: str) -> Container:
    init = sort == "initContainers"
    state = next(iter(status.get("state") or {}), "")
    mounts = [
        Mount(
            one["name"],
            one["mountPath"],
            one.get("subPath", ""),
            bool(one.get("subPathExpr")),
        )
        for one in spec.get("volumeMounts") or ()
    ]
    mounts += [
        Mount(one["name"], one["devicePath"], block=True) for one in spec.get("volumeDevices") or ()
    ]
    return Container(
        name=spec["name"],
        init=init,
        sidecar=init and spec.get("restartPolicy") == "Always",
        ephemeral=sort == "ephemeralContainers",
        container_id=status.get("containerID", "").rpartition("://")[2],
        running=state == "running",
        state=state,
        restarts=status.get("restartCount", 0),
        mounts=tuple(mounts),
    )


def node_from(data: Mapping[str, Any]) -> Node:
    """A node from the API's JSON."""
    return Node(
        name=data["metadata"]["name"],
        labels=data["metadata"].get("labels") or {},
        ready=condition(data, "Ready"),
        unschedulable=bool(data.get("spec", {}).get("unschedulable")),
    )


def condition(data: Mapping[str, Any], name: str) -> bool:
    """Whether a condition of an object's status is True."""
    found = data.get("status", {}).get("conditions") or ()
    return any(one.get("type") == name and one.get("status") == "True" for one in found)
