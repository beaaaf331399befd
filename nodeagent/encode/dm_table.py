"""Device-mapper tables as data: segments, tables, their text form.

All positions and lengths are 512-byte sectors, whatever the device's logical
block size is (Linux, include/linux/device-mapper.h).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from nodeagent.model.errors import InvalidSpec

SECTOR_MAX = 2**63 // 512
MAX_TYPE_NAME = 15  # DM_MAX_TYPE_NAME is 16 with its NUL
MAX_TARGETS = 1_048_576  # DM_MAX_TARGETS, drivers/md/dm-core.h
_DEV = re.compile(r"(\d{1,10}):(\d{1,10})")
_WHITE = " \t\n\v\f\r"


class BadTable(InvalidSpec):
    """A table that the kernel could not take: a gap, an overlap, a bad number."""


class DevNum(NamedTuple):
    """A block device's number. major: 0..4095, minor: 0..1048575."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}:{self.minor}"

    @classmethod
    def parse(cls, text: str) -> DevNum:
        """Read "MAJOR:MINOR", the form that kernel tables print.

        Raises BadTable for anything else, device paths included: what a path
        names can change between the plan and the load.
        """
        found = _DEV.fullmatch(text)
        if found is None:
            raise BadTable(f"no device number: {text!r}", "expected MAJOR:MINOR")
        dev = cls(int(found[1]), int(found[2]))
        if dev.major > 0xFFF or dev.minor > 0xFFFFF:
            raise BadTable(f"no device number: {text!r}", "12 bits of major, 20 bits of minor")
        return dev


class Target(NamedTuple):
    """A target type and its constructor arguments, each a plain unescaped word."""

    name: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Segment:
    """One line of a table: sectors [start, start + length) handled by a target."""

    start: int
    length: int
    target: str
    args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.start < 0 or self.length <= 0 or self.start + self.length > SECTOR_MAX:
            raise BadTable(f"bad table segment {self}", f"sectors are 0..{SECTOR_MAX}")
        if not self.target or len(self.target.encode()) > MAX_TYPE_NAME:
            raise BadTable(f"bad target name {self.target!r}", f"1..{MAX_TYPE_NAME} bytes")
        for word in (self.target, *self.args):
            if not word or "\0" in word:
                raise BadTable(f"bad word in table segment: {word!r}", "empty, or holds a NUL")

    @property
    def end(self) -> int:
        """First sector behind the segment."""
        return self.start + self.length

    def __str__(self) -> str:
        return " ".join((str(self.start), str(self.length), self.target, *self.args))


@dataclass(frozen=True, slots=True)
class Table:
    """A whole device: segments in order, from sector 0, without a gap."""

    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        if not self.segments:
            raise BadTable("a table needs at least one segment")
        if len(self.segments) > MAX_TARGETS:
            raise BadTable("too many table segments", f"the kernel takes {MAX_TARGETS}")
        at = 0
        for segment in self.segments:
            if segment.start != at:
                raise BadTable(
                    f"table segment {segment} does not start at sector {at}",
                    "segments follow each other from sector 0 without gap or overlap",
                )
            at = segment.end

    @property
    def length(self) -> int:
        """Size of the device in sectors."""
        return self.segments[-1].end

    @property
    def targets(self) -> frozenset[str]:
        """Names of all target types in the table."""
        return frozenset(segment.target for segment in self.segments)

    def __str__(self) -> str:
        return format_table(self)


def escape(word: str) -> str:
    r"""Quote white space and backslashes as dm_split_args (dm-table.c) undoes it.

    >>> escape("a b\\c")
    'a\\ b\\\\c'
    """
    return "".join("\\" + char if char in _WHITE or char == "\\" else char for char in word)


def split_words(params: str) -> tuple[str, ...]:
    """Words of a parameter string as the kernel's constructor would see them."""
    words: list[str] = []
    word: list[str] | None = None
    chars = iter(params)
    for char in chars:
        if char in _WHITE:
            if word is not None:
                words.append("".join(word))
            word = None
            continue
        word = [] if word is None else word
        # A backslash at the very end stands for itself.
        word.append(next(chars, char) if char == "\\" else char)
    if word is not None:
        words.append("".join(word))
    return tuple(words)


def parse_segment(line: str) -> Segment:
    """Read one line as the kernel prints it. Raises BadTable.

    A target's status method prints its words unescaped, so a backslash is
    taken as itself; escape() puts it back when the table is loaded.
    """
    words = line.split()
    if len(words) < 3 or not all(word.isascii() and word.isdigit() for word in words[:2]):
        raise BadTable(f"no table line: {line!r}", "expected START LENGTH TARGET [ARGUMENT...]")
    return Segment(int(words[0]), int(words[1]), words[2], tuple(words[3:]))


def parse_table(text: str | Iterable[str]) -> Table:
    """Read a table as `dmsetup table DEVICE` prints it; blank lines are skipped.

    Raises BadTable.
    """
    lines = text.split("\n") if isinstance(text, str) else text
    return Table(tuple(parse_segment(line) for line in lines if line.strip()))


def format_table(table: Table) -> str:
    """The table's text, a line a segment, without a newline at the end."""
    return "\n".join(str(segment) for segment in table.segments)
