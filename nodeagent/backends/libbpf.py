"""A thin binding of libbpf.so.1 (1.1 and later): the library, its log, and maps.

Nothing is pinned: programs, maps and links live exactly as long as this process holds their
descriptors, which the kernel opens with O_CLOEXEC. The memory lock limit needs no care: since
5.11 maps are charged to the cgroup, and libbpf raises the limit by itself on older kernels.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from nodeagent.model.errors import BackendError, Refused

BPF_F_INNER_MAP = 1 << 12
BPF_MAP_TYPE_ARRAY = 2
LOG_LIMIT = 256 * 1024
MEMBARRIER = {"x86_64": 324, "aarch64": 283}
"""arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h."""
MEMBARRIER_CMD_GLOBAL = 1
PROGRAM_S = 0.05
_LIBC = ctypes.CDLL(None, use_errno=True)

_PRINT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
SAMPLE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_P, _I, _S, _U32, _Z = (
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_uint32,
    ctypes.c_size_t,
)
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "libbpf_set_print": (_P, _PRINT),
    "libbpf_strerror": (_I, _I, _P, _Z),
    "bpf_object__open_file": (_P, _S, _P),
    "bpf_object__load": (_I, _P),
    "bpf_object__close": (None, _P),
    "bpf_object__find_map_by_name": (_P, _P, _S),
    "bpf_object__find_program_by_name": (_P, _P, _S),
    "bpf_object__next_map": (_P, _P, _P),
    "bpf_object__next_program": (_P, _P, _P),
    "bpf_map__fd": (_I, _P),
    "bpf_map__key_size": (_U32, _P),
    "bpf_map__value_size": (_U32, _P),
    "bpf_map__name": (_S, _P),
    "bpf_map__reuse_fd": (_I, _P, _I),
    "bpf_map__initial_value": (_P, _P, ctypes.POINTER(_Z)),
    "bpf_program__fd": (_I, _P),
    "bpf_program__attach": (_P, _P),
    "bpf_program__set_attach_target": (_I, _P, _I, _S),
    "bpf_program__set_autoload": (_I, _P, ctypes.c_bool),
    "bpf_link__destroy": (_I, _P),
    "bpf_link__fd": (_I, _P),
    "bpf_map_create": (_I, _I, _S, _U32, _U32, _U32, _P),
    "bpf_map_update_elem": (_I, _I, _P, _P, ctypes.c_uint64),
    "bpf_map_lookup_elem": (_I, _I, _P, _P),
    "bpf_map_delete_elem": (_I, _I, _P),
    "bpf_map_get_next_key": (_I, _I, _P, _P),
    "bpf_map_update_batch": (_I, _I, _P, _P, ctypes.POINTER(_U32), _P),
    "bpf_map_lookup_batch": (_I, _I, _P, _P, _P, _P, ctypes.POINTER(_U32), _P),
    "bpf_btf_load": (_I, _P, _Z, _P),
    "bpf_link_create": (_I, _I, _I, _I, _P),
    "bpf_prog_load": (_I, _I, _S, _S, _P, _Z, _P),
    "bpf_raw_tracepoint_open": (_I, _S, _I),
    "libbpf_find_vmlinux_btf_id": (_I, _S, _I),
    "bpf_obj_get_info_by_fd": (_I, _I, _P, ctypes.POINTER(_U32)),
    "libbpf_probe_bpf_helper": (_I, _I, _I, _P),
    "ring_buffer__new": (_P, _I, SAMPLE, _P, _P),
    "ring_buffer__consume": (_I, _P),
    "ring_buffer__epoll_fd": (_I, _P),
    "ring_buffer__free": (None, _P),
}


class VerifierRejected(BackendError):
    """The kernel did not take an object; `log` has libbpf's and the verifier's words."""

    code = "backend"

    def __init__(self, what: str, why: str, log: str) -> None:
        super().__init__(what, why, "see the full log: faultctl events -o json; please report it")
        self.log = log


class _MapCreateOpts(ctypes.Structure):
    """struct bpf_map_create_opts; libbpf takes a shorter one than its own."""

    _fields_ = [
        ("sz", ctypes.c_size_t),
        ("btf_fd", _U32),
        ("btf_key_type_id", _U32),
        ("btf_value_type_id", _U32),
        ("btf_vmlinux_value_type_id", _U32),
        ("inner_map_fd", _U32),
        ("map_flags", _U32),
    ]


@cache
def lib() -> ctypes.CDLL:
    """The library. Raises Refused when it is not installed."""
    try:
        found = ctypes.CDLL("libbpf.so.1", use_errno=True)
    except OSError as exc:
        raise Refused("BPF programs cannot be loaded", str(exc), "apt-get install libbpf1") from exc
    for name, (result, *arguments) in _PROTOTYPES.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


class _Log:
    """What libbpf prints while an object is loaded: the last LOG_LIMIT bytes of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = bytearray()
        self._callback = _PRINT(self._take)
        self._buffer = ctypes.create_string_buffer(LOG_LIMIT)
        self._libc = ctypes.CDLL(None)

    def _take(self, level: int, form: bytes, arguments: int) -> int:
        # A va_list is passed as a pointer by the ABIs of x86-64 and arm64.
        if level > 1:
            return 0
        size = self._libc.vsnprintf(
            self._buffer, ctypes.c_size_t(LOG_LIMIT), form, ctypes.c_void_p(arguments)
        )
        self._text += self._buffer.raw[: min(max(size, 0), LOG_LIMIT - 1)]
        del self._text[:-LOG_LIMIT]
        return 0

    def of(self, action: Callable[[], int]) -> tuple[int, str]:
        """Run one call of the library; its result and what it printed."""
        with self._lock:
            self._text.clear()
            lib().libbpf_set_print(self._callback)
            result = action()
            return result, self._text.decode(errors="replace")


log = _Log()


def errno_of(result: int | None) -> int:
    """Errors of libbpf 1.x: a negative number, or NULL with errno set."""
    return -result if result is not None and result < 0 else ctypes.get_errno()


def strerror(code: int) -> str:
    """An errno in words; libbpf's own are from 4000 on."""
    if code < 4000:
        return os.strerror(code)
    text = ctypes.create_string_buffer(128)
    lib().libbpf_strerror(code, text, len(text))
    return text.value.decode()


def check(result: int, what: str) -> int:
    if result < 0:
        code = errno_of(result)
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def wait_for_programs() -> None:
    """Until every program that runs now has ended: each runs in an RCU read-side section.

    MEMBARRIER_CMD_GLOBAL is synchronize_rcu() (kernel/sched/membarrier.c); a kernel that does not
    take it (nohz_full) gets a pause that is long for a program.
    """
    number = MEMBARRIER.get(platform.machine())
    if number is None or _LIBC.syscall(number, MEMBARRIER_CMD_GLOBAL, 0, 0):
        time.sleep(PROGRAM_S)


def probe_helper(program_type: int, helper: int) -> bool:
    """Whether programs of a type may call a helper: a tiny one is verified. Raises OSError."""
    found, _ = log.of(lambda: int(lib().libbpf_probe_bpf_helper(program_type, helper, None)))
    return check(found, "probe a helper") > 0


class BpfMap:
    """A map by its descriptor; keys and values are bytes of exactly the map's sizes."""

    def __init__(self, fd: int, name: str, key_size: int, value_size: int) -> None:
        self.fd = fd
        self.name = name
        self.key_size = key_size
        self.value_size = value_size

    def update(self, key: bytes, value: bytes) -> None:
        """Set one element. Raises OSError."""
        if len(key) != self.key_size or len(value) != self.value_size:
            raise ValueError(f"{self.name}: key {len(key)} and value {len(value)} bytes")
        check(lib().bpf_map_update_elem(self.fd, key, value, 0), f"update {self.name}")

    def lookup(self, key: bytes) -> bytes | None:
        """The value, None where there is none. Raises OSError."""
        value = ctypes.create_string_buffer(self.value_size)
        result = lib().bpf_map_lookup_elem(self.fd, key, value)
        if result < 0 and errno_of(result) == errno.ENOENT:
            return None
        check(result, f"look up {self.name}")
        return value.raw

    def delete(self, key: bytes) -> bool:
        """Whether there was one. Raises OSError."""
        result = lib().bpf_map_delete_elem(self.fd, key)
        if result < 0 and errno_of(result) == errno.ENOENT:
            return False
        check(result, f"delete from {self.name}")
        return True

    def keys(self) -> Iterator[bytes]:
        """All keys; safe against deleting the one just given."""
        key = ctypes.create_string_buffer(self.key_size)
        following = ctypes.create_string_buffer(self.key_size)
        result = lib().bpf_map_get_next_key(self.fd, None, following)
        while result == 0:
            key.raw = following.raw
            result = lib().bpf_map_get_next_key(self.fd, key, following)
            yield key.raw

    def write_all(self, data: bytes) -> None:
        """Fill an array map from element 0 on, in one call (5.6). Raises OSError."""
        count = len(data) // self.value_size
        keys = (_U32 * count)(*range(count))
        done = _U32(count)
        check(
            lib().bpf_map_update_batch(self.fd, keys, data, ctypes.byref(done), None),
            f"fill {self.name}",
        )

    def read_all(self, count: int) -> bytes:
        """The first `count` elements of an array map, in one call. Raises OSError."""
        keys, position = (_U32 * count)(), _U32()
        values = ctypes.create_string_buffer(count * self.value_size)
        done = _U32(count)
        result = lib().bpf_map_lookup_batch(
            self.fd, None, ctypes.byref(position), keys, values, ctypes.byref(done), None
        )
        if result < 0 and errno_of(result) != errno.ENOENT:  # ENOENT: that was the end
            check(result, f"read {self.name}")
        return values.raw[: done.value * self.value_size]


def create_array(name: str, value_size: int, entries: int, flags: int) -> BpfMap:
    """A new array map of its own; close its descriptor with os.close. Raises OSError."""
    opts = _MapCreateOpts(sz=ctypes.sizeof(_MapCreateOpts), map_flags=flags)
    fd = lib().bpf_map_create(
        BPF_MAP_TYPE_ARRAY, name.encode()[:15], 4, value_size, entries, ctypes.byref(opts)
    )
    return BpfMap(check(fd, f"create map {name}"), name, 4, value_size)
