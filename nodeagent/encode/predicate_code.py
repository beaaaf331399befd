"""Predicates as the BPF programs take them: tests that jump forward (bpf/when.bpf.h). Pure.

A test compares two terms. A term is the bitwise AND of some arguments and of a number, so a
plain argument is `-1 & argument`. Each test says where to go on, always further down; so the
kernel's verifier sees a loop that ends, and nothing is compiled on the node.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from nodeagent.encode.predicate import (
    Both,
    Compare,
    Int,
    Mask,
    Not,
    Number,
    PredicateError,
    Truth,
    names,
    parse,
)
from nodeagent.encode.syscall_args import Argument, arguments, constant, constants
from nodeagent.encode.syscalls import Call

MAX_TESTS = 16
MAX_ARGUMENTS = 6
YES, NO = 254, 255
"""Where the tests end."""

LESS, EQUAL, GREATER = 1, 2, 4
_RELATIONS = {
    "<": LESS,
    "==": EQUAL,
    ">": GREATER,
    "<=": LESS | EQUAL,
    ">=": GREATER | EQUAL,
    "!=": LESS | GREATER,
}
_TERM = struct.Struct("=QBB6x")
_TEST = struct.Struct("=16s16sBBB5x")
_HEAD = struct.Struct("=6sBx")
SIZE = _HEAD.size + MAX_TESTS * _TEST.size


@dataclass(frozen=True)
class _Term:
    arguments: int = 0
    number: int = -1

    def pack(self) -> bytes:
        return _TERM.pack(self.number & (1 << 64) - 1, self.arguments, self.number < 0)


@dataclass
class _Label:
    """A place further down; known when it is reached."""

    place: int | None = None


@dataclass(frozen=True)
class _Test:
    left: _Term
    right: _Term
    relation: int
    yes: _Label
    no: _Label

    def pack(self) -> bytes:
        yes, no = self.yes.place, self.no.place
        assert yes is not None and no is not None  # noqa: S101 - every label is placed
        return _TEST.pack(self.left.pack(), self.right.pack(), self.relation, yes, no)


def check(text: str, calls: tuple[Call, ...]) -> Truth:
    """The tree of a predicate whose names all of the calls know.

    Raises PredicateError, for an unknown name with the known ones.
    """
    found = parse(text)
    used = names(found)
    for name in used:
        if name.name in constants():
            continue
        for call in calls:
            known = [argument.name for argument in arguments(call.name)]
            if name.name not in known:
                shown = ", ".join(known) or "it has none"
                why = f"{name.name} is no argument of {call.name} (its arguments: {shown})"
                raise PredicateError(why + _constant_hint(name.name), text, name.at)
    if all(name.name in constants() for name in used):
        raise PredicateError("it names no argument: it is always the same", text, 0)
    _Compiler(text, {}, "x86_64").run(found)
    return found


def _constant_hint(name: str) -> str:
    return "; nor a known constant" if name.isupper() else ""


def compile_when(text: str, call: Call, arch: str) -> bytes:
    """The map's value for one call. Raises PredicateError, ValueError (unknown argument)."""
    known = {argument.name: argument for argument in arguments(call.name)}
    tests = _Compiler(text, known, arch).run(parse(text))
    widths = bytearray(MAX_ARGUMENTS)
    for argument in known.values():
        widths[argument.index] = argument.width
    packed = b"".join(test.pack() for test in tests)
    return _HEAD.pack(bytes(widths), len(tests)) + packed.ljust(MAX_TESTS * _TEST.size, b"\0")


class _Compiler:
    """One pass from left to right."""

    def __init__(self, text: str, known: dict[str, Argument], arch: str) -> None:
        self._text = text
        self._known = known
        self._arch = arch
        self._tests: list[_Test] = []

    def run(self, tree: Truth) -> list[_Test]:
        self._truth(tree, _Label(YES), _Label(NO))
        return self._tests

    def _truth(self, node: Truth, yes: _Label, no: _Label) -> None:
        match node:
            case Not():
                self._truth(node.of, no, yes)
            case Both():
                middle = _Label()
                ends = (middle, no) if node.sign == "&&" else (yes, middle)
                self._truth(node.left, *ends)
                middle.place = len(self._tests)
                self._truth(node.right, yes, no)
            case Compare():
                if len(self._tests) == MAX_TESTS:
                    raise PredicateError(
                        f"more than {MAX_TESTS} comparisons", self._text, node.at
                    )  # fmt: skip
                left, right = self._term(node.left), self._term(node.right)
                self._tests.append(_Test(left, right, _RELATIONS[node.sign], yes, no))

    def _term(self, node: Int) -> _Term:
        match node:
            case Number():
                return _Term(number=node.value)
            case Mask():
                left, right = self._term(node.left), self._term(node.right)
                if node.sign == "|":
                    return _Term(number=left.number | right.number)
                return _Term(left.arguments | right.arguments, left.number & right.number)
            case _:
                value = constant(node.name, self._arch)
                if value is not None:
                    return _Term(number=value)
                argument = self._known.get(node.name)
                return _Term(arguments=1 << argument.index if argument else 0)
