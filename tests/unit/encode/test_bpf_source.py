"""Our BPF sources made ready for bcc, and where a kernel's structures have their members."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from nodeagent.encode.bpf_source import Subprogram, flatten, render
from nodeagent.encode.btf_layout import Layout, layouts

BPF = Path(__file__).parents[3] / "bpf"
FILES = {path.name: path.read_text() for path in BPF.glob("*.bpf.[ch]")}
SOURCES = sorted(name for name in FILES if name.startswith("syscall_") and name.endswith(".c"))
VMLINUX = Path("/sys/kernel/btf/vmlinux")

LITTLE = {
    "a.bpf.c": '#include "b.bpf.h"\nint program(void *ctx)\n{\n\treturn twice(1, 0);\n}\n',
    "b.bpf.h": """\
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct one {
	int a; /* the first */
	struct two *b;
};
typedef struct {
	int counter;
} atomic_t;
struct three___old {
	unsigned long x, y[4];
};
#pragma clang attribute pop
FC_PRESET(fc_number);
struct fc_thing {
	int b;
};
FC_SUBPROG_2(int, twice, __u64, x, struct fc_thing *, thing)
{
	return FC_EXISTS(three___old, y) ? x : 2 * x;
}
""",
}


def test_a_source_is_taken_apart() -> None:
    found = flatten("a.bpf.c", LITTLE)
    assert {name: [m.name for m in members] for name, members in found.structs.items()} == {
        "one": ["a", "b"],
        "three___old": ["x", "y"],
    }
    assert found.wanted("x86_64") == {"one": ("a", "b"), "three": ("x", "y")}
    assert found.optional == {("three___old", "y")}
    assert found.presets == ("fc_number",)
    assert found.subprograms == (Subprogram("twice", ("", "struct fc_thing")),)


def test_members_lie_where_the_kernel_has_them(tmp_path: Path) -> None:
    kernel = {"one": Layout(40, {"a": 12, "b": 32}), "three": Layout(64, {"x": 8})}
    text = render(flatten("a.bpf.c", LITTLE), kernel, ("fc_map",))
    assert "#define FC_MAP_fc_map 0" in text
    assert "#define FC_HAS_three___old_y 0" in text
    assert "#define FC_HAS_three___old_x 1" in text
    assert "int twice_sub(void *fc_first)" in text
    structs = "".join(re.findall(r"^struct (?:one|three___old) \{.*?^\};\n", text, re.M | re.S))
    checks = {"sizeof(struct one)": 40, "__builtin_offsetof(struct one, a)": 12,
              "__builtin_offsetof(struct one, b)": 32, "sizeof(struct three___old)": 64,
              "__builtin_offsetof(struct three___old, x)": 8}  # fmt: skip
    lines = [f'_Static_assert({what} == {value}, "");' for what, value in checks.items()]
    source = tmp_path / "t.c"
    source.write_text(structs + "\n".join(lines))
    subprocess.run(["gcc", "-fsyntax-only", source], check=True, timeout=60)


def test_a_member_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="struct one has no b"):
        render(flatten("a.bpf.c", LITTLE), {"one": Layout(8, {"a": 0})}, ())
    with pytest.raises(ValueError, match="not understood"):
        flatten("x", {"x": "#pragma clang attribute push\nunion u { int a; };\n"
                           "#pragma clang attribute pop\n"})  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_our_sources_are_understood(name: str) -> None:
    """What is not written with the macros of loader.bpf.h would compile one way only."""
    source = flatten(name, FILES)
    assert source.structs.keys() >= {"task_struct", "file", "pt_regs___x86"}
    kernel = {
        kernel: Layout(4096, {m: 8 * n for n, m in enumerate(members)})
        for kernel, members in source.wanted("x86_64").items()
    }
    text = render(source, kernel, ())
    assert "preserve_access_index" not in text
    ours = ("syscall.bpf.h", "syscall_match.bpf.h", "syscall_net.bpf.h", "when.bpf.h")
    own = "".join(FILES[n] for n in (name, *ours))
    odd = re.findall(
        r"__noinline|BPF_PROG\(|bpf_core_(?:field|type|enum)\w*|_elem\(&\w+|bpf_loop\(|"
        r"SEC\(\"\.(?:rodata|bss|data)[^)]*\)",
        own,
    )
    assert not odd


def test_all_sources_ask_for_the_same_structures() -> None:
    """What the first compilation found serves the others (nodeagent/bcc_child.py)."""
    first, *others = (flatten(name, FILES).wanted("x86_64") for name in SOURCES)
    assert len(others) == 4
    assert others == [first] * 4


# --- the kernel's own types -----------------------------------------------------------


def test_what_is_no_btf_is_said() -> None:
    header = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, 12, 12, 1)
    for data, words in (
        (b"", "shorter"),
        (b"\0" * 64, "starts with"),
        (header + struct.pack("=III", 0, 31 << 24, 0) + b"\0", "unknown kind 31"),
        (header + struct.pack("=III", 0, 4 << 24 | 1, 0) + b"\0", "in the middle"),
    ):
        with pytest.raises(ValueError, match=words):
            layouts(data, {"x": ()})


@pytest.mark.skipif(
    not VMLINUX.exists() or shutil.which("pahole") is None, reason="no BTF here, or no pahole"
)
def test_this_kernels_layout_is_what_pahole_says() -> None:
    wanted = flatten("syscall_lsm.bpf.c", FILES).wanted("x86_64")
    found = layouts(VMLINUX.read_bytes(), wanted)
    assert len(found) > 15
    for name in ("task_struct", "dentry", "inode", "sock_common", "file", "pt_regs", "mount"):
        argv = ["pahole", "-C", name, str(VMLINUX)]
        text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        assert f"/* size: {found[name].size}," in text
        for member, offset in found[name].offsets.items():
            pattern = rf"\b{member}(?:\[[^;]*)?;\s*/\*\s*{offset}\s+\d+ \*/"
            assert re.search(pattern, text), (name, member, offset)
