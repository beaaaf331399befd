"""What the disk kinds share: a layer to act on, guard rails, steps. Pure."""

from __future__ import annotations

from typing import Any

from nodeagent.encode.dm import Overlay as DmTableOverlay
from nodeagent.encode.dm import overlay as overlay_table
from nodeagent.encode.dm import parse_table
from nodeagent.encode.dm_overlay import Fail
from nodeagent.model.binding import FileIdentity, LayerRanges, whole_range
from nodeagent.model.disk import DiskBinding
from nodeagent.model.errors import FaultError, Refused
from nodeagent.model.evidence import FileEvent
from nodeagent.model.facts import (
    Facts,
    Need,
    NeedBpf,
    NeedDmFeature,
    NeedDmTarget,
    NeedErrorInjection,
    NeedRoot,
)
from nodeagent.model.kind import Context, Guard, Reaction
from nodeagent.model.ranges import shift
from nodeagent.model.steps import StepBase
from nodeagent.model.steps.block import (
    BioFail,
    BioWatch,
    CacheDrop,
    DmCreate,
    DmOverlay,
    FileWatch,
    FlakeySegment,
    ReadCheck,
    SegmentKind,
    WatchOp,
)
from nodeagent.model.target import FileTarget

ALWAYS_DOWN_S = 1 << 30
"""dm-flakey's down interval where it never comes up again: 34 years."""
SAMPLE = 64
GUARDED = ("root", "swap", "protected-path", "claimed")


def disk(context: Context) -> DiskBinding:
    """The binding as what it is for disk kinds."""
    binding: DiskBinding = context.binding
    return binding


def short(name: str) -> str:
    """The part of a node id that goes into kernel names."""
    return name.replace("-", "")[:8]


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
    if disk(context).only is not None:
        return "device-mapper fails everybody's I/O (--cgroup)"
    layer = dm_layer(context)
    if isinstance(layer, str):
        return f"{layer} (before it is mounted: faultctl volume prepare DEVICE)"
    return None


def whole(bound: LayerRanges) -> bool:
    """Whether the bound ranges are all of the layer's device."""
    return bound.ranges == whole_range(bound.layer)


def flushes_suffer(context: Context, target: str, verb: str) -> str | None:
    """Why a target that fails or delays flushes may not be put on a part of a device.

    A flush goes to every target of a table (__send_empty_flush, drivers/md/dm.c), so that
    fsync would fail, or wait, for those too who use the rest.
    """
    bound = dm_layer(context)
    if isinstance(bound, str) or whole(bound):
        return None
    return f"{target} on a part of {bound.layer.name} would {verb} flushes of all of it"


def needs_dm(spec: Any) -> tuple[Need, ...]:
    """Root and device-mapper."""
    return (NeedRoot(), NeedDmTarget("linear"))


def needs_split_delay(spec: Any) -> tuple[Need, ...]:
    """What sends one direction of a device to a private error device."""
    return (*needs_dm(spec), NeedDmTarget("delay", (1, 2, 1)), NeedDmTarget("error"))


def needs_flakey(spec: Any) -> tuple[Need, ...]:
    """A dm-flakey that fails what `spec.fail` says: all, reads, or writes."""
    needs = (*needs_dm(spec), NeedDmTarget("flakey", (1, 4, 0)))
    return (*needs, NeedDmFeature("flakey:error_reads", "6.5")) if spec.fail == "reads" else needs


def flakey_supports(spec: Any, context: Context) -> str | None:
    """None when that dm-flakey can be laid over the bound ranges, else why not."""
    objection = dm_supports(spec, context)
    if objection is None and spec.fail != "reads":
        return flushes_suffer(context, "dm-flakey", "fail")
    return objection


def flakey(spec: Any, up_s: int, down_s: int) -> FlakeySegment:
    """dm-flakey that fails what `spec.fail` says for `down_s` seconds after `up_s`, by turns."""
    return FlakeySegment(
        up_s=up_s,
        down_s=down_s,
        error_reads=spec.fail == "reads",
        error_writes=spec.fail == "writes",
    )


def needs_bio_fail(spec: Any) -> tuple[Need, ...]:
    """What fails bios by BPF."""
    return (NeedRoot(), NeedBpf("bio_fail"), NeedErrorInjection("should_fail_bio"))


# --- guards -----------------------------------------------------------------------


def guards(context: Context, *, whole_device: bool) -> tuple[Guard, ...]:
    """Guard rails in the way: root, swap, protected paths, an unseen holder.

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


def watch(
    bound: LayerRanges,
    facts: Facts,
    emit: tuple[WatchOp, ...] = ("failed", "writes"),
    sample: int = 0,
) -> list[StepBase]:
    """A watch on the bound ranges of a layer, where the node can; else nothing counts hits."""
    if NeedBpf("bio_trace").missing(facts) is not None:
        return []
    layer = bound.layer
    return [
        BioWatch(
            major=layer.major,
            minor=layer.minor,
            name=layer.name,
            ranges=bound.ranges,
            emit=emit,
            sample=sample,
        )
    ]


def bio_fail(context: Context, *, reads: bool, writes: bool, heal: bool = False) -> BioFail:
    """The step that fails the bound ranges of the top device by BPF, on its whole disk."""
    bound = disk(context).block.layers[0]
    layer = bound.layer
    major, minor = (int(part) for part in (layer.disk or layer.dev).split(":"))
    return BioFail(
        major=major,
        minor=minor,
        name=layer.name,
        ranges=shift(bound.ranges, layer.part_start),
        reads=reads,
        writes=writes,
        heal=heal,
        only=disk(context).only,
    )


def error_device(context: Context, bound: LayerRanges) -> DmCreate:
    """A private device as long as the layer on which all I/O fails."""
    name = f"faultctl-{short(context.facts.node_id)}-{context.fault_id}-err"
    table = (f"0 {bound.layer.size_sectors} error",)
    return DmCreate(name=name, uuid=name.upper(), table=table)


def read_check(bound: LayerRanges, size: int = 0, **expected: Any) -> ReadCheck:
    """Read the first bound sectors; size: bytes at least, one logical block if less."""
    layer = bound.layer
    blocks = max(1, -(-size // layer.logical_block))
    return ReadCheck(
        major=layer.major,
        minor=layer.minor,
        name=layer.name,
        sector=bound.ranges[0].start,
        sectors=min(blocks * layer.logical_block // 512, bound.ranges[0].length),
        **expected,
    )


def steps_on_dm(
    context: Context,
    segment: SegmentKind,
    emit: tuple[WatchOp, ...],
    *checks: ReadCheck,
) -> list[StepBase]:
    """Watch, swap the segment in, check: what kinds on a whole device do."""
    bound = the_dm_layer(context)
    return [
        *watch(bound, context.facts, emit, SAMPLE),
        dm_overlay(bound, segment),
        *checks,
    ]


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
