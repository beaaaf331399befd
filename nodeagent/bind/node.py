"""Where a node's facts are read: sysfs, procfs, device nodes, the mount view of one process."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nodeagent.model.errors import Refused

TableReader = Callable[[int, int], tuple[str, ...]]
"""(major, minor) -> live device-mapper table, a line a segment; may raise OSError."""

_SYS_OPENAT2 = 437
_RESOLVE_IN_ROOT = 0x10
_LIBC = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    """struct open_how, include/uapi/linux/openat2.h."""

    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class Node:
    """The places to read. The defaults are this process's own view.

    For a pod that looks at its host: `root="/proc/1/root"`, `mount_pid="1"`.
    """

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")
    root: str = "/"
    mount_pid: str = "self"
    dm_table: TableReader | None = None


def open_path(node: Node, path: str, flags: int = os.O_PATH) -> int:
    """Open a path of the node's view, symbolic links resolved inside it. Raises OSError.

    Below another root this is openat2(2) with RESOLVE_IN_ROOT (Linux 5.6), so that an
    absolute symbolic link cannot lead out of the view.
    """
    flags |= os.O_CLOEXEC
    if node.root == "/":
        return os.open(path, flags)
    root = os.open(node.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        how = _OpenHow(flags | os.O_LARGEFILE, 0, _RESOLVE_IN_ROOT)
        fd = _LIBC.syscall(
            ctypes.c_long(_SYS_OPENAT2),
            ctypes.c_int(root),
            ctypes.c_char_p(os.fsencode(path)),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if fd < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), path)
        return int(fd)
    finally:
        os.close(root)


@contextmanager
def opened(node: Node, path: str, flags: int = os.O_PATH) -> Iterator[int]:
    """`open_path`, closed at the end; an error becomes Refused with the kernel's word."""
    try:
        fd = open_path(node, path, flags)
    except (OSError, ValueError) as exc:
        raise Refused(f"cannot open {path!r}", reason(exc), "name a path on this node") from exc
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def reopened(fd: int, flags: int) -> Iterator[int]:
    """The same inode as `fd`, opened for use. Raises OSError.

    A path is first opened with O_PATH and looked at, so that a FIFO is never waited
    for and a device is never opened by mistake. O_NOATIME where we may use it.
    """
    name = f"/proc/self/fd/{fd}"
    try:
        new = os.open(name, flags | os.O_CLOEXEC | os.O_NOATIME)
    except PermissionError:
        new = os.open(name, flags | os.O_CLOEXEC)
    try:
        yield new
    finally:
        os.close(new)


def real_path(node: Node, fd: int) -> str:
    """An open file's name after all symbolic links, as the node's view has it.

    The kernel names a file of another mount namespace from that namespace's own root
    (d_path, fs/d_path.c), which may lie above the root of the process that is viewed.
    """
    name = os.readlink(f"/proc/self/fd/{fd}")
    if node.root == "/":
        return name
    root = Path(node.root)
    base = (str(root.readlink()) if root.is_symlink() else node.root).rstrip("/")
    return name.removeprefix(base) if name.startswith(base + "/") else name


def device_numbers(node: Node, path: str) -> tuple[int, int]:
    """(major, minor) of a block device by any of its paths. Raises Refused."""
    with opened(node, path) as fd:
        mode = os.fstat(fd)
    if not stat.S_ISBLK(mode.st_mode):
        kind = "a directory" if stat.S_ISDIR(mode.st_mode) else "not a block device"
        raise Refused(
            f"{path!r} is no block device", f"it is {kind}", "use --file or --volume for files"
        )
    return os.major(mode.st_rdev), os.minor(mode.st_rdev)


def reason(exc: Exception) -> str:
    """The kernel's own words, without the path that the caller names anyway."""
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror
    return str(exc)


def shown(text: str) -> str:
    """A name from the kernel as text that JSON can carry; bytes that are no UTF-8 as \\xNN."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")


def read_text(path: Path, default: str = "") -> str:
    """A sysfs attribute without its line end; `default` where there is none."""
    try:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return default
    return text.removesuffix("\n")


def read_int(path: Path, default: int = 0) -> int:
    """A number from sysfs; `default` where there is none."""
    text = read_text(path).strip()
    return int(text) if text.isascii() and text.lstrip("-").isdigit() else default
