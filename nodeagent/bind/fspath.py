"""Paths as one file system has them, whatever is bind-mounted where."""

from __future__ import annotations

import os
import stat

from nodeagent.bind.mounts import Mount, mount_of_fd
from nodeagent.bind.node import Node, open_path, real_path
from nodeagent.model.errors import FaultError


def inside(node: Node, mounts: tuple[Mount, ...], file: str, tree: str) -> bool | None:
    """Whether a file is `tree` or below it, by its path in the file system itself.

    None where that proves nothing: the file has several hard links, or a path is gone.
    """
    first = _place(node, mounts, file)
    second = _place(node, mounts, tree)
    if first is None or second is None:
        return None
    dev, path, links = first
    if dev != second[0]:
        return False
    base = second[1].rstrip("/")
    if path == base or path.startswith(base + "/"):
        return True
    return False if links == 1 else None


def _place(node: Node, mounts: tuple[Mount, ...], path: str) -> tuple[str, str, int] | None:
    """(device, path from the root of the file system, hard links)."""
    try:
        fd = open_path(node, path)
    except (OSError, ValueError):
        return None
    try:
        mount = mount_of_fd(node, fd, mounts)
        status = os.fstat(fd)
        real = real_path(node, fd)
    except (FaultError, OSError):
        return None
    finally:
        os.close(fd)
    relative = real.removeprefix(mount.mount_point.rstrip("/"))
    links = 1 if stat.S_ISDIR(status.st_mode) else status.st_nlink
    return mount.dev, f"{mount.root.rstrip('/')}{relative}", links
