"""Files of overlayfs: which file of which layer really holds the data.

Documentation/filesystems/overlayfs.rst. The topmost layer that has the path holds the
data, unless a directory was renamed or only metadata was copied up; so the candidate
has to prove itself: overlayfs passes FIEMAP on to the real file, and both answers
must be the same.
"""

from __future__ import annotations

import os
import re
import stat

from nodeagent.bind.extents import fiemap
from nodeagent.bind.mounts import Mount, unescape
from nodeagent.bind.node import Node, open_path, reopened
from nodeagent.model.errors import Refused

_COLON = re.compile(r"(?<!\\):")


def layers(options: str) -> tuple[str, ...]:
    """Directories from the top down: upperdir, then all lowerdir and datadir entries."""
    upper: list[str] = []
    lower: list[str] = []
    for option in options.split(","):
        key, _, value = option.partition("=")
        if key == "upperdir":
            upper.append(unescape(value))
        elif key in ("lowerdir", "lowerdir+", "datadir+"):
            lower.extend(_split(unescape(value)))
    return (*upper, *lower)


def _split(value: str) -> list[str]:
    # Two colons come before data-only layers, which are searched last all the same.
    parts = [part for part in _COLON.split(value) if part]
    return [re.sub(r"\\(.)", r"\1", part) for part in parts]


def real_file(node: Node, mount: Mount, fd: int, path: str) -> str:
    """The path of the layer's file that holds the data of the overlay file `fd`.

    Paths of layers are those of the process that mounted, so `node` is the host's view.
    Raises Refused when no layer's file proves to be the one.
    """
    inside = path.removeprefix(mount.mount_point).lstrip("/")
    inside = f"{mount.root.strip('/')}/{inside}".lstrip("/")
    wanted = os.fstat(fd)
    dirs = layers(mount.super_options)
    relative = [d for d in dirs if not d.startswith("/")]
    if relative:
        raise _ambiguous(path, f"layer {relative[0]!r} was mounted by a relative path")
    with reopened(fd, os.O_RDONLY) as opened_fd:
        os.fsync(opened_fd)
        for directory in dirs:
            candidate = f"{directory}/{inside}"
            if _is_same(node, candidate, opened_fd, wanted):
                return candidate
    raise _ambiguous(path, f"none of {len(dirs)} layers has a file with the same extents there")


def _is_same(node: Node, candidate: str, overlay_fd: int, wanted: os.stat_result) -> bool:
    try:
        fd = open_path(node, candidate, os.O_PATH | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size != wanted.st_size:
            return False
        with reopened(fd, os.O_RDONLY) as real:
            length = max(wanted.st_size, 1)
            mine, theirs = fiemap(real, 0, length), fiemap(overlay_fd, 0, length)
            return bool(mine) and mine == theirs
    except (OSError, OverflowError):
        return False
    finally:
        os.close(fd)


def _ambiguous(path: str, why: str) -> Refused:
    return Refused(
        f"{path!r} is on overlayfs and what holds its data is ambiguous",
        why,
        "name the file in its layer (upperdir or lowerdir) instead",
    )
