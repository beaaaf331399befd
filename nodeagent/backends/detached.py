"""A file system that is mounted nowhere: whatever is put into it goes with its descriptor.

fsopen(2), fsconfig(2), fsmount(2), Linux 5.2: the mount that they make is in no mount table
until somebody moves it there. So a process that is killed leaves nothing behind.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

# The same on every architecture (include/uapi/asm-generic/unistd.h).
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_FSOPEN_CLOEXEC = _FSMOUNT_CLOEXEC = 1
_CMD_CREATE = 6  # enum fsconfig_command, include/uapi/linux/mount.h
_LIBC = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    result = int(_LIBC.syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"no private tmpfs (system call {number}): {os.strerror(code)}")
    return result


@contextmanager
def detached_tmpfs() -> Iterator[int]:
    """The root of an empty tmpfs as a directory descriptor, device nodes allowed.

    Raises OSError without CAP_SYS_ADMIN.
    """
    context = _call(_FSOPEN, b"tmpfs", _FSOPEN_CLOEXEC)
    try:
        _call(_FSCONFIG, context, _CMD_CREATE, None, None, 0)
        root = _call(_FSMOUNT, context, _FSMOUNT_CLOEXEC, 0)
    finally:
        os.close(context)
    try:
        yield root
    finally:
        os.close(root)
