"""Where a kernel's structures have their members, from its headers: for kernels without BTF.

A source of one function a member is compiled with the kernel's own headers, and what each
function returns is read from its instructions. What is private to a part of the kernel, such as
struct mount (fs/mount.h), no headers have. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from nodeagent.encode.bpf_link import returned_constant
from nodeagent.encode.btf_layout import Layout

PRIVATE = frozenset({"mount"})
_INCLUDES = (
    "linux/sched.h",
    "linux/sched/signal.h",
    "linux/mm_types.h",
    "linux/fs.h",
    "linux/fs_struct.h",
    "linux/fdtable.h",
    "linux/mount.h",
    "linux/net.h",
    "linux/ptrace.h",
    "net/sock.h",
)
_NO_MEMBER = re.compile(r"no member named '(\w+)' in '(?:struct )?(\w+)'")

Wanted = Mapping[str, Sequence[str]]


def probe_source(wanted: Wanted) -> str:
    """The source that is compiled; fillers (`unused`) are left out."""
    lines = [f"#include <{name}>" for name in _INCLUDES]
    for struct, members in wanted.items():
        if struct in PRIVATE:
            continue
        lines.append(f"int size_of_{struct}(void *ctx) {{ return sizeof(struct {struct}); }}")
        lines += [
            f"int offset_{struct}_in_{member}(void *ctx) "
            f"{{ return __builtin_offsetof(struct {struct}, {member}); }}"
            for member in dict.fromkeys(members)
            if member != "unused"
        ]
    return "\n".join((*lines, ""))


def missing_members(log: str) -> frozenset[tuple[str, str]]:
    """(structure, member) that a compiler says are not there."""
    return frozenset((struct, member) for member, struct in _NO_MEMBER.findall(log))


def without(wanted: Wanted, missing: frozenset[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """What is left to ask for."""
    return {
        struct: tuple(m for m in members if (struct, m) not in missing)
        for struct, members in wanted.items()
    }


def read_layouts(wanted: Wanted, programs: Mapping[str, bytes]) -> dict[str, Layout]:
    """From the compiled source. Raises ValueError, KeyError for what is not in it."""
    return {
        struct: Layout(
            returned_constant(programs[f"size_of_{struct}"]),
            {
                member: returned_constant(programs[f"offset_{struct}_in_{member}"])
                for member in members
                if member != "unused"
            },
        )
        for struct, members in wanted.items()
        if struct not in PRIVATE
    }
