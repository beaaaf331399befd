"""Compiles one of our BPF sources by libbcc, in a process of its own that ends with it.

LLVM takes 100 MB of memory for good: so it never comes into the agent. What goes back are
instructions, not descriptors: the agent links and loads them itself, as often as it likes, for
as many functions. So this process needs no rights, and gives up those it has. It reads a
request (JSON) from its standard input and writes the answer to its standard output.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nodeagent.encode.bpf_source import flatten, render
from nodeagent.encode.btf_layout import Layout, layouts
from nodeagent.encode.kernel_probe import (
    Wanted,
    missing_members,
    probe_source,
    read_layouts,
    without,
)

NOBODY = 65534
MAX_LOG = 256 * 1024
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)
# As much of a kernel's headers as bcc's own headers ask for.
STUBS = {
    "include/linux/kconfig.h": "#define CONFIG_BPF_SYSCALL 1\n",
    "include/linux/version.h": "#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))\n"
    "#define LINUX_VERSION_CODE KERNEL_VERSION(6, 0, 0)\n",
    "include/linux/types.h": """\
#ifndef FC_TYPES_H
#define FC_TYPES_H
typedef signed char __s8, s8;
typedef unsigned char __u8, u8;
typedef short __s16, s16;
typedef unsigned short __u16, u16, __be16, __le16, __sum16;
typedef int __s32, s32;
typedef unsigned int __u32, u32, __be32, __le32, __wsum;
typedef long long __s64, s64;
typedef unsigned long long __u64, u64, __be64, __le64;
typedef unsigned long size_t, uintptr_t;
typedef long ssize_t;
typedef _Bool bool;
#define __aligned_u64 __u64 __attribute__((aligned(8)))
#define true 1
#define false 0
#define NULL ((void *)0)
#endif
""",
}
EMPTY = (
    "include/linux/bpf_common.h",
    "include/linux/log2.h",
    "include/asm/page.h",
    "include/uapi/linux/bpf.h",
    "include/uapi/linux/if_packet.h",
    "include/uapi/linux/ptrace.h",
)


def give_up_rights() -> None:
    """Root becomes nobody, who dies with the agent; a compiler needs no more. Raises OSError."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    parent = os.getppid()
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def own_tmp() -> None:
    """A /tmp that nobody else sees and that goes with this process, however it ends.

    Without the right to (mount(2)), the node's own is used.
    """
    if LIBC.unshare(CLONE_NEWNS) == 0:
        LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
        LIBC.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, b"mode=1777,size=256m")


def write_stubs(folder: Path) -> None:
    """A folder that bcc takes for a kernel's source. Raises OSError."""
    for name, text in {**STUBS, **dict.fromkeys(EMPTY, "")}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")


class CompileError(ValueError):
    """The compiler did not take a text; `log` has its words."""

    def __init__(self, log: str) -> None:
        first = next((line for line in log.splitlines() if "error:" in line), "no reason given")
        super().__init__(first.partition("error:")[2].strip() or first)
        self.log = log


@contextmanager
def words_of_the_compiler() -> Iterator[Callable[[], str]]:
    """Everything that is printed meanwhile; it also goes to the agent at the end."""
    with tempfile.TemporaryFile() as log:
        kept = os.dup(1), os.dup(2)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            yield lambda: os.pread(log.fileno(), MAX_LOG, 0).decode(errors="replace")
        finally:
            for fd, to in zip(kept, (1, 2), strict=True):
                os.dup2(fd, to)
                os.close(fd)


def compile_text(text: str) -> dict[str, bytes]:
    """Instructions of every function that is not static. Raises OSError, CompileError."""
    bcc = ctypes.CDLL("libbcc.so.0", use_errno=True)
    make = bcc.bpf_module_create_c_from_string
    make.restype = ctypes.c_void_p
    make.argtypes = [
        ctypes.c_char_p,
        ctypes.c_uint,
        ctypes.POINTER(ctypes.c_char_p),
        ctypes.c_int,
        ctypes.c_bool,
        ctypes.c_char_p,
    ]
    flags = (ctypes.c_char_p * 2)(b"-Wno-unused-function", b"-ferror-limit=0")
    with words_of_the_compiler() as words:
        module = make(text.encode(), 0, flags, len(flags), False, None)
        if not module:
            raise CompileError(words())
    bcc.bpf_num_functions.restype = ctypes.c_size_t
    for name, result in (
        ("bpf_function_name", ctypes.c_char_p),
        ("bpf_function_start_id", ctypes.c_void_p),
        ("bpf_function_size_id", ctypes.c_size_t),
    ):
        getattr(bcc, name).restype = result
        getattr(bcc, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    bcc.bpf_num_functions.argtypes = [ctypes.c_void_p]
    found = {}
    for at in range(bcc.bpf_num_functions(module)):
        size = bcc.bpf_function_size_id(module, at)
        code = ctypes.string_at(bcc.bpf_function_start_id(module, at), size)
        found[bcc.bpf_function_name(module, at).decode()] = code
    return found


def layouts_of_headers(headers: str, folder: Path, wanted: Wanted) -> dict[str, Layout]:
    """Ask a kernel's headers. What they lack costs a second go. Raises OSError, ValueError."""
    if headers.endswith(".tar.xz"):
        with tarfile.open(headers) as tar:
            tar.extractall(folder, filter="data")
        os.environ["BCC_KERNEL_SOURCE"] = str(folder)
    else:
        os.environ.pop("BCC_KERNEL_SOURCE", None)  # bcc finds /lib/modules by itself
    try:
        return read_layouts(wanted, compile_text(probe_source(wanted)))
    except CompileError as exc:
        missing = missing_members(exc.log)
        if not missing:
            raise
    left = without(wanted, missing)
    return read_layouts(left, compile_text(probe_source(left)))


def answer(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """From a request to instructions by function. Raises OSError, ValueError, KeyError.

    source, files: what to compile; maps: names, in the order of their numbers; layouts: what an
    earlier child found for the same structures; else btf: a file, or headers: a folder or an
    archive.
    """
    source = flatten(request["source"], request["files"])
    wanted = source.wanted(os.uname().machine)
    if request["layouts"]:
        kernel = {name: Layout(**one) for name, one in request["layouts"].items()}
    elif request["btf"]:
        kernel = layouts(Path(request["btf"]).read_bytes(), wanted)
    else:
        kernel = layouts_of_headers(request["headers"], folder / "headers", wanted)
    stubs = folder / "stubs"
    write_stubs(stubs)
    os.environ["BCC_KERNEL_SOURCE"] = str(stubs)
    programs = compile_text(render(source, kernel, tuple(request["maps"])))
    return {
        "programs": {name: code.hex() for name, code in programs.items()},
        "layouts": {name: asdict(one) for name, one in kernel.items()},
    }


def main() -> None:
    """The child's whole life."""
    request = json.load(sys.stdin)
    os.umask(0o077)
    os.environ.pop("BCC_LINUX_VERSION_CODE", None)
    own_tmp()
    give_up_rights()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libbcc also prints to standard output
    with tempfile.TemporaryDirectory(prefix="faultctl-bcc-") as folder:
        try:
            found = answer(request, Path(folder))
        except CompileError as exc:
            found = {"error": str(exc), "log": exc.log}
        except (OSError, ValueError, KeyError) as exc:
            found = {"error": f"{type(exc).__name__}: {exc}", "log": ""}
    json.dump(found, out)
    out.close()
    os._exit(0)  # nothing of LLVM has to be taken apart


if __name__ == "__main__":
    main()
