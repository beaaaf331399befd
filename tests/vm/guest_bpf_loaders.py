"""In a lab node: load what each BPF loader is said to load, and say how that went, as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from nodeagent import bcc_child
from nodeagent.backends.bcc import kernel_headers, source_files
from nodeagent.backends.bpf_object import BTF_VMLINUX
from nodeagent.backends.syscall_bpf import SyscallHooks
from nodeagent.encode.bpf_source import flatten
from nodeagent.encode.btf_layout import Layout, layouts
from nodeagent.encode.kernel_probe import PRIVATE
from nodeagent.encode.syscall_maps import Way
from nodeagent.facts import read_facts
from nodeagent.faults._loaders import matrix
from nodeagent.model.errors import FaultError

PLACES = {
    "bpf-fmod-ret": (Way.MODRET, "__x64_sys_getpriority"),
    "bpf-kprobe": (Way.ENTRY, "__x64_sys_read"),
    "bpf-lsm": (Way.LSM, "file_permission"),
}


def tried(loader: str, rung: str) -> dict[str, Any]:
    """Load one rung's program; nothing is attached."""
    way, function = PLACES[rung]
    begin = time.monotonic()
    try:
        SyscallHooks(loader).load(way, function, 0)
    except (FaultError, OSError) as exc:
        return {"works": False, "why": str(exc)}
    return {"works": True, "seconds": round(time.monotonic() - begin, 1)}


def loaders() -> dict[str, Any]:
    """The matrix as it is said, and as it is."""
    said = matrix(read_facts("test"))
    return {
        loader: {
            rung: {"missing": reason, **(tried(loader, rung) if rung in PLACES else {})}
            for rung, reason in rungs.items()
        }
        for loader, rungs in said.items()
    }


def both_layouts() -> dict[str, Any]:
    """Members of the kernel's structures by its headers (in a child), and by its BTF."""
    if len(sys.argv) > 2:
        bcc_child.own_tmp()
        wanted = flatten("syscall_kprobe.bpf.c", source_files()).wanted("x86_64")
        found = bcc_child.layouts_of_headers(kernel_headers(), Path("/tmp/headers"), wanted)
        return shown(found)
    argv = [sys.executable, __file__, "both_layouts", "headers"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    wanted = flatten("syscall_kprobe.bpf.c", source_files()).wanted("x86_64")
    btf = layouts(BTF_VMLINUX.read_bytes(), wanted)
    return {
        "headers": json.loads(done.stdout),
        "btf": shown({name: one for name, one in btf.items() if name not in PRIVATE}),
    }


def shown(found: dict[str, Layout]) -> dict[str, Any]:
    """As JSON data; fillers apart."""
    return {
        name: {"size": one.size, **{m: at for m, at in one.offsets.items() if m != "unused"}}
        for name, one in found.items()
    }


if __name__ == "__main__":
    print(json.dumps({"loaders": loaders, "both_layouts": both_layouts}[sys.argv[1]]()))
