"""Volume targets as what holds files: the mounted file system itself, tmpfs too."""

from __future__ import annotations

import os
from pathlib import Path

from nodeagent.bind.family import Ask, Scene
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.fill import FillBinding
from nodeagent.model.target import VolumeTarget

FILLABLE = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs")
"""File systems whose free space is what statvfs(3) says, and that have fallocate(2)."""

FIXED_INODES = ("ext2", "ext3", "ext4", "tmpfs")
"""File systems that have a number of inodes from their start, and free them with the file."""


def bind(scene: Scene, ask: Ask) -> FillBinding:
    """The file system at a mount point. Raises Refused or InvalidSpec."""
    if not isinstance(ask.target, VolumeTarget):
        raise InvalidSpec("a volume is needed", ask.target.label())
    asked = ask.target.volume
    what = f"{ask.target.label()} cannot be filled"
    folder = os.path.realpath(asked)
    if not os.path.isdir(folder):
        raise Refused(what, "there is no such directory", "see: findmnt")
    if not os.path.ismount(folder):
        raise Refused(what, "it is no mount point", f"name one: findmnt -T {asked}")
    fs_type, read_only = _mount(scene.node.proc, folder)
    if fs_type not in FILLABLE:
        raise Refused(what, f"{fs_type or 'this file system'} is none of {', '.join(FILLABLE)}")
    if read_only:
        raise Refused(what, "it is mounted read-only")
    status, space = os.stat(folder), os.statvfs(folder)
    return FillBinding(
        target=ask.target.label(),
        folder=folder,
        device=status.st_dev,
        fs_type=fs_type,
        size=space.f_blocks * space.f_frsize,
        # Others tell what they could make of the free space: that changes by itself.
        inodes=space.f_files if fs_type in FIXED_INODES else 0,
        node_uses=tuple(p for p in scene.protected if _device(p) == status.st_dev),
    )


def _mount(proc: Path, folder: str) -> tuple[str, bool]:
    """(type, whether it is read-only) of the topmost mount there (proc_pid_mountinfo(5))."""
    found = ("", False)
    for line in (proc / "self/mountinfo").read_text(encoding="utf-8").splitlines():
        left, _, right = line.partition(" - ")
        words, more = left.split(), right.split()
        if words[4].replace("\\040", " ") == folder:
            options = {*words[5].split(","), *more[-1].split(",")}
            found = (more[0], "ro" in options)
    return found


def _device(path: str) -> int:
    try:
        return os.stat(path).st_dev
    except OSError:
        return -1
