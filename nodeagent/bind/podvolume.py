"""A pod's volume on the node: by the mount table of a running container, not by driver paths.

What a container has mounted names a device and a directory of its file system. The same
directory is then looked for in the node's own mount table and checked to be the same inode.
So hostPath, local, emptyDir and CSI volumes, with and without subPath, are found alike.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nodeagent.bind import pod
from nodeagent.bind.mounts import (
    ON_ONE_DEVICE,
    Mount,
    longest_prefix,
    parse_mountinfo,
    read_mounts,
    why_not,
)
from nodeagent.bind.net import start_time
from nodeagent.bind.node import Node, open_path, opened, read_text, real_path, reason
from nodeagent.bind.process import NODE_AGENTS, cgroup_pids
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.kind import FaultKind
from nodeagent.model.planner import Placed
from nodeagent.model.target import (
    DeviceTarget,
    FileTarget,
    PodTarget,
    PodVolumeTarget,
    VolumeTarget,
)


def place(node: Node, kind: FaultKind, target: PodVolumeTarget, root: Path = pod.CGROUPS) -> Placed:
    """The file, mount point or device that a pod's volume stands for. Raises Refused, ..."""
    if target.file is None and (target.offset or target.length is not None):
        raise InvalidSpec("--offset and --length are parts of a file", "", "name one: --file PATH")
    wanted = "device" if target.block else "file" if target.file is not None else "volume"
    if wanted not in kind.targets:
        raise InvalidSpec(
            f"{kind.name} does not take a pod's {_WORDS[wanted]}",
            f"it takes: {', '.join(kind.targets)}",
        )
    if target.block:
        return _block(node, target, _process(node, target, root))
    inside = _Inside.of(node, target, _process(node, target, root))
    if target.file is not None:
        return _file(node, target, inside)
    return _volume(node, target, inside)


_WORDS = {"device": "raw block volume", "file": "file", "volume": "whole volume"}


def _process(node: Node, target: PodVolumeTarget, root: Path) -> int:
    """The container's first process that is past the runtime's own start."""
    found = pod.locate(target.uid, f"pod {target.pod}", root)
    named = PodTarget(
        pod=target.pod,
        uid=target.uid,
        container=target.container,
        container_id=target.container_id,
    )
    folder = pod.container_of(found, named)
    pids = sorted(cgroup_pids(folder), key=lambda pid: (start_time(node.proc, pid), pid))
    for pid in pids:
        if read_text(node.proc / str(pid) / "comm") not in NODE_AGENTS:
            return pid
    raise Refused(f"{named.label()} is still starting", "only the runtime runs", "try again")


@dataclass(frozen=True)
class _Inside:
    """The volume as the container sees it."""

    view: Node
    mounts: tuple[Mount, ...]
    mount: Mount

    @classmethod
    def of(cls, node: Node, target: PodVolumeTarget, pid: int) -> _Inside:
        what = f"{target.label()} cannot be found"
        try:
            raw = (node.proc / str(pid) / "mountinfo").read_bytes()
        except OSError as exc:
            raise Refused(what, f"process {pid}: {reason(exc)}", "select again") from exc
        mounts = parse_mountinfo(raw.decode("utf-8", "surrogateescape"))
        path = os.path.normpath(target.path)
        here = [m for m in mounts if m.mount_point == path]
        if not here:
            raise Refused(
                what,
                f"nothing is mounted at {path} in container {target.container}",
                f"see: kubectl exec {target.pod.partition('/')[2]} -- cat /proc/mounts",
            )
        mount = here[-1]
        if mount.fs_type not in ON_ONE_DEVICE:
            raise Refused(
                f"{target.label()} cannot be mapped to sectors",
                f"it is {mount.fs_type} ({mount.source}): {why_not(mount.fs_type)}",
                "use a volume with ext2, ext3, ext4 or xfs on a block device of the node",
            )
        return cls(Node(root=f"{node.proc}/{pid}/root", mount_pid=str(pid)), mounts, mount)


def _file(node: Node, target: PodVolumeTarget, inside: _Inside) -> Placed:
    assert target.file is not None  # noqa: S101 - asked by place
    point = inside.mount.mount_point
    path = os.path.normpath(f"{point}/{target.file.removeprefix(f'{point}/')}")
    if not path.startswith(f"{point}/"):
        raise InvalidSpec(f"{target.file!r} is not on the volume", f"it leads out of {point}")
    with opened(inside.view, path) as fd:
        real = real_path(inside.view, fd)
        status = os.fstat(fd)
    if longest_prefix(inside.mounts, real) != inside.mount:
        raise Refused(
            f"{target.file!r} is not on volume {target.volume}",
            f"it leads to {real}, which is on another mount",
            "name the volume that it is on",
        )
    below = _joined(inside.mount.root, real.removeprefix(point))
    found = _on_node(node, target, inside.mount, below, status)
    # Sizes are bytes already; as input they would need a unit.
    return Placed(
        FileTarget.model_construct(file=found, offset=target.offset, length=target.length),
        (f"{real} in container {target.container} is {found} on the node",),
    )


def _volume(node: Node, target: PodVolumeTarget, inside: _Inside) -> Placed:
    mount = inside.mount
    if mount.root not in ("/", _joined("/", target.sub_path)):
        raise Refused(
            f"{target.label()} has no device of its own",
            f"it is the directory {mount.root} of a larger file system ({mount.source})",
            "name a file of it: --file PATH",
        )
    top = [m for m in read_mounts(node) if m.dev == mount.dev and m.root == "/"]
    for one in reversed(top):
        with opened(node, one.mount_point) as fd:
            status = os.fstat(fd)
        if f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}" == mount.dev:
            note = f"volume {target.volume} is mounted at {one.mount_point} on the node"
            return Placed(VolumeTarget(volume=one.mount_point), (note,))
    raise _unseen(target, mount)


def _block(node: Node, target: PodVolumeTarget, pid: int) -> Placed:
    with opened(Node(root=f"{node.proc}/{pid}/root"), target.path) as fd:
        status = os.fstat(fd)
    if not stat.S_ISBLK(status.st_mode):
        raise Refused(f"{target.label()} is no block device", f"{target.path} in the container")
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    for line in read_text(node.sys / "dev/block" / number / "uevent").splitlines():
        if line.startswith("DEVNAME="):
            device = f"{node.dev}/{line.removeprefix('DEVNAME=')}"
            note = f"{target.path} in container {target.container} is {device} ({number})"
            return Placed(DeviceTarget(device=device), (note,))
    raise Refused(f"{target.label()} is not on this node", f"{number} is no device here")


def _joined(root: str, below: str) -> str:
    return os.path.normpath(f"/{root}/{below}").replace("//", "/")


def _on_node(
    node: Node, target: PodVolumeTarget, mount: Mount, wanted: str, inode: os.stat_result
) -> str:
    """A path in the node's own view to what is `wanted` in the mounted file system."""
    for path in _paths(read_mounts(node), mount.dev, wanted):
        try:
            fd = open_path(node, path)
        except OSError:
            continue  # another mount hides it
        try:
            status = os.fstat(fd)
        finally:
            os.close(fd)
        if (status.st_dev, status.st_ino) == (inode.st_dev, inode.st_ino):
            return path
    raise _unseen(target, mount)


def _paths(mounts: tuple[Mount, ...], dev: str, wanted: str) -> Iterator[str]:
    for mount in mounts:
        root = mount.root.rstrip("/")
        if mount.dev == dev and (wanted == root or wanted.startswith(f"{root}/")):
            yield _joined(mount.mount_point, wanted.removeprefix(root))


def _unseen(target: PodVolumeTarget, mount: Mount) -> Refused:
    return Refused(
        f"{target.label()} cannot be reached",
        f"no mount that faultd sees shows {mount.root} of {mount.source} ({mount.dev})",
        "run faultd with hostPID and in the node's mount namespace",
    )
