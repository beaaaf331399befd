"""Puts instructions that bcc made into programs that the kernel takes. Pure.

bcc compiles each function by itself. Here a program and the functions that it calls become one
stretch of instructions, numbers take the place of marks (descriptors of maps, presets), and the
BTF is written by which the verifier looks at each function once, by itself
(Documentation/bpf/btf.rst; kernel/bpf/verifier.c, check_btf_func).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodeagent.encode.bpf_source import ARGUMENT_MARK, CALL_MARK, PRESET_MARK, Subprogram
from nodeagent.encode.btf import MAGIC

_INSN = struct.Struct("=BBhi")
_SIZE = 8
_LD_IMM64, _CALL, _EXIT, _MOV_IMM, _MOV = 0x18, 0x85, 0x95, 0xB7, 0xBF
_CLASS_JMP, _CLASS_JMP32, _CLASSES_STORE = 5, 6, (2, 3)
_ARGUMENTS = range(2, 6)  # registers, the first apart
_MARKS = 0x10000
PSEUDO_MAP_FD, PSEUDO_CALL = 1, 1
_INT, _PTR, _STRUCT, _FUNC, _FUNC_PROTO = 1, 2, 4, 12, 13
_GLOBAL = 1  # BTF_FUNC_GLOBAL


@dataclass(frozen=True)
class Linked:
    """What bpf_prog_load takes: instructions, BTF, and which function begins where."""

    instructions: bytes
    btf: bytes
    func_info: bytes


def link(
    main: str,
    programs: Mapping[str, bytes],
    subprograms: Sequence[Subprogram],
    sizes: Mapping[str, int],
    maps: Sequence[int],
    presets: Sequence[int],
) -> Linked:
    """One program with all that it calls. Raises ValueError for marks that mean nothing.

    maps: descriptors, presets: values, both in the order of bpf_source.render. sizes: of what
    the parameters of subprograms point to.
    """
    order = [main]
    at = 0
    while at < len(order):
        for number in _called(programs[order[at]]):
            if number >= len(subprograms):
                raise ValueError(f"{order[at]} calls a function that is not there")
            name = f"{subprograms[number].name}_sub"
            if name not in order:
                order.append(name)
        at += 1
    starts, place = {}, 0
    for name in order:
        _check_arguments(name, programs[name])
        starts[name] = place
        place += len(programs[name]) // _SIZE
    places = {n: starts.get(f"{s.name}_sub", 0) for n, s in enumerate(subprograms)}
    code = b"".join(_patched(programs[n], starts[n], places, maps, presets) for n in order)
    by_name = {f"{s.name}_sub": s for s in subprograms}
    btf, ids = _btf(main, [by_name.get(name) for name in order], sizes)
    info = b"".join(struct.pack("=II", starts[n], i) for n, i in zip(order, ids, strict=True))
    return Linked(code, btf, info)


def returned_constant(code: bytes) -> int:
    """What a function gives that does nothing but return a number. Raises ValueError."""
    for at in range(0, len(code), _SIZE):
        opcode, registers, _, value = _INSN.unpack_from(code, at)
        if opcode == _MOV_IMM and registers == 0:
            found: int = value
            return found
        if opcode == _EXIT:
            break
    raise ValueError("the function returns no constant")


def _called(code: bytes) -> list[int]:
    """Numbers of the subprograms that are called, in order."""
    found = []
    for at in range(0, len(code), _SIZE):
        opcode, _, _, value = _INSN.unpack_from(code, at)
        if opcode == _CALL and 0 <= value - CALL_MARK < _MARKS:
            found.append(value - CALL_MARK)
    return found


def _patched(
    code: bytes,
    start: int,
    places: Mapping[int, int],
    maps: Sequence[int],
    presets: Sequence[int],
) -> bytes:
    out, at = bytearray(code), 0
    while at < len(code):
        opcode, registers, offset, value = _INSN.unpack_from(code, at)
        if opcode == _LD_IMM64:
            if registers >> 4 == PSEUDO_MAP_FD:
                if not 0 <= value < len(maps):
                    raise ValueError(f"no map has the number {value}")
                _INSN.pack_into(out, at, opcode, registers, offset, maps[value])
            elif 0 <= value - PRESET_MARK < len(presets) and not registers >> 4:
                number = presets[value - PRESET_MARK]
                _INSN.pack_into(out, at, opcode, registers, offset, _signed(number))
            at += _SIZE  # it takes two places
        elif opcode == _CALL and 0 <= value - CALL_MARK < _MARKS:
            here = start + at // _SIZE
            target = places[value - CALL_MARK] - here - 1
            _INSN.pack_into(out, at, opcode, PSEUDO_CALL << 4, 0, target)
        elif opcode == _CALL and value - ARGUMENT_MARK in _ARGUMENTS:
            _INSN.pack_into(out, at, _MOV, (value - ARGUMENT_MARK) << 4, 0, 0)
        at += _SIZE
    return bytes(out)


def _check_arguments(name: str, code: bytes) -> None:
    """A function takes its arguments before anything else is written to their registers.

    The compiler does not know that they come in there. Raises ValueError.
    """
    written: set[int] = set()
    straight, at = True, 0
    while at < len(code):
        opcode, registers, _, value = _INSN.unpack_from(code, at)
        if opcode == _CALL and value - ARGUMENT_MARK in _ARGUMENTS:
            if not straight or value - ARGUMENT_MARK in written:
                raise ValueError(f"{name}: an argument is taken too late")
        elif opcode & 7 in (_CLASS_JMP, _CLASS_JMP32):
            straight = False
        elif opcode & 7 not in _CLASSES_STORE:
            written.add(registers & 15)
        at += 2 * _SIZE if opcode == _LD_IMM64 else _SIZE


def _signed(number: int) -> int:
    return number - (1 << 32) if number >= 1 << 31 else number


class _Types:
    """Types of one BTF, and their names."""

    def __init__(self) -> None:
        self.types = bytearray()
        self.strings = bytearray(b"\0")
        self._next = 1

    def name(self, text: str) -> int:
        at = len(self.strings)
        self.strings += text.encode() + b"\0"
        return at

    def add(self, name: str, kind: int, vlen: int, size_or_type: int, rest: bytes = b"") -> int:
        place = self.name(name) if name else 0
        self.types += struct.pack("=III", place, kind << 24 | vlen, size_or_type) + rest
        self._next += 1
        return self._next - 1

    def blob(self) -> bytes:
        types, strings = bytes(self.types), bytes(self.strings)
        header = struct.pack(
            "=HBBIIIII", MAGIC, 1, 0, 24, 0, len(types), len(types), len(strings)
        )  # fmt: skip
        return header + types + strings


def _btf(
    main: str, functions: Sequence[Subprogram | None], sizes: Mapping[str, int]
) -> tuple[bytes, list[int]]:
    """The BTF of a program's functions, and the type id of each; None is the program itself.

    Its name is what bpftool shows.
    """
    types = _Types()
    signed = types.add("int", _INT, 0, 4, struct.pack("=I", 1 << 24 | 32))
    number = types.add("u64", _INT, 0, 8, struct.pack("=I", 64))
    pointers: dict[str, int] = {}
    for function in functions:
        for to in filter(None, function.parameters if function else ()):
            if to not in pointers:
                made = types.add(to.replace("struct ", ""), _STRUCT, 0, sizes[to])
                pointers[to] = types.add("", _PTR, 0, made)
    ids = []
    for function in functions:
        kinds = [pointers.get(to, number) for to in function.parameters] if function else [number]
        named = [(types.name(f"a{n}"), kind) for n, kind in enumerate(kinds)]
        parameters = b"".join(struct.pack("=II", *one) for one in named)
        proto = types.add("", _FUNC_PROTO, len(kinds), signed, parameters)
        ids.append(types.add(function.name if function else main, _FUNC, _GLOBAL, proto))
    return types.blob(), ids
