"""What the disk kinds share: choosing sectors, a layer and guards; evidence from watches. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from nodeagent.encode.dm import Overlay as DmTableOverlay
from nodeagent.encode.dm import overlay as overlay_table
from nodeagent.encode.dm import parse_table
from nodeagent.encode.dm_overlay import Fail
from nodeagent.model.binding import BlockLayer, FileIdentity, LayerRanges
from nodeagent.model.disk import DiskBinding
from nodeagent.model.errors import FaultError, InvalidSpec, Refused
from nodeagent.model.evidence import Evidence, FileEvent, IoRecord
from nodeagent.model.facts import Facts, Need, NeedBpf, NeedDmTarget, NeedRoot
from nodeagent.model.kind import Context, Guard, Measured, Reaction
from nodeagent.model.ranges import (
    Range,
    Ranges,
    format_ranges,
    intersect,
    normalise,
    parse_ranges,
    pick,
    subtract,
    total,
)
from nodeagent.model.steps import StepBase
from nodeagent.model.steps.block import BioWatch, CacheDrop, DmOverlay, FileWatch, SegmentKind
from nodeagent.model.target import FileTarget

MAX_PICKED = 100_000
GUARDED = ("root", "swap", "protected-path")


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


def disk(context: Context) -> DiskBinding:
    """The binding as what it is for disk kinds."""
    binding: DiskBinding = context.binding
    return binding


def short(name: str) -> str:
    """The part of a node id that goes into kernel names."""
    return name.replace("-", "")[:8]


# --- sectors ----------------------------------------------------------------------


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


# --- layers -----------------------------------------------------------------------


def dm_objection(item: LayerRanges) -> str | None:
    """Why device-mapper can't put a fault on the bound ranges of a layer; None if it can."""
    layer = item.layer
    if layer.kind != "dm":
        return f"{layer.name} is not a device-mapper device"
    if layer.dm_suspended:
        return f"{layer.name} is suspended"
    if any(line.split()[2:3] == ["crypt"] for line in layer.table):
        return f"{layer.name} holds a dm-crypt key in its table, which is never copied"
    overlays = [DmTableOverlay(r.start, r.length, Fail()) for r in item.ranges]
    try:
        overlay_table(parse_table(layer.table), overlays, layer.logical_block // 512)
    except FaultError as exc:
        return str(exc)
    return None


def dm_layer(context: Context) -> LayerRanges | str:
    """The topmost layer that can take the bound ranges by a live table reload, or why none can."""
    reasons = []
    for item in disk(context).block.layers:
        reason = dm_objection(item)
        if reason is None:
            return item
        reasons.append(reason)
    return "; ".join(reasons)


def the_dm_layer(context: Context) -> LayerRanges:
    """As dm_layer. Raises Refused."""
    layer = dm_layer(context)
    if isinstance(layer, str):
        raise Refused("no layer of the stack can take the fault", layer)
    return layer


def dm_supports(spec: Any, context: Context) -> str | None:
    """For rungs on device-mapper: whether there is a layer, and if not, the way out."""
    layer = dm_layer(context)
    if isinstance(layer, str):
        return f"{layer} (before it is mounted: faultctl volume prepare DEVICE)"
    return None


def needs_dm(spec: Any) -> tuple[Need, ...]:
    """Root and device-mapper."""
    return (NeedRoot(), NeedDmTarget("linear"))


# --- guards -----------------------------------------------------------------------


def guards(context: Context, *, whole_device: bool) -> tuple[Guard, ...]:
    """Guard rails in the way: root, swap and protected paths on the device.

    A fault on a file's own sectors is held back only where those sectors themselves are
    swapped to or belong to a protected path.
    """
    binding = disk(context)
    is_file = isinstance(context.target, FileTarget) and not whole_device
    found = []
    for guard in binding.guards:
        if guard.kind not in GUARDED:
            continue
        if is_file and (guard.kind == "root" or guard.hit is False):
            continue
        found.append(Guard(guard.kind, f"{guard.what} is on it ({guard.via})"))
    return tuple(dict.fromkeys(found))


# --- steps ------------------------------------------------------------------------


def dm_overlay(layer: LayerRanges, segment: SegmentKind) -> DmOverlay:
    """The step that puts a segment over the bound ranges of a layer."""
    item = layer.layer
    return DmOverlay(
        major=item.major,
        minor=item.minor,
        name=item.dm_name or item.name,
        size=item.size_sectors,
        ranges=layer.ranges,
        segment=segment,
    )


def watch(bound: LayerRanges, facts: Facts) -> list[StepBase]:
    """A watch on the bound ranges of a layer, where the node can; else nothing counts hits."""
    if NeedBpf("bio_trace").missing(facts) is not None:
        return []
    layer = bound.layer
    return [BioWatch(major=layer.major, minor=layer.minor, name=layer.name, ranges=bound.ranges)]


def cache_drop(binding: DiskBinding) -> list[StepBase]:
    """Drop the cached copies of a file target's range; nothing for other targets."""
    file = binding.block.file
    if file is None:
        return []
    ranges = tuple((e.logical, e.length) for e in file.extents)
    return [CacheDrop(path=file.path, ranges=ranges)]


def file_watch(binding: DiskBinding) -> list[StepBase]:
    """Watch a file target: freed sectors are used again by other files."""
    file = binding.block.file
    if file is None:
        return []
    return [FileWatch(path=file.path, inode=file.inode, extents=_placed(file))]


def _placed(file: FileIdentity) -> tuple[tuple[int, int, int], ...]:
    return tuple((e.logical, e.physical, e.length) for e in file.extents)


def file_reaction(event: FileEvent) -> Reaction:
    """The fault ends when its sectors no longer hold the file's data."""
    said = {"gone": "removed or cut", "moved-blocks": "moved to other sectors"}
    return Reaction(remedied=f"{event.path} was {said.get(event.what, event.what)}")


# --- evidence ---------------------------------------------------------------------


def evidence(measured: Iterable[Measured], statements: Iterable[str] = ()) -> Evidence:
    """Hits and records of all watches and hooks of a fault, with what is said about caches."""
    counted = False
    counters: dict[str, int] = {}
    records: list[IoRecord] = []
    times: list[int] = []
    log: list[str] = []
    said = list(statements)
    lost = 0
    for item in measured:
        if "counters" in item.data:
            counted = True
            for name, value in item.data["counters"].items():
                counters[name] = counters.get(name, 0) + int(value)
            lost += int(item.data.get("lost", 0))
            times += [t for t in (item.data.get("first_ns"), item.data.get("last_ns")) if t]
            records += [IoRecord.model_validate(r) for r in item.data.get("records", ())]
        log += [line for line in item.data.get("kernel_log", ()) if line not in log]
        said += item.data.get("statements", ())
    if not counted:
        said.append("nothing on this node counts hits, so whether it bites is not known")
    return Evidence(
        counted=counted,
        hits=sum(value for name, value in counters.items() if name.endswith("_failed")),
        counters=counters,
        first_hit_ns=min(times, default=None),
        last_hit_ns=max(times, default=None),
        lost=lost,
        records=tuple(sorted(records, key=lambda r: r.boottime_ns)),
        kernel_log=tuple(log),
        statements=tuple(said),
    )


def healed(bad: Ranges, record: IoRecord, unit: int) -> Ranges | None:
    """What is still bad after a write that went well; None if the record heals nothing.

    Only logical blocks that the write covers as a whole are healed.
    """
    if record.op != "write" or record.status or record.sectors <= 0:
        return None
    first, last = -(-record.sector // unit) * unit, (record.sector + record.sectors) // unit * unit
    if last <= first:
        return None
    written = (Range(start=first, length=last - first),)
    if not intersect(bad, written):
        return None
    return subtract(bad, written)
