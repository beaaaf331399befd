"""Writer for the kernel's initramfs format, cpio "newc" (pure).

Documentation/driver-api/early-userspace/buffer-format.rst: the kernel unpacks
any number of archives that follow one another, so a small one with the code
under test is simply put behind the cached base.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

_TRAILER = "TRAILER!!!"


@dataclass(frozen=True)
class Entry:
    """One file, directory or symbolic link of an archive; `path` has no leading slash."""

    path: str
    mode: int  # file type and permission bits, as in st_mode
    data: bytes = b""  # content, or the link's target


def file(path: str, data: bytes, mode: int = 0o644) -> Entry:
    return Entry(path, stat.S_IFREG | mode, data)


def directory(path: str, mode: int = 0o755) -> Entry:
    return Entry(path, stat.S_IFDIR | mode)


def symlink(path: str, target: str) -> Entry:
    return Entry(path, stat.S_IFLNK | 0o777, target.encode())


def archive(entries: Iterable[Entry]) -> bytes:
    """The archive's bytes: same entries, same bytes (owner root, time 0).

    Parent directories are added where missing, since the kernel does not make
    them; entries keep their order otherwise. Raises ValueError for a path that
    is absolute, has `..` in it or appears twice.
    """
    out = bytearray()
    seen: set[str] = set()
    for number, entry in enumerate(_with_parents(entries), 1):
        if entry.path in seen:
            raise ValueError(f"{entry.path} is twice in the archive")
        seen.add(entry.path)
        out += _record(entry, number)
    out += _record(Entry(_TRAILER, 0), 0)
    out += bytes(-len(out) % 512)
    return bytes(out)


def _with_parents(entries: Iterable[Entry]) -> Iterable[Entry]:
    made: set[str] = set()
    for entry in entries:
        path = PurePosixPath(entry.path)
        if path.is_absolute() or ".." in path.parts or entry.path in ("", "."):
            raise ValueError(f"{entry.path!r} is not a path inside the archive")
        for parent in reversed(path.parents[:-1]):
            if str(parent) not in made:
                made.add(str(parent))
                yield directory(str(parent))
        if stat.S_ISDIR(entry.mode):
            if entry.path in made:
                continue
            made.add(entry.path)
        yield entry


def _record(entry: Entry, inode: int) -> bytes:
    name = entry.path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    fields = (inode, entry.mode, 0, 0, links, 0, len(entry.data), 0, 0, 0, 0, len(name), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name
    head += bytes(-len(head) % 4)
    return head + entry.data + bytes(-len(entry.data) % 4)
