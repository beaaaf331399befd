"""A pod's volume by name to what its node's agent is asked for; pure.

The agent finds the device by the container's mount table. What is known to have none is
refused here already, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.kube.objects import Container, Mount, Pod
from controller.kube.select import is_sidecar
from nodeagent.model.errors import InvalidSpec, Refused

_NETWORK = "its data lies on another machine"
NO_DEVICE = {
    "nfs": _NETWORK, "cephfs": _NETWORK, "glusterfs": _NETWORK, "azureFile": _NETWORK,
    "quobyte": _NETWORK, "storageos": _NETWORK,
    "configMap": "the kubelet makes its files, and makes them again",
    "secret": "the kubelet keeps it in memory",
    "projected": "the kubelet keeps it in memory",
    "downwardAPI": "the kubelet makes its files, and makes them again",
    "image": "it is part of an image, shared with other pods",
}  # fmt: skip
"""Sources of volumes (k8s.io/api/core/v1, VolumeSource) without a device of the node."""


def volume_target(
    pod: Pod, volume: str, containers: tuple[str, ...], part: Mapping[str, Any]
) -> dict[str, Any]:
    """The target as the agent takes it. `part` may have file, offset and length.

    Raises Refused or InvalidSpec.
    """
    source = pod.volumes.get(volume)
    if source is None:
        there = ", ".join(pod.volumes) or "none"
        raise InvalidSpec(f"pod {pod.full_name} has no volume {volume}", f"it has: {there}")
    what = f"volume {volume} of pod {pod.full_name}"
    for name, why in NO_DEVICE.items():
        if name in source:
            raise Refused(f"{what} has no device on its node", f"it is a {name}: {why}")
    if (source.get("emptyDir") or {}).get("medium") == "Memory":
        raise Refused(f"{what} has no device on its node", "it is an emptyDir in memory")
    container, mount = _mounted(pod, volume, containers, what)
    if mount.block and part.get("file"):
        raise InvalidSpec(f"{what} has no files", "it is a raw block volume", "leave --file out")
    if mount.sub_path_expr and not part.get("file"):
        raise Refused(f"{what} is mounted by subPathExpr", "name a file of it: --file PATH")
    found = {
        "type": "pod-volume",
        "pod": pod.full_name,
        "uid": pod.cgroup_uid,
        "volume": volume,
        "container": container.name,
        "container_id": container.container_id,
        "path": mount.path,
        "sub_path": mount.sub_path,
        "block": mount.block,
        **part,
    }
    return {name: value for name, value in found.items() if value not in (None, "", False)}


def _mounted(
    pod: Pod, volume: str, containers: tuple[str, ...], what: str
) -> tuple[Container, Mount]:
    """The first running container that mounts it, workloads before sidecars."""
    having = [(c, m) for c in pod.containers for m in c.mounts if m.volume == volume]
    if containers:
        having = [(c, m) for c, m in having if c.name in containers]
    if not having:
        raise Refused(f"{what} is mounted by no container" + _of(containers))
    running = [(c, m) for c, m in having if c.running and c.container_id]
    if not running:
        states = ", ".join(f"{c.name}: {c.state or 'not started'}" for c, _ in having)
        raise Refused(
            f"{what} cannot be found now",
            f"no container that mounts it is running ({states})",
            "the agent looks it up in a running container: try again when one runs",
        )
    return min(running, key=lambda item: is_sidecar(pod, item[0]))


def claim_of(pod: Pod, volume: str) -> str:
    """The PersistentVolumeClaim of a volume, empty if it is none that outlives its pod."""
    source = pod.volumes.get(volume, {}).get("persistentVolumeClaim") or {}
    return str(source.get("claimName", ""))


def volume_place(pod: Pod, volume: str, bound: str = "") -> str:
    """What pods have in common that have the very same volume on the same node; empty for a
    volume that goes with its pod. bound: the PersistentVolume of its claim, if it is known."""
    claim = claim_of(pod, volume)
    host = pod.volumes.get(volume, {}).get("hostPath") or {}
    if not (claim or host):
        return ""
    where = f"claim {pod.namespace}/{claim} {bound}" if claim else f"path {host.get('path')}"
    mounts = [m for c in pod.containers for m in c.mounts if m.volume == volume]
    parts = sorted({m.sub_path for m in mounts})
    own = f" of {pod.name}" if any(m.sub_path_expr for m in mounts) else ""
    return f"{pod.node}: {where} {parts}{own}"


def _of(containers: tuple[str, ...]) -> str:
    return f" of {', '.join(containers)}" if containers else ""
