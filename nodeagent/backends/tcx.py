"""BPF programs on an interface that run before its clsact (tcx, Linux 6.6; net/core/dev.c).

A program of tcx that does not return TCX_NEXT has the last word: sch_handle_ingress() and
sch_handle_egress() then never come to the filters of clsact. Cilium's programs are such.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform

BPF = {"x86_64": 321, "aarch64": 280}
"""arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h."""
BPF_PROG_QUERY = 16  # enum bpf_cmd, include/uapi/linux/bpf.h
ATTACH_TYPE = {"ingress": 46, "egress": 47}
"""BPF_TCX_INGRESS and BPF_TCX_EGRESS of enum bpf_attach_type."""
_LIBC = ctypes.CDLL(None, use_errno=True)


class _Query(ctypes.Structure):
    """The `query` of union bpf_attr."""

    _fields_ = (
        ("target_ifindex", ctypes.c_uint32),
        ("attach_type", ctypes.c_uint32),
        ("query_flags", ctypes.c_uint32),
        ("attach_flags", ctypes.c_uint32),
        ("prog_ids", ctypes.c_uint64),
        ("count", ctypes.c_uint32),
        ("_pad", ctypes.c_uint32),
        ("prog_attach_flags", ctypes.c_uint64),
        ("link_ids", ctypes.c_uint64),
        ("link_attach_flags", ctypes.c_uint64),
        ("revision", ctypes.c_uint64),
    )


def programs(ifindex: int, hook: str) -> int:
    """How many there are on an interface of the calling thread's net namespace.

    hook: "ingress" or "egress". Raises OSError; a kernel without tcx has none.
    """
    number = BPF.get(platform.machine())
    if number is None:
        return 0
    asked = _Query(target_ifindex=ifindex, attach_type=ATTACH_TYPE[hook])
    if _LIBC.syscall(number, BPF_PROG_QUERY, ctypes.byref(asked), ctypes.sizeof(asked)):
        code = ctypes.get_errno()
        if code in (errno.EINVAL, errno.ENOSYS, errno.ENOENT, errno.ENODEV):
            return 0  # a kernel from before tcx, without bpf(2), nothing attached, no interface
        raise OSError(code, f"BPF programs of tcx cannot be listed: {os.strerror(code)}")
    return int(asked.count)
