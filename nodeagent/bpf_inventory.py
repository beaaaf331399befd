"""What BPF objects a kernel holds, whoever made them: read-only, by the bpf(2) system call.

Programs, links and maps are walked by id (kernel/bpf/syscall.c, BPF_*_GET_NEXT_ID), which
needs CAP_SYS_ADMIN but neither libbpf nor bpftool. Ids are not part of the answer.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

SYSCALL = {"x86_64": 321, "aarch64": 280}
"""__NR_bpf: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h."""
_INFO_BYTES = 256
_TRACING_LINK = 2  # BPF_LINK_TYPE_TRACING, whose info has an attach type


class _Walk(NamedTuple):
    """The two commands of one class of objects (enum bpf_cmd, include/uapi/linux/bpf.h)."""

    next_id: int
    by_id: int


_PROGRAMS, _MAPS, _LINKS = _Walk(11, 13), _Walk(12, 14), _Walk(31, 30)
_INFO_BY_FD = 15


class Held(IntEnum):
    """Offsets in struct bpf_prog_info and bpf_map_info."""

    PROG_TAG = 8
    PROG_NAME = 64
    MAP_NAME = 24


_LIBC = ctypes.CDLL(None, use_errno=True)


def _bpf(command: int, attributes: bytearray) -> int:
    number = SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"bpf(2) is not known on {platform.machine()}")
    buffer = (ctypes.c_char * len(attributes)).from_buffer(attributes)
    result = int(_LIBC.syscall(number, command, buffer, len(attributes)))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"bpf command {command}: {os.strerror(code)}")
    return result


def _infos(walk: _Walk) -> Iterator[bytes]:
    """The info of every object; one that goes away meanwhile is left out."""
    ident = 0
    while True:
        attributes = bytearray(struct.pack("=III", ident, 0, 0))
        try:
            _bpf(walk.next_id, attributes)
        except OSError as exc:
            if exc.errno == errno.ENOENT:
                return
            raise
        ident = struct.unpack_from("=I", attributes, 4)[0]
        try:
            fd = _bpf(walk.by_id, bytearray(struct.pack("=III", ident, 0, 0)))
        except OSError as exc:
            if exc.errno == errno.ENOENT:
                continue
            raise
        try:
            yield _info(fd)
        finally:
            os.close(fd)


def _info(fd: int) -> bytes:
    info = ctypes.create_string_buffer(_INFO_BYTES)
    _bpf(_INFO_BY_FD, bytearray(struct.pack("=IIQ", fd, _INFO_BYTES, ctypes.addressof(info))))
    return info.raw


def _name(info: bytes, offset: int) -> str:
    return info[offset : offset + 16].split(b"\0")[0].decode(errors="replace")


def inventory() -> dict[str, list[str]]:
    """`programs`, `links` and `maps`, each a sorted list of words. Raises OSError.

    A program: its type's number, name and tag; a link: its type, attach type (tracing
    links only) and program; a map: type, name, sizes of key and value, entries.
    """
    programs: dict[int, str] = {}
    for info in _infos(_PROGRAMS):
        kind, ident = struct.unpack_from("=II", info)
        tag = info[Held.PROG_TAG : Held.PROG_TAG + 8].hex()
        programs[ident] = f"type {kind} {_name(info, Held.PROG_NAME)} tag {tag}"
    links = []
    for info in _infos(_LINKS):
        kind, _, program = struct.unpack_from("=III", info)
        attach = struct.unpack_from("=I", info, 16)[0] if kind == _TRACING_LINK else 0
        links.append(f"type {kind} attach {attach} program {programs.get(program, 'gone')}")
    maps = []
    for info in _infos(_MAPS):
        kind, _, key, value, entries = struct.unpack_from("=IIIII", info)
        maps.append(f"type {kind} {_name(info, Held.MAP_NAME)} {key}+{value} bytes x {entries}")
    return {"programs": sorted(programs.values()), "links": sorted(links), "maps": sorted(maps)}
