"""What a fault puts in place of a linear piece of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from nodeagent.encode import dm_targets as targets
from nodeagent.encode.dm_table import DevNum, Target

_NO_FEATURES = targets.FlakeyFeatures()


class Backing(NamedTuple):
    """Where a linear piece lies: device and its first sector there."""

    dev: DevNum
    start: int


class Effect(Protocol):
    """What an overlay puts in place of a linear piece."""

    @property
    def needs_backing(self) -> bool:
        """False when nothing of the base shows through."""

    def target(self, start: int, backing: Backing) -> Target:
        """The target for a piece that begins at sector `start` of the table."""


@dataclass(frozen=True, slots=True)
class Fail:
    """All I/O fails with EIO."""

    needs_backing = False

    def target(self, start: int, backing: Backing) -> Target:
        """dm-error."""
        return targets.error()


@dataclass(frozen=True, slots=True)
class Flakey:
    """dm-flakey over the piece. up, down: seconds.

    A flush goes to every target of a table, and a flakey that fails writes fails
    it too: while one is down, fsync fails on the whole device. To fail the writes
    of a part only, take Fail or FailWrites.
    """

    up: int
    down: int
    features: targets.FlakeyFeatures = _NO_FEATURES
    needs_backing = True

    def target(self, start: int, backing: Backing) -> Target:
        """dm-flakey."""
        return targets.flakey(*backing, self.up, self.down, self.features)


@dataclass(frozen=True, slots=True)
class Delay:
    """Late I/O in milliseconds; flush None means as late as writes."""

    read: int
    write: int
    flush: int | None = None
    needs_backing = True

    def target(self, start: int, backing: Backing) -> Target:
        """dm-delay, every class to the same place."""
        flush = self.write if self.flush is None else self.flush
        classes = (targets.DelayClass(*backing, late) for late in (self.read, self.write, flush))
        return targets.delay(*classes)


@dataclass(frozen=True, slots=True)
class FailReads:
    """Reads go to an error device after retry_delay ms; writes and flushes pass.

    error_dev must be at least as long as the base table: a piece reads there
    from its own sector on, and dm checks that the area exists.
    """

    error_dev: DevNum
    retry_delay: int
    needs_backing = True

    def target(self, start: int, backing: Backing) -> Target:
        """dm-delay with split devices."""
        through = targets.DelayClass(*backing, 0)
        return targets.delay(
            targets.DelayClass(self.error_dev, start, self.retry_delay), through, through
        )


@dataclass(frozen=True, slots=True)
class FailWrites:
    """Writes go to an error device after retry_delay ms; reads and flushes pass.

    error_dev: as for FailReads.
    """

    error_dev: DevNum
    retry_delay: int
    needs_backing = True

    def target(self, start: int, backing: Backing) -> Target:
        """dm-delay with split devices."""
        through = targets.DelayClass(*backing, 0)
        failing = targets.DelayClass(self.error_dev, start, self.retry_delay)
        return targets.delay(through, failing, through)


@dataclass(frozen=True, slots=True)
class Dust:
    """dm-dust, still off and empty. block_size: bytes."""

    block_size: int
    needs_backing = True

    def target(self, start: int, backing: Backing) -> Target:
        """dm-dust."""
        return targets.dust(*backing, self.block_size)
