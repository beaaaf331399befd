"""Constructors of device-mapper targets: small, pure, each with its minimal version.

Sectors are 512 bytes; delays are milliseconds, flakey's intervals whole seconds.
Sources: drivers/md/dm-linear.c, dm-target.c (error), dm-zero.c, dm-delay.c,
dm-flakey.c, dm-dust.c, Linux 6.1 and 6.12.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nodeagent.encode.dm_table import BadTable, DevNum, Target

Version = tuple[int, int, int]
UINT_MAX = 2**32 - 1
PROBABILITY_BASE = 1_000_000_000  # dm-flakey.c

# Lowest version of a target type that has what the constructors below write.
# dm-delay's flush triple (Linux 4.18) came without a new version number.
MIN_VERSION: dict[str, Version] = {
    "linear": (1, 0, 0),
    "error": (1, 0, 0),
    "zero": (1, 0, 0),
    "delay": (1, 2, 1),
    "flakey": (1, 1, 0),
    "dust": (1, 0, 0),
}
# None: no version tells. error_reads and random_* came with Linux 6.5 while
# dm-flakey stayed at 1.5.0, so only asking the kernel to parse them does.
FLAKEY_FEATURES: dict[str, Version | None] = {
    "drop_writes": (1, 2, 0),
    "corrupt_bio_byte": (1, 2, 0),
    "error_writes": (1, 4, 0),
    "error_reads": None,
    "random_read_corrupt": None,
    "random_write_corrupt": None,
}


def linear(dev: DevNum, start: int) -> Target:
    """Pass everything to dev, from sector start on."""
    return Target("linear", (str(dev), _sector(start)))


def error() -> Target:
    """Fail every bio with EIO; nothing lies below (io_err_map)."""
    return Target("error")


def zero() -> Target:
    """Read zeroes, forget writes."""
    return Target("zero")


@dataclass(frozen=True, slots=True)
class DelayClass:
    """Where one class of bios goes, and how late. delay: milliseconds, 0 is at once."""

    dev: DevNum
    start: int
    delay: int

    def words(self) -> tuple[str, str, str]:
        """The three words that dm-delay reads for a class."""
        if not 0 <= self.delay <= UINT_MAX:
            raise BadTable(f"delay of {self.delay} ms", "dm-delay takes 0..4294967295")
        return str(self.dev), _sector(self.start), str(self.delay)


def delay(
    read: DelayClass, write: DelayClass | None = None, flush: DelayClass | None = None
) -> Target:
    """dm-delay with 3, 6 or 9 words.

    Without write, writes and flushes go with the reads; without flush, flushes
    go with the writes (delay_ctr).
    """
    if flush is not None and write is None:
        raise BadTable("a flush delay needs a write delay", "dm-delay takes 3, 6 or 9 words")
    classes = [part for part in (read, write, flush) if part is not None]
    return Target("delay", tuple(word for part in classes for word in part.words()))


@dataclass(frozen=True, slots=True)
class CorruptByte:
    """Overwrite one byte of each matching bio.

    nth: position in the bio, from 1. value: 0..255. flags: only bios that have
    all these bits of bi_opf set; 0 matches all, its meaning depends on the kernel.
    Below Linux 6.5 direction "w" overwrites the writer's own page in memory.
    """

    nth: int
    direction: Literal["r", "w"]
    value: int
    flags: int = 0


@dataclass(frozen=True, slots=True)
class FlakeyFeatures:
    """What dm-flakey does while it is down; nothing set means fail all I/O.

    random_read, random_write: chance for a bio, in 1..1e9 of 1e9; 0 is off.
    """

    error_reads: bool = False
    drop_writes: bool = False
    error_writes: bool = False
    corrupt: CorruptByte | None = None
    random_read: int = 0
    random_write: int = 0

    def names(self) -> frozenset[str]:
        """Feature words in use, keys of FLAKEY_FEATURES."""
        return frozenset(word for word in self.words() if word in FLAKEY_FEATURES)

    def words(self) -> tuple[str, ...]:
        """Feature words in the order in which Linux 6.12 prints them. Raises BadTable."""
        self._check()
        words: list[str] = []
        words += ["error_reads"] if self.error_reads else []
        words += ["drop_writes"] if self.drop_writes else []
        words += ["error_writes"] if self.error_writes else []
        if self.corrupt is not None:
            byte = self.corrupt
            words += ["corrupt_bio_byte", str(byte.nth), byte.direction]
            words += [str(byte.value), str(byte.flags)]
        words += ["random_read_corrupt", str(self.random_read)] if self.random_read else []
        words += ["random_write_corrupt", str(self.random_write)] if self.random_write else []
        return tuple(words)

    def _check(self) -> None:
        direction = self.corrupt.direction if self.corrupt is not None else ""
        corrupts_reads = direction == "r" or self.random_read > 0
        corrupts_writes = direction == "w" or self.random_write > 0
        clashes = (
            (self.drop_writes and self.error_writes, "drop_writes and error_writes"),
            (self.error_reads and corrupts_reads, "error_reads and corrupted reads"),
            (self.drop_writes and corrupts_writes, "drop_writes and corrupted writes"),
            (self.error_writes and corrupts_writes, "error_writes and corrupted writes"),
        )
        for clash, what in clashes:
            if clash:
                raise BadTable(f"dm-flakey cannot do {what} at once")
        if self.corrupt is not None and not (
            1 <= self.corrupt.nth <= UINT_MAX
            and direction in ("r", "w")
            and 0 <= self.corrupt.value <= 255
            and 0 <= self.corrupt.flags <= UINT_MAX
        ):
            raise BadTable(f"bad {self.corrupt}", "nth from 1, r or w, value 0..255, 32-bit flags")
        for chance in (self.random_read, self.random_write):
            if not 0 <= chance <= PROBABILITY_BASE:
                raise BadTable(f"corruption chance {chance}", "dm-flakey takes 0..1000000000")


def flakey(
    dev: DevNum, start: int, up: int, down: int, features: FlakeyFeatures | None = None
) -> Target:
    """dm-flakey: `up` seconds as linear, then `down` seconds with the features.

    The clock starts when the table is loaded, not when it is resumed. Raises BadTable.
    """
    if up < 0 or down < 0 or not 0 < up + down <= UINT_MAX:
        raise BadTable(f"flakey intervals {up} and {down}", "seconds, 0 or more, not both 0")
    words = features.words() if features is not None else ()
    count = (str(len(words)), *words) if words else ()
    return Target("flakey", (str(dev), _sector(start), str(up), str(down), *count))


def dust(dev: DevNum, start: int, block_size: int) -> Target:
    """dm-dust over dev; block_size: bytes, a power of two from 512 to 2^30.

    Passes everything until `addbadblock` and `enable` messages arrive.
    """
    if not 512 <= block_size <= 1 << 30 or block_size & (block_size - 1):
        raise BadTable(f"dust block size {block_size}", "a power of two, 512..1073741824 bytes")
    return Target("dust", (str(dev), _sector(start), str(block_size)))


def _sector(value: int) -> str:
    if not 0 <= value < 2**63:
        raise BadTable(f"bad sector {value}", "0 or more")
    return str(value)
