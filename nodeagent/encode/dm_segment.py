"""From the segments of a step to a device-mapper table; pure: a revert computes the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nodeagent.encode import dm_targets as targets
from nodeagent.encode.dm import DevNum, Overlay, Table, overlay
from nodeagent.encode.dm_overlay import Delay, Dust, Effect, Fail, FailReads, FailWrites, Flakey
from nodeagent.model.steps.block import (
    DelaySegment,
    DmOverlay,
    DustSegment,
    ErrorSegment,
    FlakeySegment,
    SegmentKind,
    SplitDelaySegment,
)

Resolve = Callable[[str], DevNum]
"""The device number of a private device by its name. Raises KeyError if it is not there."""


def effect_of(segment: SegmentKind, resolve: Resolve) -> Effect:
    """What a segment puts in place of a linear piece. Raises KeyError for a missing device."""
    match segment:
        case ErrorSegment():
            return Fail()
        case SplitDelaySegment():
            failing = FailReads if segment.fails == "read" else FailWrites
            return failing(resolve(segment.error_device), segment.delay_ms)
        case DustSegment():
            return Dust(segment.block_size)
        case FlakeySegment():
            return Flakey(segment.up_s, segment.down_s, flakey_features(segment))
        case DelaySegment():
            return Delay(segment.read_ms, segment.write_ms, segment.flush_ms)


def flakey_features(segment: FlakeySegment) -> targets.FlakeyFeatures:
    """The features of a flakey segment in the encoder's terms."""
    byte = segment.corrupt
    return targets.FlakeyFeatures(
        error_reads=segment.error_reads,
        drop_writes=segment.drop_writes,
        error_writes=segment.error_writes,
        corrupt=None if byte is None else targets.CorruptByte(byte.nth, byte.direction, byte.value),
        random_read=segment.random_read,
        random_write=segment.random_write,
    )


def compose(
    base: Table, steps: Iterable[DmOverlay], resolve: Resolve, block_sectors: int = 1
) -> Table:
    """The base table with the overlays of all these steps; their order does not matter.

    block_sectors: the device's logical block; a cut elsewhere would fail in the swap.

    Raises KeyError for a missing private device, Conflict, UnsplittableTarget.
    """
    overlays = [
        Overlay(item.start, item.length, effect)
        for step in steps
        for effect in [effect_of(step.segment, resolve)]
        for item in step.ranges
    ]
    return overlay(base, overlays, block_sectors)
