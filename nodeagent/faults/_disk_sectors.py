"""Sectors of a disk fault: as users write them, chosen at random, kept off metadata. Pure."""

from __future__ import annotations

import random
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from nodeagent.model.binding import BlockLayer
from nodeagent.model.disk import DiskBinding
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.ranges import (
    Range,
    Ranges,
    format_ranges,
    normalise,
    parse_ranges,
    pick,
    subtract,
    total,
)

MAX_PICKED = 100_000


def _parse(value: object) -> Ranges:
    if isinstance(value, tuple):
        return value
    return parse_ranges(str(value))


Sectors = Annotated[
    Ranges,
    BeforeValidator(_parse),
    PlainSerializer(format_ranges, return_type=str),
    WithJsonSchema({"type": "string", "format": "sectors", "examples": ["1024+8", "0-7,4096"]}),
    Field(json_schema_extra={"metavar": "SECTORS"}),
]
Cgroup = Annotated[
    str,
    Field(
        max_length=4096,
        description="only I/O of this cgroup (v2) and of those below it; by BPF only",
        json_schema_extra={"metavar": "CGROUP"},
    ),
]


def whole_blocks(ranges: Ranges, layer: BlockLayer) -> Ranges:
    """Check that ranges are whole logical blocks of the device. Raises InvalidSpec."""
    unit = layer.logical_block // 512
    for item in ranges:
        if item.start % unit or item.length % unit:
            raise InvalidSpec(
                f"sectors {item} are not whole blocks of {layer.name}",
                f"its logical block is {layer.logical_block} bytes, {unit} sectors of 512",
                f"start and length must be multiples of {unit}",
            )
    return ranges


def pick_blocks(candidates: Ranges, count: int, seed: int, layer: BlockLayer) -> Ranges:
    """`count` different logical blocks out of the candidates, the same for the same seed.

    Raises Refused when there are fewer.
    """
    unit = layer.logical_block // 512
    aligned = [
        Range(start=first, length=last - first)
        for item in candidates
        for first, last in [(-(-item.start // unit), item.end // unit)]
        if last > first
    ]
    available = total(aligned)
    if count > available:
        raise Refused(
            f"there are not {count} blocks to choose from",
            f"{available} blocks of {layer.logical_block} bytes can be chosen",
        )
    chosen = pick(aligned, random.Random(seed).sample(range(available), count))  # noqa: S311
    return normalise(Range(start=block * unit, length=unit) for block in chosen)


def check_inside(ranges: Ranges, layer: BlockLayer) -> Ranges:
    """Check that ranges lie on the device. Raises InvalidSpec."""
    for item in ranges:
        if item.end > layer.size_sectors:
            raise InvalidSpec(
                f"sectors {item} end past {layer.name}",
                f"the device has {layer.size_sectors} sectors of 512 bytes",
            )
    return ranges


def keep_off_metadata(ranges: Ranges, binding: DiskBinding) -> None:
    """Raises Refused when ranges cover, or may cover, metadata of the file system."""
    if binding.space is None or binding.block.file is not None:
        return
    known = normalise((*binding.space.file_data, *binding.space.free))
    risky = subtract(ranges, known)
    if risky:
        raise Refused(
            f"sectors {format_ranges(risky, 4)} hold metadata of the file system",
            "a failing metadata sector can make the whole volume read-only or unmountable",
            "add --metadata if that is what you want",
        )
