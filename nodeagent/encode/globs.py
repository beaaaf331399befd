"""Path patterns as automata that read a path from its end, as the BPF programs walk it. Pure.

`*` is any run of characters but `/`, `**` any run at all, `?` one character but `/`; all
else is itself. `DIR/**` takes DIR as well. The automaton is deterministic: one row of 256
following states for each state. State 0 takes nothing any more, state 1 is the start.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

START = 1
ACCEPTS = 0x8000
"""Bit of a following state: what was read so far is a whole path."""
MAX_STATES = 512
_ROW = struct.Struct("=256H")
_ANY = frozenset(range(1, 256))
_SLASH = frozenset(b"/")
_BUT_SLASH = _ANY - _SLASH
_GOES_ON = frozenset(range(0x80, 0xC0))  # a further byte of a character in UTF-8
_BEGINS = _BUT_SLASH - _GOES_ON


class _Nfa:
    """Transitions on sets of bytes, and on nothing; 0 is the start, `end` accepts."""

    def __init__(self) -> None:
        self.edges: list[list[tuple[frozenset[int], int]]] = [[]]
        self.free: list[list[int]] = [[]]
        self.ends: set[int] = set()

    def state(self) -> int:
        self.edges.append([])
        self.free.append([])
        return len(self.edges) - 1

    def add(self, pattern: str) -> None:
        at = 0
        for token in reversed(tokens(pattern)):
            at = self._after(at, token)
        self.ends.add(at)

    def _after(self, at: int, token: str) -> int:
        end = self.state()
        if token == "**":  # noqa: S105 - of a pattern
            self.edges[end].append((_ANY, end))
            self.free[at].append(end)
        elif token == "*":  # noqa: S105
            self.edges[end].append((_BUT_SLASH, end))
            self.free[at].append(end)
        elif token == "/**":  # noqa: S105
            inner = self.state()
            self.edges[inner].append((_ANY, inner))
            self.free[at] += [inner, end]
            self.edges[inner].append((_SLASH, end))
        elif token == "?":  # noqa: S105
            for more in range(4):
                self.edges[at].append((_BEGINS, end))
                if more < 3:
                    following = self.state()
                    self.edges[at].append((_GOES_ON, following))
                    at = following
        else:
            for byte in reversed(token.encode()):
                following = self.state()
                self.edges[at].append((frozenset((byte,)), following))
                at = following
            self.free[at].append(end)
        return end

    def closure(self, states: Iterable[int]) -> frozenset[int]:
        found, todo = set[int](), list(states)
        while todo:
            state = todo.pop()
            if state not in found:
                found.add(state)
                todo += self.free[state]
        return frozenset(found)


def tokens(pattern: str) -> list[str]:
    """A pattern's parts. Raises ValueError for what is no pattern of an absolute path."""
    if not pattern.startswith(("/", "**")):
        raise ValueError(f"{pattern!r} is no absolute path: it begins with / or **")
    if any(c in pattern for c in "[]{}\\\0"):
        raise ValueError(f"{pattern!r}: only *, ** and ? stand for other characters")
    if "***" in pattern:
        raise ValueError(f"{pattern!r}: more than two stars in a row")
    found: list[str] = []
    at = 0
    while at < len(pattern):
        size = 1
        if pattern.startswith("**", at):
            size = 2
        elif pattern[at:] == "/**" and at:
            size = 3
        found.append(pattern[at : at + size])
        at += size
    return found


def compile_globs(patterns: Iterable[str]) -> list[bytes]:
    """Rows of the automaton that takes what any of the patterns does, from state 1 on.

    None without patterns.
    Raises ValueError for a bad pattern, or when it would have more than MAX_STATES states.
    """
    nfa = _Nfa()
    for pattern in patterns:
        nfa.add(pattern)
    if not nfa.ends:
        return []
    first = nfa.closure((0,))
    numbers = {first: START}
    rows: list[bytes] = []
    todo = [first]
    while todo:
        row = []
        for following in _moves(nfa, todo.pop(0)):
            if following and following not in numbers:
                if len(numbers) == MAX_STATES:
                    raise ValueError(f"the patterns are too many or too long (>{MAX_STATES})")
                numbers[following] = len(numbers) + START
                todo.append(following)
            accepts = ACCEPTS if following & nfa.ends else 0
            row.append(numbers[following] | accepts if following else 0)
        rows.append(_ROW.pack(*row))
    return rows


def _moves(nfa: _Nfa, states: frozenset[int]) -> list[frozenset[int]]:
    """The set of states after each byte. Bytes that no edge tells apart share the work."""
    known: dict[frozenset[int], frozenset[int]] = {}
    edges = [edge for state in states for edge in nfa.edges[state]]
    found = []
    for byte in range(256):
        targets = frozenset(target for bytes_, target in edges if byte in bytes_)
        if targets not in known:
            known[targets] = nfa.closure(targets)
        found.append(known[targets])
    return found


def takes(rows: list[bytes], path: bytes) -> bool:
    """What the BPF program would say of an absolute path: read from its end."""
    state = START
    for byte in reversed(path):
        state = _ROW.unpack(rows[(state & ~ACCEPTS) - START])[byte]
        if not state:
            return False
    return bool(state & ACCEPTS)
