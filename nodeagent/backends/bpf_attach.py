"""Attaching loaded programs by their descriptors, whoever loaded them: links that are closed.

A link detaches when its last descriptor goes, so nothing outlives the process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from pathlib import Path

from nodeagent.backends.libbpf import check, lib
from nodeagent.model.errors import BackendError

PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
"""arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h."""
PERF_FLAG_FD_CLOEXEC = 8
PERF_EVENT_IOC_ENABLE = 0x2400
BPF_PERF_EVENT = 41  # enum bpf_attach_type
KPROBES = Path("/sys/bus/event_source/devices/kprobe")
_ATTR = struct.Struct("=IIQQQQQIIQQ40x")  # struct perf_event_attr up to its version 5
_LINK_INFO = struct.Struct("=I12xI28xQ")  # type, perf_event.type, perf_event.kprobe.missed
_LINK_PERF_EVENT, _EVENT_KPROBE, _EVENT_KRETPROBE = 7, 3, 4
_LIBC = ctypes.CDLL(None, use_errno=True)


class _LinkOpts(ctypes.Structure):
    """struct bpf_link_create_opts of libbpf 1.0, its perf_event part."""

    _fields_ = [
        ("sz", ctypes.c_size_t),
        ("flags", ctypes.c_uint32),
        ("iter_info", ctypes.c_void_p),
        ("iter_info_len", ctypes.c_uint32),
        ("target_btf_id", ctypes.c_uint32),
        ("bpf_cookie", ctypes.c_uint64),
    ]


def _missed_in(info: bytes) -> int:
    """Of struct bpf_link_info (include/uapi/linux/bpf.h), zeros where it was not filled."""
    link, event, missed = _LINK_INFO.unpack_from(info)
    known = link == _LINK_PERF_EVENT and event in (_EVENT_KPROBE, _EVENT_KRETPROBE)
    return int(missed) if known else 0


class FdLink:
    """An attached program by the descriptor of its link."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    def missed(self) -> int:
        """Calls that a probe passed over; 0 where the kernel does not tell (before 6.7).

        Another probe was active on that CPU, or, at a return, more calls of the function were
        under way on the node than the kretprobe has room for (trace_kprobe_missed,
        kernel/trace/trace_kprobe.c).
        """
        info = (ctypes.c_uint64 * 16)()
        size = ctypes.c_uint32(ctypes.sizeof(info))
        if self._fd is None or lib().bpf_obj_get_info_by_fd(self._fd, info, ctypes.byref(size)):
            return 0
        return _missed_in(bytes(info))

    def close(self) -> None:
        """Detach; harmless when already done."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def attach_tracing(program_fd: int, name: str) -> FdLink:
    """Attach where the program was aimed at when it was loaded. Raises OSError."""
    return FdLink(check(lib().bpf_raw_tracepoint_open(None, program_fd), f"attach {name}"))


def attach_raw_tracepoint(program_fd: int, tracepoint: str) -> FdLink:
    """Attach to one more tracepoint. Raises OSError."""
    fd = lib().bpf_raw_tracepoint_open(tracepoint.encode(), program_fd)
    return FdLink(check(fd, f"attach to {tracepoint}"))


def attach_kprobe(program_fd: int, function: str, cookie: int, at_return: bool) -> FdLink:
    """Attach to a function's entry or return; the program reads the cookie (5.15).

    Raises BackendError with what the kernel says.
    """
    what = f"{function} cannot be probed"
    try:
        event = _open_kprobe(function, at_return)
        try:
            opts = _LinkOpts(sz=ctypes.sizeof(_LinkOpts), bpf_cookie=cookie)
            link = lib().bpf_link_create(program_fd, event, BPF_PERF_EVENT, ctypes.byref(opts))
            fd = check(link, f"attach to {function}")
            if _LIBC.ioctl(event, ctypes.c_ulong(PERF_EVENT_IOC_ENABLE), 0) < 0:
                code = ctypes.get_errno()
                os.close(fd)
                raise OSError(code, f"enable the probe: {os.strerror(code)}")
        finally:
            os.close(event)  # the link holds it
    except OSError as exc:
        raise BackendError(what, exc.strerror or str(exc)) from exc
    return FdLink(fd)


def _open_kprobe(function: str, at_return: bool) -> int:
    """A perf event on a kernel function (Documentation/trace/kprobetrace.rst). Raises OSError."""
    number = PERF_EVENT_OPEN.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"perf_event_open is not known on {platform.machine()}")
    kind = int((KPROBES / "type").read_text())
    bit = (KPROBES / "format/retprobe").read_text().strip().removeprefix("config:")
    name = ctypes.create_string_buffer(function.encode())
    config = (1 << int(bit)) if at_return else 0
    attr = _ATTR.pack(kind, _ATTR.size, config, 0, 0, 0, 0, 0, 0, ctypes.addressof(name), 0)
    fd = int(_LIBC.syscall(number, attr, -1, 0, -1, PERF_FLAG_FD_CLOEXEC))
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{function}: {os.strerror(code)}")
    return fd
