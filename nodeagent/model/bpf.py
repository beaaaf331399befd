"""Which loader brings which BPF program into the kernel. Pure.

libbpf loads CO-RE objects, compiled when the package was built. bcc compiles the same sources on
the node. The programs of the block layer have callbacks and global variables, which bcc cannot
make, and are attached by BTF in any case: they always come by libbpf.
"""

from __future__ import annotations

from typing import Literal

Wanted = Literal["auto", "libbpf", "bcc"]
WANTED: tuple[Wanted, ...] = ("auto", "libbpf", "bcc")
LOADERS = ("libbpf", "bcc")
BY_EITHER = frozenset({"syscall_kprobe", "syscall_lsm", "syscall_modret", "syscall_tree"})
"""Programs that both loaders take."""

WITHOUT_BTF = frozenset({"syscall_kprobe", "syscall_tree"})
"""Of these, the ones that are attached without the kernel's BTF."""


MAPS = "syscall_maps"
"""The maps of those: no code, so that libbpf makes them on any kernel."""


def chosen_loader(wanted: str, btf: bool) -> Literal["libbpf", "bcc"]:
    """What loads the programs that both take; auto: libbpf where the kernel has BTF."""
    if wanted == "auto":
        return "libbpf" if btf else "bcc"
    return "bcc" if wanted == "bcc" else "libbpf"
