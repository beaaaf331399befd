"""Mount tables: /proc/PID/mountinfo (proc_pid_mountinfo(5)), and swap areas beside them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nodeagent.bind.node import Node, opened, real_path, shown
from nodeagent.model.binding import VolumeIdentity
from nodeagent.model.errors import Refused

ON_ONE_DEVICE = frozenset({"ext2", "ext3", "ext4", "xfs"})
"""File systems whose FIEMAP addresses are byte offsets on the mounted device."""

_OCTAL = re.compile(r"\\([0-7]{3})")
_WHY_NOT = {
    "btrfs": "its addresses are in a space of its own, over one or more devices",
    "bcachefs": "its extents are spread over devices by its own buckets",
    "zfs": "it keeps its own pool of devices, unknown to the block layer",
    "tmpfs": "it lives in memory",
    "ramfs": "it lives in memory",
    "overlay": "its files lie in directories of other file systems; name one of those",
}
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "virtiofs", "afs", "gfs2", "ocfs2")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo, escapes undone."""

    mount_id: int
    parent_id: int
    dev: str
    root: str
    mount_point: str
    options: str
    fs_type: str
    source: str
    super_options: str

    @property
    def read_only(self) -> bool:
        """Either the mount or its super block is read-only."""
        return "ro" in (*self.options.split(","), *self.super_options.split(","))


@dataclass(frozen=True, slots=True)
class Swap:
    """One line of /proc/swaps."""

    path: str
    is_file: bool


def unescape(text: str) -> str:
    r"""Undo the kernel's octal escapes: `\040` space, `\011` tab, `\012` newline, `\134` \."""
    return _OCTAL.sub(lambda m: chr(int(m[1], 8)), text)


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """The mount table, in mount order. Raises ValueError on a line that is none."""
    return tuple(_parse_line(line) for line in text.split("\n") if line)


def _parse_line(line: str) -> Mount:
    fields = line.split(" ")
    try:
        # Optional fields, none or several, end with a lone hyphen.
        dash = fields.index("-", 6)
        return Mount(
            mount_id=int(fields[0]),
            parent_id=int(fields[1]),
            dev=fields[2],
            root=unescape(fields[3]),
            mount_point=unescape(fields[4]),
            options=fields[5],
            fs_type=unescape(fields[dash + 1]),
            source=unescape(fields[dash + 2]),
            super_options=fields[dash + 3] if len(fields) > dash + 3 else "",
        )
    except (ValueError, IndexError) as exc:
        raise ValueError(f"no mountinfo line: {line!r}") from exc


def parse_swaps(text: str) -> tuple[Swap, ...]:
    """/proc/swaps: name, type, then columns that change."""
    rows = (line.split() for line in text.split("\n")[1:] if line)
    return tuple(Swap(unescape(row[0]), row[1] == "file") for row in rows if len(row) > 1)


def read_mounts(node: Node) -> tuple[Mount, ...]:
    """The mount table of the node's view. Raises OSError."""
    path = node.proc / node.mount_pid / "mountinfo"
    return parse_mountinfo(path.read_bytes().decode("utf-8", "surrogateescape"))


def read_swaps(node: Node) -> tuple[Swap, ...]:
    """Active swap areas; none where the kernel has no swap."""
    try:
        data = (node.proc / "swaps").read_bytes()
    except OSError:
        return ()
    return parse_swaps(data.decode("utf-8", "surrogateescape"))


def longest_prefix(mounts: Iterable[Mount], path: str) -> Mount | None:
    """The mount that an absolute, link-free path lies on; of equal ones the last mounted."""
    best: Mount | None = None
    for mount in mounts:
        point = mount.mount_point
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) >= len(best.mount_point)):
            best = mount
    return best


def mount_of_fd(node: Node, fd: int, mounts: tuple[Mount, ...]) -> Mount:
    """The mount an open file lies on, by mnt_id, which is exact under over-mounts too."""
    # Our own descriptor: always our own /proc, whatever node is looked at.
    info = Path(f"/proc/self/fdinfo/{fd}").read_text("ascii")
    for line in info.splitlines():
        if line.startswith("mnt_id:"):
            wanted = int(line.split()[1])
            found = next((m for m in mounts if m.mount_id == wanted), None)
            if found is not None:
                return found
    raise Refused(
        f"{real_path(node, fd)!r} is on a mount that cannot be seen",
        f"the mount is not in the table of process {node.mount_pid}",
        "name the path as the node itself sees it",
    )


def identity(mount: Mount) -> VolumeIdentity:
    """The mount as a volume. Raises Refused for file systems that are not on one device."""
    if mount.fs_type not in ON_ONE_DEVICE:
        raise Refused(
            f"{mount.mount_point!r} cannot be mapped to sectors",
            f"{mount.fs_type}: {why_not(mount.fs_type)}",
            "use a volume with ext2, ext3, ext4 or xfs, or name a device",
        )
    major, minor = (int(part) for part in mount.dev.split(":"))
    more = (o.split("=", 1)[1] for o in mount.super_options.split(",") if _other_device(o))
    return VolumeIdentity(
        mount_point=shown(mount.mount_point),
        root=shown(mount.root),
        fs_type=mount.fs_type,
        source=shown(mount.source),
        major=major,
        minor=minor,
        read_only=mount.read_only,
        options=shown(mount.super_options),
        more_devices=tuple(shown(unescape(value)) for value in more),
    )


def _other_device(option: str) -> bool:
    return option.startswith(("logdev=", "rtdev=", "journal_dev=", "journal_path="))


def why_not(fs_type: str) -> str:
    """Why a file system cannot be mapped to sectors of one device."""
    if fs_type in _WHY_NOT:
        return _WHY_NOT[fs_type]
    if fs_type in _NETWORK:
        return "its data lies on another machine"
    if fs_type.startswith("fuse"):
        return "its data lies where a process in user space puts it"
    return "no mapping from its addresses to sectors is known here"


def resolve_mount_point(node: Node, path: str, mounts: tuple[Mount, ...]) -> Mount:
    """The mount whose mount point is exactly this path, symbolic links followed.

    A directory below a mount point is refused rather than widened to its whole volume:
    a forgotten mount would otherwise turn a fault on a scratch disk into one on /.
    """
    with opened(node, path, os.O_PATH | os.O_DIRECTORY) as fd:
        mount = mount_of_fd(node, fd, mounts)
        real = real_path(node, fd)
    if real == mount.mount_point:
        return mount
    raise Refused(
        f"{path!r} is not a mount point",
        f"it lies on {mount.mount_point!r} ({mount.fs_type} on {mount.source})",
        f"name {mount.mount_point!r} if that volume is meant, or use --file",
    )
