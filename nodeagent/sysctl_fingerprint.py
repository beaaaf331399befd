"""The sysctls of a node's fingerprint: of the own namespaces and of each named net namespace."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

from nodeagent.bind import procsys
from nodeagent.net_fingerprint import places
from nodeagent.netns import entered_at

MOVING = (
    "fs/aio-nr", "fs/dentry-state", "fs/file-nr", "fs/inode-*", "fs/quota/*", "kernel/ns_last_pid",
    "kernel/pty/nr", "kernel/random/*", "kernel/keys/*", "net/netfilter/nf_conntrack_count",
)  # fmt: skip
"""What the kernel changes by itself."""


def sysctls(only: Sequence[str] = ("*",)) -> dict[str, list[str]]:
    """A line for each that matches a pattern, sorted; of other namespaces, those of the network.

    only: patterns of paths below /proc/sys; * matches slashes as well.
    """
    found = {"self": list(_lines("", only))}
    for name, path in places().items():
        if name != "self" and (lines := _inside(path, lambda: list(_lines("net", only)))):
            found[name] = lines
    return found


def _inside(path: str, work: Callable[[], list[str]]) -> list[str]:
    try:
        return entered_at(path, work)
    except OSError:
        return []  # no namespace, or gone meanwhile


def _lines(below: str, only: Sequence[str]) -> Iterator[str]:
    for path in sorted(_paths(below, only)):
        if any(fnmatchcase(path, glob) for glob in MOVING):
            continue
        try:
            yield f"{path} {procsys.read(path)}"
        except (OSError, UnicodeDecodeError):
            continue  # write-only, or no text


def _paths(below: str, only: Sequence[str]) -> set[str]:
    if "*" not in only:  # named ones are not looked for: that takes a second under emulation
        return {path for glob in only for path in procsys.matching(glob) if path.startswith(below)}
    return {
        os.path.relpath(os.path.join(here, name), procsys.ROOT)
        for here, _, names in os.walk(procsys.ROOT / below)
        for name in names
    }
