"""Our BPF sources as bcc takes them: one text, for one kernel. Pure.

bpf/loader.bpf.h has the macros by which a source compiles both ways. What they cannot do is
done here: the kernel's structures are written with their members where this kernel has them,
functions that the verifier looks at by themselves become programs of their own, which
nodeagent/encode/bpf_link.py puts together again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from nodeagent.encode.btf_layout import Layout

PRESET_MARK = 0x46430000
CALL_MARK = 0x46440000
ARGUMENT_MARK = 0x46450000
"""Functions that do not exist: numbers that the linker finds again in the instructions."""

FLAVOURS = {"x86_64": "x86", "aarch64": "arm64"}
"""Architectures, and how the flavours of structures are called that only they have."""

_PUSH = "#pragma clang attribute push"
_POP = "#pragma clang attribute pop"
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_STRUCT = re.compile(r"struct\s+(\w+)\s*\{([^{}]*)\}\s*;")
_DECLARATION = re.compile(r"\s*((?:const\s+|unsigned\s+|struct\s+)*\w+)\s+([^;]+);")
_NAME = re.compile(r"\w+")
_INCLUDE = re.compile(r'^#include "([\w.]+)"$', re.MULTILINE)
_SUBPROG = re.compile(r"^FC_SUBPROG_(\d)\(([^)]*)\)$", re.MULTILINE)
_PRESET = re.compile(r"\bFC_PRESET\((\w+)\)")
_EXISTS = re.compile(r"\bFC_EXISTS\((\w+),\s*(\w+)\)")


@dataclass(frozen=True)
class Member:
    """A member as it is declared: `struct file **fd`."""

    name: str
    text: str


@dataclass(frozen=True)
class Subprogram:
    """A function of its own. parameters: empty for a number, else what it points to."""

    name: str
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """One text with all that it includes, and what it needs from the kernel and the linker."""

    text: str
    structs: Mapping[str, tuple[Member, ...]]
    optional: frozenset[tuple[str, str]]
    """(structure, member) that the program itself asks for by FC_EXISTS."""
    subprograms: tuple[Subprogram, ...]
    presets: tuple[str, ...]

    def wanted(self, arch: str) -> dict[str, tuple[str, ...]]:
        """Structures and members by their names in the kernel, for btf_layout.layouts().

        arch: uname -m; flavours of another architecture are left out.
        """
        found: dict[str, tuple[str, ...]] = {}
        for name, members in self.structs.items():
            flavour = name.partition("___")[2]
            if flavour in FLAVOURS.values() and FLAVOURS.get(arch) != flavour:
                continue
            found[kernel_name(name)] = (
                *found.get(kernel_name(name), ()),
                *(member.name for member in members),
            )
        return found


def kernel_name(name: str) -> str:
    """A flavour of a structure is one structure in the kernel: pt_regs___x86."""
    return name.partition("___")[0]


def flatten(name: str, files: Mapping[str, str]) -> Source:
    """Put a source and our headers together. Raises KeyError for a header that is not there,
    ValueError for a structure that is not understood."""
    text = _included(name, files, set())
    structs: dict[str, tuple[Member, ...]] = {}
    parts = text.split(_PUSH)
    for part in parts[1:]:
        block, found, _ = part.partition(_POP)
        if not found:
            raise ValueError("a push of attributes without its pop")
        structs |= _structs(block)
    return Source(
        text=text,
        structs=structs,
        optional=frozenset(_EXISTS.findall(text)),
        subprograms=tuple(_subprogram(found) for found in _SUBPROG.finditer(text)),
        presets=tuple(n for n in _PRESET.findall(text) if n != "name"),
    )


def _included(name: str, files: Mapping[str, str], seen: set[str]) -> str:
    seen.add(name)

    def put_in(found: re.Match[str]) -> str:
        return "" if found[1] in seen else _included(found[1], files, seen)

    return _INCLUDE.sub(put_in, files[name])


def _structs(block: str) -> dict[str, tuple[Member, ...]]:
    """The first line is the rest of the pragma."""
    text = _COMMENT.sub("", block.partition("\n")[2])
    found = {m[1]: _members(m[1], m[2]) for m in _STRUCT.finditer(text)}
    rest = _STRUCT.sub("", text)
    rest = re.sub(r"typedef struct \{[^{}]*\} \w+;|struct \w+;", "", rest)
    if rest.strip():
        raise ValueError(f"not understood among the kernel's structures: {rest.strip()[:80]!r}")
    return found


def _members(struct: str, body: str) -> tuple[Member, ...]:
    found = []
    for declaration in _DECLARATION.finditer(body):
        for one in declaration[2].split(","):
            name = _NAME.search(one)
            if name is None:
                raise ValueError(f"struct {struct}: a member without a name")
            found.append(Member(name[0], f"{declaration[1]} {one.strip()}"))
    if _DECLARATION.sub("", body).strip():
        raise ValueError(f"struct {struct} is not understood: {body.strip()[:80]!r}")
    return tuple(found)


def _subprogram(found: re.Match[str]) -> Subprogram:
    _, name, *rest = (part.strip() for part in found[2].split(","))
    types = rest[::2]
    if len(types) != int(found[1]) or len(rest) != 2 * len(types):
        raise ValueError(f"{name} has other than {found[1]} parameters")
    pointers = (re.match(r"(?:const )?(struct \w+) \*$", kind) for kind in types)
    return Subprogram(name, tuple(match[1] if match else "" for match in pointers))


# --- the text ---------------------------------------------------------------------


def render(source: Source, kernel: Mapping[str, Layout], maps: tuple[str, ...]) -> str:
    """The text for bcc. Raises ValueError with what this kernel's structures lack."""
    head = ["#define FC_BCC 1"]
    head += [f"#define FC_MAP_{name} {index}" for index, name in enumerate(maps)]
    head += [
        f"#define FC_PRESET_{name} {PRESET_MARK + index}"
        for index, name in enumerate(source.presets)
    ]
    head += [_has(source, kernel, name, m.name) for name, ms in source.structs.items() for m in ms]
    blocks = source.text.split(_PUSH)
    text = blocks[0]
    for block in blocks[1:]:
        inside, _, after = block.partition(_POP)
        text += _laid_out(inside.partition("\n")[2], source, kernel) + after
    numbers = {one.name: CALL_MARK + at for at, one in enumerate(source.subprograms)}
    text = _SUBPROG.sub(lambda found: _own_program(found, numbers), text)
    sizes = sorted({to for one in source.subprograms for to in one.parameters if to})
    text += "".join(
        f"\nint {size_function(to)}(void *ctx)\n{{\n\treturn sizeof({to});\n}}\n" for to in sizes
    )
    return "\n".join((*head, text))


def size_function(pointed: str) -> str:
    """The function that returns the size of what a parameter points to."""
    return "fc_size_" + pointed.replace("struct ", "")


def _has(source: Source, kernel: Mapping[str, Layout], name: str, member: str) -> str:
    layout = kernel.get(kernel_name(name))
    has = layout is not None and member in layout.offsets
    return f"#define FC_HAS_{name}_{member} {int(has)}"


def _laid_out(block: str, source: Source, kernel: Mapping[str, Layout]) -> str:
    def lay_out(found: re.Match[str]) -> str:
        name = found[1]
        layout = kernel.get(kernel_name(name)) or Layout(8, {})
        lines = []
        for member in source.structs[name]:
            if member.name not in layout.offsets and not _may_lack(source, name, member.name):
                raise ValueError(f"this kernel's struct {name} has no {member.name}")
            at = layout.offsets.get(member.name, 0)
            lines.append(
                f"\t\tstruct {{ unsigned char fc_{member.name}[{at}]; {member.text}; }} "
                "__attribute__((packed));"
            )
        lines.append(f"\t\tunsigned char fc_all[{layout.size}];")
        return "\n".join((f"struct {name} {{", "\tunion {", *lines, "\t};", "};"))

    return _STRUCT.sub(lay_out, _COMMENT.sub("", block))


def _may_lack(source: Source, name: str, member: str) -> bool:
    """Structures that the program itself asks about, of another architecture, and fillers."""
    asked = {struct for struct, _ in source.optional}
    return name in asked or "___" in name or member == "unused"


def _own_program(found: re.Match[str], numbers: Mapping[str, int]) -> str:
    """A program that takes its further arguments, first of all, from their registers."""
    result, name, *rest = (part.strip() for part in found[2].split(","))
    types, names = rest[::2], rest[1::2]
    parameters = ", ".join(f"{t} {n}" for t, n in zip(types, names, strict=True))
    more = range(2, len(types) + 1)
    passed = ", ".join(f"({t})fc_{at}" for at, t in enumerate(types, 1))
    lines = [
        f"static __always_inline {result} {name}_body({parameters});",
        f"static {result} (*{name})({', '.join(types)}) = (void *){numbers[name]:#x};",
        f"{result} {name}_sub(void *fc_first)",
        "{",
        "\t__u64 fc_1 = (__u64)fc_first;",
    ]
    lines += [f"\t__u64 fc_{at} = ((__u64 (*)(void)){ARGUMENT_MARK + at:#x})();" for at in more]
    lines += [f"\treturn {name}_body({passed});", "}", ""]
    return "\n".join((*lines, f"static __always_inline {result} {name}_body({parameters})"))
