"""Who maps a file, who has it or a device open: bounded scans of /proc."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nodeagent.bind.node import Node

MAX_SECONDS = 1.0
_HEX = rb"([0-9a-f]+)"
_MAP = re.compile(
    rb"^" + _HEX + rb"-" + _HEX + rb" \S+ " + _HEX + rb" " + _HEX + rb":" + _HEX + rb" (\d+)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Pids:
    """Processes in the view of the node's /proc; not `complete` when time ran out."""

    pids: tuple[int, ...]
    complete: bool


def mapped_by(
    node: Node,
    dev: int,
    inode: int,
    span: tuple[int, int] | None = None,
    max_seconds: float = MAX_SECONDS,
) -> Pids:
    """Processes that map the inode of st_dev `dev`, by /proc/PID/maps (proc_pid_maps(5)).

    `span` is (offset, length) in bytes: only mappings that touch it count. Not found:
    mappings through overlayfs or btrfs, whose maps name another device.
    """
    wanted = (os.major(dev), os.minor(dev), inode)

    def maps(pid: Path) -> bool:
        lines = _MAP.finditer((pid / "maps").read_bytes())
        return any(
            (int(m[4], 16), int(m[5], 16), int(m[6])) == wanted and _touches(m, span) for m in lines
        )

    return _scan(node, maps, max_seconds)


def _touches(line: re.Match[bytes], span: tuple[int, int] | None) -> bool:
    start, end, offset = (int(line[i], 16) for i in (1, 2, 3))
    return span is None or (offset < span[0] + span[1] and span[0] < offset + end - start)


def opened_by(node: Node, dev: int, inode: int, max_seconds: float = MAX_SECONDS) -> Pids:
    """Processes with an open file description of the inode: they may keep copies of their own."""

    def opens(pid: Path) -> bool:
        return any((s.st_dev, s.st_ino) == (dev, inode) for s in _files(pid))

    return _scan(node, opens, max_seconds)


def device_opened_by(node: Node, major: int, minor: int, max_seconds: float = MAX_SECONDS) -> Pids:
    """Processes that have a block device open, by any of its nodes.

    Whether with O_EXCL cannot be read: the kernel clears the flag (do_dentry_open).
    """
    rdev = os.makedev(major, minor)

    def opens(pid: Path) -> bool:
        return any(stat.S_ISBLK(s.st_mode) and s.st_rdev == rdev for s in _files(pid))

    return _scan(node, opens, max_seconds)


def _files(pid: Path) -> Iterator[os.stat_result]:
    with os.scandir(pid / "fd") as entries:
        for entry in entries:
            try:
                yield os.stat(entry.path)
            except OSError:
                continue


def _scan(node: Node, matches: Callable[[Path], bool], max_seconds: float) -> Pids:
    deadline = time.monotonic() + max_seconds
    found: list[int] = []
    complete = True
    for name in sorted((n for n in os.listdir(node.proc) if n.isdigit()), key=int):
        if time.monotonic() > deadline:
            complete = False
            break
        try:
            if matches(node.proc / name):
                found.append(int(name))
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            complete = False
    return Pids(tuple(found), complete)
