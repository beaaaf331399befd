"""Pods: from a UID and a container id to cgroups, processes and the sandbox's net namespace.

Found by walking the cgroup tree for the directory that is named after the pod, so no path
is guessed: cgroupfs and systemd drivers, other roots (kind's nested nodes, --cgroup-root),
cgroup v2, v1 and hybrid nodes alike.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from nodeagent.bind.net import start_time
from nodeagent.bind.node import Node, reason
from nodeagent.bind.process import cgroup_pids, comm_of
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.kind import FaultKind
from nodeagent.model.planner import Placed
from nodeagent.model.podcgroup import container_id, pod_uid
from nodeagent.model.target import CgroupTarget, NetnsTarget, PodTarget

CGROUPS = Path("/sys/fs/cgroup")
MAX_DEPTH = 16
"""Levels below the root; a pod of a node inside a container is about eight deep."""
V1_FIRST = ("pids", "memory", "cpu", "systemd")
PAUSE = "pause"


@dataclass(frozen=True)
class PodCgroup:
    """A pod's cgroup on this node. `unified`: of the v2 hierarchy, which BPF can ask."""

    folder: Path
    hierarchy: Path
    unified: bool
    containers: dict[str, Path]

    @property
    def path(self) -> str:
        """Below the hierarchy's root, as in /proc/PID/cgroup."""
        return f"/{self.folder.relative_to(self.hierarchy)}"

    def pids(self, container: str | None = None) -> tuple[int, ...]:
        """Processes of the pod, its sandbox's included, or of one container."""
        return cgroup_pids(self.folder if container is None else self.containers[container])


def place(node: Node, kind: FaultKind, target: PodTarget, root: Path = CGROUPS) -> Placed:
    """The net namespace or the cgroup that a pod stands for. Raises Refused or InvalidSpec."""
    if "netns" in kind.targets:
        if target.container_id is not None:
            raise InvalidSpec(
                f"{kind.name} hits a pod as a whole",
                "all containers of a pod share one net namespace",
                "leave the container out",
            )
        found = locate(target.uid, target.label(), root)
        return Placed(NetnsTarget(netns=sandbox_netns(node, target, found)), (_where(found),))
    if "cgroup" not in kind.targets:
        raise InvalidSpec(
            f"{kind.name} does not take a pod", "it acts on disks", "name a --volume of the pod"
        )
    found = locate(target.uid, target.label(), root)
    if target.container_id is None:
        held = "it holds through restarts of its containers"
        return Placed(CgroupTarget(cgroup=found.path), (_where(found), held))
    folder = container_of(found, target)
    path = f"/{folder.relative_to(found.hierarchy)}"
    ends = (
        f"a restart of container {target.container} has a cgroup of its own: the fault ends there"
    )
    return Placed(CgroupTarget(cgroup=path), (f"container's cgroup {path}", ends))


def _where(found: PodCgroup) -> str:
    return f"pod's cgroup {found.path} ({'v2' if found.unified else f'v1 {found.hierarchy.name}'})"


def locate(uid: str, label: str, root: Path = CGROUPS) -> PodCgroup:
    """The cgroup of the pod with this UID. Raises Refused with what was looked at."""
    places = hierarchies(root)
    found = [
        PodCgroup(folder, hierarchy, unified, _containers(folder))
        for hierarchy, unified in places
        for folder in _folders(hierarchy, uid)
    ]
    living = [one for one in found if one.pids()]
    if not living:
        shown = ", ".join(str(one.folder) for one in found)
        raise Refused(
            f"{label} is not on this node",
            f"{shown} has no process"
            if found
            else f"no cgroup is named after UID {uid}; looked "
            f"at: {', '.join(str(hierarchy) for hierarchy, _ in places) or f'{root}, empty'}",
            "has it moved or ended? select again: kubectl get pod -o wide",
        )
    first = living[0].hierarchy
    alike = [one for one in living if one.hierarchy == first]
    if len(alike) > 1:
        shown = ", ".join(str(one.folder) for one in alike)
        raise Refused(f"{label} has {len(alike)} cgroups on this node", shown, "name one: --cgroup")
    return living[0]


def hierarchies(root: Path = CGROUPS) -> tuple[tuple[Path, bool], ...]:
    """(mount point, whether it is v2), the v2 hierarchy first, each v1 hierarchy once."""
    if (root / "cgroup.controllers").exists():
        return ((root, True),)
    found: dict[str, tuple[Path, bool]] = {}
    names = [*V1_FIRST, *sorted(os.listdir(root) if root.is_dir() else ())]
    for name in ("unified", *names):
        folder = root / name
        if (folder / "cgroup.procs").exists():
            # cpu and cpuacct are symbolic links to one mount.
            real = os.path.realpath(folder)
            found.setdefault(real, (Path(real), (folder / "cgroup.controllers").exists()))
    return tuple(found.values())


def _folders(hierarchy: Path, uid: str) -> list[Path]:
    found: list[Path] = []
    for here, names, _ in os.walk(hierarchy):
        if here.count("/") - str(hierarchy).count("/") >= MAX_DEPTH:
            names.clear()
        uids = {name: pod_uid(name) for name in names}
        found += [Path(here, name) for name, of in uids.items() if of == uid]
        # What is below a pod, this or another, is its containers.
        names[:] = [name for name in names if uids[name] is None]
    return found


def _containers(folder: Path) -> dict[str, Path]:
    found = {}
    for entry in folder.iterdir():
        named = container_id(entry.name)
        if named is not None and entry.is_dir():
            found[named] = entry
    return found


def container_of(found: PodCgroup, target: PodTarget) -> Path:
    """The cgroup of the container that is meant. Raises Refused."""
    assert target.container_id is not None  # noqa: S101 - asked by callers
    folder = found.containers.get(target.container_id)
    if folder is None or not cgroup_pids(folder):
        there = ", ".join(one[:12] for one in found.containers) or "none"
        raise Refused(
            f"{target.label()} does not run",
            f"no process in a container {target.container_id[:12]} below {found.folder}; "
            f"there are: {there}",
            "a restarted container has a new id: select again",
        )
    return folder


def sandbox_netns(node: Node, target: PodTarget, found: PodCgroup) -> str:
    """A path to the pod's net namespace. Raises Refused for the node's own.

    The pause container's process lives as long as the sandbox; where there is none
    (CRI-O drops it) the oldest process was there first.
    """
    pids = sorted(found.pids(), key=lambda pid: (start_time(node.proc, pid), pid))
    pids.sort(key=lambda pid: _comm(node, pid) != PAUSE)
    for pid in pids:
        path = f"{node.proc}/{pid}/ns/net"
        try:
            inode = os.stat(path).st_ino
            own = os.stat(node.proc / "1/ns/net").st_ino
        except FileNotFoundError:
            continue
        except OSError as exc:
            raise Refused(f"{path} cannot be read", reason(exc), "run faultd as root") from exc
        if inode == own:
            raise Refused(
                f"{target.label()} uses the node's own network",
                "a fault on it would hit every host-network pod, the kubelet and the node",
                "if that is meant, name the node's namespace: --netns /proc/1/ns/net",
            )
        return path
    raise Refused(f"{target.label()} has no process", f"in {found.folder}", "select again")


def _comm(node: Node, pid: int) -> str:
    try:
        return comm_of(node, pid)
    except OSError:
        return ""
