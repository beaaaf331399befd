"""Predicates over arguments: the language, and the BPF interpreter against its reference."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nodeagent.encode import predicate as p
from nodeagent.encode.predicate_code import MAX_TESTS, SIZE, check, compile_when
from nodeagent.encode.syscall_args import WIDTHS, arguments, constant
from nodeagent.encode.syscall_constants import CONSTANTS
from nodeagent.encode.syscalls import Call, expand, table

BPF = Path(__file__).parents[3] / "bpf"
READ, OPENAT, LSEEK, MKDIR = (table()[n] for n in ("read", "openat", "lseek", "mkdir"))
# So that every type of argument is met: int, pointer, size_t; loff_t, unsigned; umode_t.
MIXED = (READ, LSEEK, MKDIR)

NATIVE = r"""
#include <string.h>
typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#include "when.bpf.h"
int holds(const void *when, const __u64 *raw)
{
	struct fc_when one;
	struct fc_arguments arguments;
	memcpy(&one, when, sizeof(one));
	memcpy(arguments.value, raw, sizeof(arguments.value));
	return fc_when_holds(&one, &arguments);
}
"""

Interpreter = Callable[[bytes, tuple[int, ...]], int]


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Interpreter:
    """The program's own C code, compiled for this machine."""
    out = tmp_path_factory.mktemp("when") / "when.so"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", f"-I{BPF}", "-x", "c", "-"]
    subprocess.run(["gcc", *flags, "-o", out], input=NATIVE.encode(), check=True, timeout=60)
    holds = ctypes.CDLL(str(out)).holds
    return lambda code, raw: int(holds(code, (ctypes.c_uint64 * 6)(*raw)))


def as_kernel(call: Call, raw: tuple[int, ...]) -> dict[str, int]:
    """What the kernel takes registers for."""
    found = {}
    for argument in arguments(call.name):
        bits = {0: 64, 1: 64, 2: 32, 3: 32, 4: 16}[argument.width]
        value = raw[argument.index] & (1 << bits) - 1
        if argument.width in (1, 3) and value >> (bits - 1):
            value -= 1 << bits
        found[argument.name] = value
    return found


EDGES = (0, 1, 2, 4095, 4096, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 32, (1 << 63) - 1, 1 << 63,
         (1 << 64) - 1)  # fmt: skip
REGISTERS = st.tuples(*[st.sampled_from(EDGES) | st.integers(0, (1 << 64) - 1)] * 6)
NUMBERS = st.sampled_from((-1, -2, -(1 << 31), -(1 << 63), *EDGES)) | st.integers(-9, 9)


def predicates(call: Call) -> st.SearchStrategy[str]:
    """Texts of predicates that name arguments of a call, some of them too long."""
    names = st.sampled_from([a.name for a in arguments(call.name)])
    values = names | NUMBERS.map(str) | st.sampled_from(("O_DIRECT", "AT_FDCWD", "0x1f", "0644"))
    masks = st.lists(values, min_size=1, max_size=3).map(" & ".join)
    compared = st.tuples(masks, st.sampled_from(p.COMPARISONS), masks).map(" ".join)
    return st.recursive(
        compared | masks,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(("&&", "||")), inner).map(" ".join),
            inner.map(lambda text: f"!({text})"),
            inner.map(lambda text: f"({text})"),
        ),
        max_leaves=MAX_TESTS + 2,
    )


CASES = st.sampled_from(MIXED).flatmap(
    lambda call: st.tuples(st.just(call), predicates(call), st.lists(REGISTERS, min_size=3))
)


@settings(max_examples=150, deadline=None)
@example((READ, "fd == -1", [(0xFFFFFFFF, 0, 0, 0, 0, 0)]))
@example((READ, "fd < count", [(0xFFFFFFFF, 0, 0, 0, 0, 0), ((1 << 32) - 2, 0, 1 << 63, 0, 0, 0)]))
@example((LSEEK, "offset & -1 < 0 && !(fd)", [(0, 1 << 63, 0, 0, 0, 0)]))
@given(CASES)
def test_the_programs_decide_as_the_language_means(
    interpreter: Interpreter, case: tuple[Call, str, list[tuple[int, ...]]]
) -> None:
    call, text, samples = case
    try:
        tree = check(text, (call,))
    except p.PredicateError as exc:
        assert any(word in exc.why for word in ("more than", "names no argument")), exc
        return
    code = compile_when(text, call, "x86_64")
    assert len(code) == SIZE
    for raw in samples:
        values = {**CONSTANTS, **as_kernel(call, raw)}
        assert interpreter(code, raw) == bool(p.evaluate(tree, values)), raw


@given(st.text(max_size=60) | st.text("fdcount0123456789<>=!&|()- x'\"\n", max_size=60))
def test_whatever_is_written_is_taken_or_refused_with_its_column(text: str) -> None:
    try:
        tree = p.parse(text)
    except p.PredicateError as exc:
        assert 0 <= exc.at <= len(text)
        what, shown, caret = str(exc).split("\n")[-3:]
        assert what
        assert caret.index("^") <= len(shown)
    else:
        assert isinstance(tree, p.Compare | p.Both | p.Not)


@given(predicates(READ))
def test_the_columns_of_names_are_theirs(text: str) -> None:
    for name in p.names(p.parse(text)):
        assert text[name.at :].startswith(name.name)


@pytest.mark.parametrize(
    ("text", "why", "at"),
    [
        ("", "a value is missing", 0),
        ("cuont > 1", "cuont is no argument of read (its arguments: fd, buf, count)", 0),
        ("fd > 1 && flags", "flags is no argument of read", 10),
        ("count > ", "a value is missing", 8),
        ("count = 3", "== compares", 6),
        ("(count > 1", "a closing )", 10),
        ("count > 1)", "the end is missing", 9),
        ("1 < count < 9", "join two with &&", 10),
        ("(fd > 1) > 1", "> takes numbers", 4),
        ("(fd > 1) & 3", "& takes numbers", 4),
        ("count & fd | 1", "| joins constants only", 11),
        ("count == 0x", "'0x' is no whole number", 9),
        ("count == 09", "'09' is no whole number", 9),
        ("count == 1e3", "'1e3' is no whole number", 9),
        ("count == 18446744073709551616", "more than 64 bits", 9),
        ("buf == 'x'", "arguments are numbers", 7),
        ("-count > 1", "a number is missing", 1),
        ("O_DIREKT & count", "nor a known constant", 0),
        ("1 == 1 && O_DIRECT", "names no argument", 0),
        ("count; system()", "';' means nothing here", 5),
        ("(" * 40 + "count" + ")" * 40, "nested deeper", 33),
        ("count" + " " * 1000, "more than 1000 characters", 1000),
        (" || ".join(f"count == {n}" for n in range(17)), "more than 16 comparisons", 236),
    ],
)
def test_one_error_with_its_column(text: str, why: str, at: int) -> None:
    with pytest.raises(p.PredicateError) as caught:
        check(text, (READ,))
    assert why in caught.value.why
    assert caught.value.at == at


def test_several_calls_must_all_have_the_argument() -> None:
    check("count > 1 && fd != 0", expand(("read", "pread64", "write")))
    with pytest.raises(p.PredicateError, match=r"count is no argument of readv .*vec, vlen"):
        check("count > 1", expand(("read-family",)))


def test_bits_bind_tighter_than_comparisons(interpreter: Interpreter) -> None:
    code = compile_when("flags & (O_CREAT | O_EXCL) == O_CREAT | O_EXCL", OPENAT, "x86_64")
    both = os.O_CREAT | os.O_EXCL
    for flags, answer in ((both, 1), (os.O_CREAT, 0), (both | os.O_WRONLY, 1), (0, 0)):
        assert interpreter(code, (0, 0, flags, 0, 0, 0)) == answer


def test_constants_are_the_c_librarys(interpreter: Interpreter) -> None:
    """On x86-64; arm64 has four of them elsewhere (asm/fcntl.h)."""
    compared = 0
    for name, value in CONSTANTS.items():
        for module in (os, socket, mmap, fcntl, signal):
            known = getattr(module, name, None)
            if known is not None and name != "O_LARGEFILE":  # 0 in glibc
                assert int(known) == value, name
                compared += 1
    assert compared > 80
    assert constant("O_DIRECT", "aarch64") == 0o200000
    arm, x86 = (compile_when("flags & O_DIRECT", OPENAT, arch) for arch in ("aarch64", "x86_64"))
    assert interpreter(arm, (0, 0, 0o200000, 0, 0, 0)) == 1
    assert interpreter(x86, (0, 0, 0o200000, 0, 0, 0)) == 0


def test_every_call_has_its_arguments() -> None:
    for name in table():
        found = arguments(name)
        assert len({a.name for a in found}) == len(found) <= 6
        assert not any(a.name.isupper() for a in found)
        assert {a.width for a in found} <= set(WIDTHS.values())
        if table()[name].fd:
            assert found[0].width == WIDTHS["i"], name
