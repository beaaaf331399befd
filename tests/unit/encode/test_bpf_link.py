"""Linking what bcc compiles: run on a small machine of the same instructions."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.encode.bpf_link import Linked, link, returned_constant
from nodeagent.encode.bpf_source import ARGUMENT_MARK, CALL_MARK, PRESET_MARK, Subprogram
from nodeagent.encode.btf_layout import layouts

CALLER = "struct fc_caller"
ADD = Subprogram("add", ("", "", CALLER))
TWICE = Subprogram("twice", ("",))
SIZES = {CALLER: 24}


def insn(opcode: int, dst: int = 0, src: int = 0, imm: int = 0, off: int = 0) -> bytes:
    return struct.pack("=BBhi", opcode, src << 4 | dst, off, imm)


def mov(dst: int, src: int) -> bytes:
    return insn(0xBF, dst, src)


def imm(dst: int, value: int) -> bytes:
    return insn(0xB7, dst, imm=value)


def add(dst: int, src: int) -> bytes:
    return insn(0x0F, dst, src)


def call(mark: int) -> bytes:
    return insn(0x85, imm=mark)


def wide(dst: int, src: int, low: int) -> bytes:
    return insn(0x18, dst, src, low) + insn(0)


EXIT = insn(0x95)
# As bcc leaves it: r1 is kept, then the further arguments are asked for.
ADD_CODE = (
    mov(6, 1) + call(ARGUMENT_MARK + 2) + mov(7, 0) + call(ARGUMENT_MARK + 3) + mov(8, 0)
    + mov(0, 6) + add(0, 7) + add(0, 8) + EXIT
)  # fmt: skip
TWICE_CODE = (
    mov(6, 1) + mov(2, 6) + imm(3, 0) + call(CALL_MARK) + EXIT  # add(x, x, 0)
)  # fmt: skip


def run(code: bytes, at: int = 0, registers: list[int] | None = None) -> int:
    """What a program returns; calls keep r6 to r9, as the kernel's do."""
    r = registers or [0] * 11
    while True:
        opcode, regs, _, value = struct.unpack_from("=BBhi", code, at * 8)
        dst, src = regs & 15, regs >> 4
        at += 1
        if opcode == 0x95:
            return r[0]
        if opcode == 0xBF:
            r[dst] = r[src]
        elif opcode == 0xB7:
            r[dst] = value
        elif opcode == 0x0F:
            r[dst] += r[src]
        elif opcode == 0x18:
            r[dst] = value & 0xFFFFFFFF
            at += 1
        elif opcode == 0x85 and src == 1:
            inside = list(r)
            r[0] = run(code, at + value, inside)
            r[1:6] = [10**9] * 5  # not to be read again
        else:
            raise AssertionError(f"{opcode:#x} by {src}")


def linked(main: bytes, presets: Sequence[int] = (), maps: Sequence[int] = ()) -> Linked:
    programs = {"main": main, "add_sub": ADD_CODE, "twice_sub": TWICE_CODE}
    return link("main", programs, (ADD, TWICE), SIZES, maps, presets)


@given(st.integers(-1000, 1000), st.integers(-1000, 1000), st.integers(0, 2**31 - 1))
def test_calls_and_presets_come_out_right(a: int, b: int, preset: int) -> None:
    main = (
        imm(1, a) + imm(2, b) + wide(3, 0, PRESET_MARK) + call(CALL_MARK)
        + mov(1, 0) + call(CALL_MARK + 1) + EXIT
    )  # fmt: skip
    assert run(linked(main, (preset,)).instructions) == 2 * (a + b + preset)


def test_maps_by_their_descriptors_and_nothing_else_is_touched() -> None:
    main = wide(1, 1, 1) + wide(2, 0, 1) + EXIT
    code = linked(main, maps=(7, 9)).instructions
    assert code == wide(1, 1, 9) + wide(2, 0, 1) + EXIT
    big = linked(wide(0, 0, PRESET_MARK) + EXIT, presets=(0xFFFFFFFF,)).instructions
    assert run(big) == 0xFFFFFFFF


def test_only_what_is_called_comes_along_once_each() -> None:
    alone = linked(EXIT)
    assert (alone.instructions, len(alone.func_info)) == (EXIT, 8)
    one = linked(call(CALL_MARK) + call(CALL_MARK) + EXIT)
    assert len(one.func_info) == 16
    both = linked(call(CALL_MARK + 1) + EXIT)
    starts = [start for start, _ in struct.iter_unpack("=II", both.func_info)]
    assert starts == [0, 2, 2 + len(TWICE_CODE) // 8]


@pytest.mark.parametrize(
    ("main", "more", "words"),
    [
        (call(CALL_MARK + 2) + EXIT, {}, "not there"),
        (wide(1, 1, 3) + EXIT, {}, "no map has the number 3"),
        (call(CALL_MARK) + EXIT, {"add_sub": imm(2, 1) + ADD_CODE}, "taken too late"),
        (call(CALL_MARK) + EXIT, {"add_sub": insn(0x05) + ADD_CODE}, "taken too late"),
        (call(CALL_MARK) + EXIT, {"add_sub": wide(3, 0, 1) + ADD_CODE}, "taken too late"),
    ],
)
def test_what_cannot_be_right_is_refused(main: bytes, more: dict[str, bytes], words: str) -> None:
    programs = {"main": main, "add_sub": ADD_CODE, "twice_sub": TWICE_CODE, **more}
    with pytest.raises(ValueError, match=words):
        link("main", programs, (ADD, TWICE), SIZES, (7,), ())


def test_a_size_is_read_from_its_function() -> None:
    assert returned_constant(imm(0, 24) + EXIT) == 24
    for code in (mov(0, 1) + EXIT, EXIT + imm(0, 24), b""):
        with pytest.raises(ValueError, match="no constant"):
            returned_constant(code)


def test_the_btf_tells_the_verifier_what_the_functions_take(tmp_path: Path) -> None:
    found = linked(call(CALL_MARK) + EXIT)
    assert layouts(found.btf, {"fc_caller": ()})["fc_caller"].size == 24
    bpftool = shutil.which("bpftool") or shutil.which("bpftool", path="/usr/sbin")
    if bpftool is None:
        return
    path = tmp_path / "btf"
    path.write_bytes(found.btf)
    argv = [bpftool, "-j", "btf", "dump", "file", path]
    types = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)["types"]
    by_id = {one["id"]: one for one in types}
    functions = [one for one in types if one["kind"] == "FUNC"]
    assert [(f["name"], f["linkage"]) for f in functions] == [
        ("main", "global"),
        ("add", "global"),
    ]
    ids = [number for _, number in struct.iter_unpack("=II", found.func_info)]
    assert ids == [one["id"] for one in functions]
    proto = by_id[functions[1]["type_id"]]
    kinds = [by_id[one["type_id"]]["kind"] for one in proto["params"]]
    assert kinds == ["INT", "INT", "PTR"]
