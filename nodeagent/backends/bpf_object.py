"""A compiled BPF object: open, preset constants, load, attach, listen (libbpf.so.1).

Nothing is pinned: programs, maps and links live exactly as long as this process holds their
descriptors, which the kernel opens with O_CLOEXEC.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from nodeagent.backends.libbpf import (
    SAMPLE,
    BpfMap,
    VerifierRejected,
    check,
    errno_of,
    lib,
    strerror,
)
from nodeagent.backends.libbpf import log as library_log
from nodeagent.model.errors import Refused

BTF_VMLINUX = Path("/sys/kernel/btf/vmlinux")
OBJECTS = Path(__file__).parent.parent / "bpf_objects"
MAX_SAMPLES = 4096
"""As many as the largest of our ring buffers holds."""
_ENOUGH = errno.ECANCELED
_RECURSION_MISSES = 208
"""Offset in struct bpf_prog_info (include/uapi/linux/bpf.h); u64, since 5.12."""


class BpfLink:
    """An attached program; it is detached when this is closed or the process ends."""

    def __init__(self, pointer: int) -> None:
        self._pointer: int | None = pointer
        self.fd: int = lib().bpf_link__fd(pointer)

    def close(self) -> None:
        """Detach; harmless when already done."""
        if self._pointer is not None:
            lib().bpf_link__destroy(self._pointer)
            self._pointer = None


def recursion_misses(program_fd: int) -> int:
    """How often a program was skipped, it or another being active on that CPU. Raises OSError."""
    info = (ctypes.c_uint64 * 32)()
    size = ctypes.c_uint32(ctypes.sizeof(info))
    check(lib().bpf_obj_get_info_by_fd(program_fd, info, ctypes.byref(size)), "read program info")
    return int(info[_RECURSION_MISSES // 8])


class BpfObject:
    """One compiled object: open, preset constants, load, then use its maps and programs."""

    def __init__(self, name: str, path: Path | None = None, *, relocated: bool = True) -> None:
        """Open nodeagent/bpf_objects/NAME.bpf.o. Raises Refused with what is missing.

        relocated: it has code, whose offsets come from the kernel's BTF.
        """
        self.name = name
        self._pointer: int | None = None
        path = path or OBJECTS / f"{name}.bpf.o"
        what = f"the BPF object {name} cannot be loaded"
        if not path.is_file():
            raise Refused(what, f"{path.name} is not built", "make bpf")
        if relocated and not BTF_VMLINUX.exists():
            raise Refused(what, "this kernel has no BTF (CONFIG_DEBUG_INFO_BTF)", "")
        opened: list[int | None] = []

        def open_file() -> int:
            opened.append(lib().bpf_object__open_file(os.fsencode(path), None))
            return 0 if opened[0] else -ctypes.get_errno()

        result, log = library_log.of(open_file)
        if not opened[0]:
            raise VerifierRejected(what, strerror(-result), log)
        self._pointer = opened[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _handle(self) -> int:
        if self._pointer is None:
            raise ValueError(f"the BPF object {self.name} is closed")
        return self._pointer

    def preset(self, section: str, data: bytes) -> None:
        """Set a constant section (".rodata") before load. Raises ValueError on its size."""
        size = ctypes.c_size_t()
        found = lib().bpf_object__find_map_by_name(self._handle(), section.encode())
        address = lib().bpf_map__initial_value(found, ctypes.byref(size)) if found else None
        if not address or size.value != len(data):
            raise ValueError(f"{self.name}{section} has {size.value} bytes, not {len(data)}")
        ctypes.memmove(address, data, len(data))

    def load(self) -> None:
        """Create maps, fix offsets, verify. Raises Refused without the right to, or
        VerifierRejected with the log."""
        handle = self._handle()
        result, log = library_log.of(lambda: int(lib().bpf_object__load(handle)))
        if result == 0:
            return
        what = f"the BPF object {self.name} cannot be loaded"
        if -result in (errno.EPERM, errno.EACCES) and not log.count("BEGIN PROG LOAD LOG"):
            raise Refused(
                what,
                "the kernel denies bpf() (no root, no CAP_BPF and CAP_PERFMON, or lockdown)",
                "run the agent as root; see the file /sys/kernel/security/lockdown",
            )
        raise VerifierRejected(what, f"{strerror(-result)}: {last_words(log)}", log)

    def map(self, name: str) -> BpfMap:
        """A map by name. Raises ValueError where there is none."""
        found = lib().bpf_object__find_map_by_name(self._handle(), name.encode())
        if not found:
            raise ValueError(f"{self.name} has no map {name}")
        return BpfMap(
            lib().bpf_map__fd(found),
            name,
            lib().bpf_map__key_size(found),
            lib().bpf_map__value_size(found),
        )

    def program(self, name: str) -> int:
        """A program's handle. Raises ValueError where there is none."""
        found = lib().bpf_object__find_program_by_name(self._handle(), name.encode())
        if not found:
            raise ValueError(f"{self.name} has no program {name}")
        return int(found)

    def attach(self, name: str) -> BpfLink:
        """Attach where the program's section says. Raises BackendError."""
        program, links = self.program(name), list[int | None]()

        def attach() -> int:
            links.append(lib().bpf_program__attach(program))
            return 0 if links[0] else -ctypes.get_errno()

        result, log = library_log.of(attach)
        if not links[0]:
            why = f"{strerror(-result)}: {last_words(log)}"
            raise VerifierRejected(f"the BPF program {name} cannot be attached", why, log)
        return BpfLink(links[0])

    def recursion_misses(self, name: str) -> int:
        """How often the program was skipped because it was active on that CPU already."""
        return recursion_misses(lib().bpf_program__fd(self.program(name)))

    def close(self) -> None:
        """Close programs and maps; attached links keep their program until they close."""
        if self._pointer is not None:
            lib().bpf_object__close(self._pointer)
            self._pointer = None


def last_words(log: str) -> str:
    """The line of a log that says most: the verifier's last before its statistics."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for line in reversed(lines):
        if not line.startswith(("libbpf:", "processed", "verification", "stack depth", "--")):
            return line[:200]
    return lines[-1][:200] if lines else "no log"


class RingBuffer:
    """Samples of a ring buffer map; its epoll descriptor is readable when there are some."""

    def __init__(self, source: BpfMap) -> None:
        self._samples: list[bytes] = []
        self._callback = SAMPLE(self._take)
        self._pointer: int | None = lib().ring_buffer__new(source.fd, self._callback, None, None)
        if not self._pointer:
            check(-ctypes.get_errno(), f"open ring buffer {source.name}")

    def _take(self, _context: int | None, data: int, size: int) -> int:
        self._samples.append(ctypes.string_at(data, size))
        return -_ENOUGH if len(self._samples) >= MAX_SAMPLES else 0

    def fileno(self) -> int:
        """For poll or select."""
        return int(lib().ring_buffer__epoll_fd(self._pointer))

    def consume(self) -> list[bytes]:
        """What is there now, at most MAX_SAMPLES; does not wait.

        libbpf goes on for as long as new ones come (ringbuf_process_ring, tools/lib/bpf): with
        more CPUs that fail bios than this one thread keeps up with, it would never come back.
        """
        result = int(lib().ring_buffer__consume(self._pointer))
        if result >= 0 or errno_of(result) != _ENOUGH:
            check(result, "read the ring buffer")
        samples, self._samples[:] = list(self._samples), []
        return samples

    def close(self) -> None:
        """Unmap it; harmless when already done."""
        if self._pointer:
            lib().ring_buffer__free(self._pointer)
            self._pointer = None
