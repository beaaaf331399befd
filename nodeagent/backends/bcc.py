"""The second loader: our sources, compiled by bcc on the node, and loaded by ourselves.

A child compiles (nodeagent/bcc_child.py) and ends; what it gives back is kept, so that each
source is compiled once in an agent's life. Linking is nodeagent/encode/bpf_link.py.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nodeagent.backends.bpf_loader import Want
from nodeagent.backends.bpf_object import BTF_VMLINUX, OBJECTS, last_words
from nodeagent.backends.libbpf import (
    LOG_LIMIT,
    BpfMap,
    VerifierRejected,
    check,
    errno_of,
    lib,
    strerror,
)
from nodeagent.encode.bpf_link import Linked, link, returned_constant
from nodeagent.encode.bpf_source import Source, flatten, size_function
from nodeagent.model.bpf import BY_EITHER, WITHOUT_BTF
from nodeagent.model.errors import BackendError, FaultError, Refused

COMPILE_TIMEOUT_S = 600.0
"""A second natively; minutes under emulation."""

LICENSE = b"Dual MIT/GPL"
KHEADERS = Path("/sys/kernel/kheaders.tar.xz")
_TYPES = {"kprobe": (2, 0), "raw_tp": (17, 0), "fmod_ret": (26, 26), "lsm": (29, 27)}
"""enum bpf_prog_type, enum bpf_attach_type."""


class _LoadOpts(ctypes.Structure):
    """struct bpf_prog_load_opts of libbpf 1.0; later ones only got longer."""

    _fields_ = [
        ("sz", ctypes.c_size_t),
        ("attempts", ctypes.c_int),
        ("expected_attach_type", ctypes.c_int),
        ("prog_btf_fd", ctypes.c_uint32),
        ("prog_flags", ctypes.c_uint32),
        ("prog_ifindex", ctypes.c_uint32),
        ("kern_version", ctypes.c_uint32),
        ("attach_btf_id", ctypes.c_uint32),
        ("attach_prog_fd", ctypes.c_uint32),
        ("attach_btf_obj_fd", ctypes.c_uint32),
        ("fd_array", ctypes.c_void_p),
        ("func_info", ctypes.c_void_p),
        ("func_info_cnt", ctypes.c_uint32),
        ("func_info_rec_size", ctypes.c_uint32),
        ("line_info", ctypes.c_void_p),
        ("line_info_cnt", ctypes.c_uint32),
        ("line_info_rec_size", ctypes.c_uint32),
        ("log_level", ctypes.c_uint32),
        ("log_size", ctypes.c_uint32),
        ("log_buf", ctypes.c_void_p),
    ]


def kernel_headers() -> str:
    """Where this kernel's headers are: a folder, an archive, or empty."""
    folder = Path("/lib/modules", platform.release())
    for name in ("source", "build"):
        if (folder / name / "include/linux/kconfig.h").is_file():
            return str(folder / name)
    return str(KHEADERS) if KHEADERS.is_file() else ""


def source_files(folder: Path = OBJECTS) -> dict[str, str]:
    """Our sources, which lie beside the objects. Raises OSError."""
    return {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.bpf.[ch]")}


class BccLoader:
    """Compiles by demand, or before it; safe from any thread."""

    name = "bcc"

    def __init__(self, maps: Mapping[str, BpfMap], btf: Path = BTF_VMLINUX) -> None:
        self._maps = maps
        self._btf = btf
        self._lock = threading.Lock()
        self._layouts: dict[str, Any] = {}
        self._compiled: dict[str, tuple[Source, dict[str, bytes]]] = {}

    def load(self, want: Want) -> int:
        """See Loader."""
        source, programs = self._programs(want.object)
        try:
            sizes = {
                to: returned_constant(programs[size_function(to)])
                for one in source.subprograms
                for to in one.parameters
                if to
            }
            fds = [found.fd for found in self._maps.values()]
            linked = link(
                want.program, programs, source.subprograms, sizes, fds, want.presets
            )  # fmt: skip
        except (KeyError, ValueError) as exc:
            raise BackendError(f"{want.program} cannot be linked", str(exc)) from exc
        return _load(want, linked)

    def prepare(self) -> None:
        """Compile everything now: a compilation takes seconds, which no mutation should wait
        for. What cannot be compiled is said when it is asked for."""
        for name in sorted(BY_EITHER if self._btf.exists() else WITHOUT_BTF):
            with suppress(FaultError):
                self._programs(name)

    def compile(self, name: str) -> None:
        """See Loader."""
        self._programs(name)

    def _programs(self, name: str) -> tuple[Source, dict[str, bytes]]:
        done = self._compiled.get(name)
        if done is not None:
            return done  # another one may be under way for minutes
        with self._lock:
            if name not in self._compiled:
                self._compiled[name] = self._compile(name)
            return self._compiled[name]

    def _compile(self, name: str) -> tuple[Source, dict[str, bytes]]:
        what = f"the BPF source {name} cannot be compiled"
        try:
            files = source_files()
            source = flatten(f"{name}.bpf.c", files)
        except (OSError, KeyError, ValueError) as exc:
            raise BackendError(what, f"{exc}", "make bpf") from exc
        request = {
            "source": f"{name}.bpf.c",
            "files": files,
            "maps": list(self._maps),
            "btf": str(self._btf) if self._btf.exists() else "",
            "headers": kernel_headers(),
            "layouts": self._layouts,
        }
        answer = _compile(what, request)
        self._layouts = answer["layouts"]
        return source, {name: bytes.fromhex(code) for name, code in answer["programs"].items()}


def _compile(what: str, request: dict[str, Any]) -> dict[str, Any]:
    """Run the child. Raises VerifierRejected with the compiler's first error, BackendError."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "nodeagent.bcc_child"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=COMPILE_TIMEOUT_S,
            check=False,
            cwd=Path(__file__).parents[2],
        )
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired as exc:
        raise BackendError(what, f"bcc has not ended within {COMPILE_TIMEOUT_S:.0f} s") from exc
    except (OSError, ValueError) as exc:
        raise BackendError(what, f"its process ended without an answer: {exc}") from exc
    if "error" in answer:
        raise VerifierRejected(what, answer["error"], answer["log"] or done.stderr)
    found: dict[str, Any] = answer
    return found


def _load(want: Want, linked: Linked) -> int:
    kind, attach = _TYPES[want.kind]
    aim = 0
    if want.function:
        aim = lib().libbpf_find_vmlinux_btf_id(want.function.encode(), attach)
        if aim < 0:
            why = f"failed to find kernel BTF type of {want.function}: {strerror(-aim)}"
            raise VerifierRejected(f"{want.program} cannot be loaded", why, why)
    btf = check(lib().bpf_btf_load(linked.btf, len(linked.btf), None), "load BTF")
    try:
        return _verified(want, linked, (kind, attach, aim, btf))
    finally:
        os.close(btf)  # the program holds it


def _verified(want: Want, linked: Linked, how: tuple[int, int, int, int]) -> int:
    kind, attach, aim, btf = how
    info = ctypes.create_string_buffer(linked.func_info, len(linked.func_info))
    opts = _LoadOpts(
        sz=ctypes.sizeof(_LoadOpts),
        expected_attach_type=attach,
        attach_btf_id=aim,
        prog_btf_fd=btf,
        func_info=ctypes.addressof(info),
        func_info_cnt=len(linked.func_info) // 8,
        func_info_rec_size=8,
    )
    log = ctypes.create_string_buffer(LOG_LIMIT)

    def attempt() -> int:
        code, count = linked.instructions, len(linked.instructions) // 8
        name = want.program.encode()[:15]
        result = int(lib().bpf_prog_load(kind, name, LICENSE, code, count, ctypes.byref(opts)))
        return result if result >= 0 else -errno_of(result)

    fd = attempt()
    if fd >= 0:
        return fd
    opts.log_level, opts.log_size, opts.log_buf = 1, LOG_LIMIT, ctypes.addressof(log)
    again = attempt()  # for the verifier's words; a log that is too long is an error of its own
    if again >= 0:
        return again
    text = log.value.decode(errors="replace")
    what = f"the BPF program {want.program} cannot be loaded"
    if -fd in (errno.EPERM, errno.EACCES) and not text:
        raise Refused(what, "the kernel denies bpf()", "run the agent as root, without lockdown")
    raise VerifierRejected(what, f"{strerror(-fd)}: {last_words(text)}", text)
