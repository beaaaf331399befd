"""latent-sector: chosen sectors of a disk cannot be read, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

from pydantic import Field, model_validator

from nodeagent.faults import _disk as d
from nodeagent.model.binding import LayerRanges
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.evidence import Evidence, FileEvent, IoRecord, NodeEvent
from nodeagent.model.facts import (
    Need,
    NeedBpf,
    NeedDmFeature,
    NeedDmTarget,
    NeedErrorInjection,
    NeedRoot,
)
from nodeagent.model.kind import (
    Context,
    FaultKind,
    FaultSpec,
    Guard,
    Measured,
    Reaction,
    Rung,
)
from nodeagent.model.ranges import Ranges, intersect, shift
from nodeagent.model.steps import StepBase
from nodeagent.model.steps.block import (
    BioFail,
    DmCreate,
    DmOverlay,
    DustSegment,
    ErrorSegment,
    FlakeySegment,
    ReadCheck,
    SegmentKind,
    SplitDelaySegment,
)
from nodeagent.model.target import FileTarget
from nodeagent.model.units import Duration

ALWAYS_DOWN_S = 1 << 30


class Spec(FaultSpec):
    """Which sectors are bad, and how they behave."""

    sectors: d.Sectors | None = Field(
        default=None,
        description="512-byte sectors of the target device: start+length, first-last, by commas",
    )
    count: int | None = Field(
        default=None, ge=1, le=d.MAX_PICKED, description="so many random blocks instead"
    )
    seed: int = Field(default=0, ge=0, lt=1 << 63, description="seed of the random choice")
    used: bool = Field(default=False, description="choose only sectors that files use now")
    metadata: bool = Field(
        default=False, description="allow sectors that hold, or may hold, file-system metadata"
    )
    on_write: Literal["heal", "keep", "fail"] = Field(
        default="heal",
        description="a write to a bad sector heals it, leaves it bad, or fails too",
    )
    retry_delay: Duration = Field(
        default=timedelta(0),
        le=timedelta(minutes=10),
        description="how long the drive retries before it gives up",
    )
    evict: bool = Field(
        default=True, description="drop the file range's cached copies, and only those"
    )

    @model_validator(mode="after")
    def _one_choice(self) -> Spec:
        if self.sectors is not None and self.count is not None:
            raise ValueError("sectors and count exclude each other")
        if self.used and self.count is None:
            raise ValueError("used goes with count")
        if self.retry_delay % timedelta(milliseconds=1):
            raise ValueError("retry_delay is in whole milliseconds")
        return self


def select(spec: Spec, context: Context) -> Ranges:
    """The bad sectors on the top device. Raises InvalidSpec or Refused."""
    binding = d.disk(context)
    top = binding.block.top
    if isinstance(context.target, FileTarget):
        if spec.sectors is not None:
            raise InvalidSpec(
                "sectors are of a device", "a file target takes --offset and --length, or --count"
            )
        if spec.count is None:
            return binding.block.ranges
        return d.pick_blocks(binding.block.ranges, spec.count, spec.seed, top)
    if spec.sectors is not None:
        ranges = d.check_inside(d.whole_blocks(spec.sectors, top), top)
    elif spec.count is not None:
        ranges = d.pick_blocks(_candidates(spec, context), spec.count, spec.seed, top)
    else:
        raise InvalidSpec(
            "which sectors are to be bad?",
            "a device or volume target needs --sectors or --count",
            "or name a file: --file PATH",
        )
    if not spec.metadata:
        d.keep_off_metadata(ranges, binding)
    return ranges


def _candidates(spec: Spec, context: Context) -> Ranges:
    binding = d.disk(context)
    space = binding.space
    if spec.used:
        if space is None:
            raise Refused(
                "which sectors are in use is not known",
                f"{binding.block.top.name} holds no mounted file system that can be asked",
            )
        return space.file_data
    if space is None or spec.metadata:
        return binding.block.ranges
    return intersect(binding.block.ranges, (*space.file_data, *space.free))


# --- rungs ------------------------------------------------------------------------


def _bpf_needs(spec: Spec) -> tuple[Need, ...]:
    return (NeedRoot(), NeedBpf("bio_fail"), NeedErrorInjection("should_fail_bio"))


def _bpf_supports(spec: Spec, context: Context) -> str | None:
    if spec.retry_delay:
        return "a BPF program cannot make a bio wait (--retry-delay)"
    return None


def _bpf_plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    bound = d.disk(context).block.layers[0]
    layer = bound.layer
    major, minor = (int(part) for part in (layer.disk or layer.dev).split(":"))
    fail = BioFail(
        major=major,
        minor=minor,
        name=layer.name,
        ranges=shift(bound.ranges, layer.part_start),
        writes=spec.on_write == "fail",
        heal=spec.on_write == "heal",
    )
    return [*d.file_watch(d.disk(context)), fail, _check(bound), *_evict(spec, context)]


def _dm_steps(
    spec: Spec, context: Context, segment: SegmentKind, *before: StepBase
) -> list[StepBase]:
    bound = d.the_dm_layer(context)
    return [
        *before,
        *d.file_watch(d.disk(context)),
        *d.watch(bound, context.facts),
        d.dm_overlay(bound, segment),
        _check(bound),
        *_evict(spec, context),
    ]


def _check(bound: LayerRanges) -> ReadCheck:
    layer = bound.layer
    return ReadCheck(
        major=layer.major,
        minor=layer.minor,
        name=layer.name,
        sector=bound.ranges[0].start,
        sectors=layer.logical_block // 512,
    )


def _evict(spec: Spec, context: Context) -> list[StepBase]:
    return d.cache_drop(d.disk(context)) if spec.evict else []


def _dust_needs(spec: Spec) -> tuple[Need, ...]:
    return (*d.needs_dm(spec), NeedDmTarget("dust"))


def _dust_supports(spec: Spec, context: Context) -> str | None:
    if spec.on_write != "heal":
        return f"dm-dust heals on write (--on-write {spec.on_write})"
    if spec.retry_delay:
        return "dm-dust fails at once (--retry-delay)"
    return d.dm_supports(spec, context)


def _dust_plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    bound = d.the_dm_layer(context)
    return _dm_steps(
        spec, context, DustSegment(block_size=bound.layer.logical_block, bad=bound.ranges)
    )


def _watch_needs(spec: Spec) -> tuple[Need, ...]:
    return (NeedBpf("bio_trace"),) if spec.on_write == "heal" else ()


def _delay_needs(spec: Spec) -> tuple[Need, ...]:
    targets = (NeedDmTarget("delay", (1, 2, 1)), NeedDmTarget("error"))
    return (*d.needs_dm(spec), *targets, *_watch_needs(spec))


def _delay_supports(spec: Spec, context: Context) -> str | None:
    if spec.on_write == "fail":
        return "writes pass through the split dm-delay (--on-write fail)"
    return d.dm_supports(spec, context)


def _delay_plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    layer = d.the_dm_layer(context)
    name = f"faultctl-{d.short(context.facts.node_id)}-{context.fault_id}-err"
    errors = DmCreate(name=name, uuid=name.upper(), table=(f"0 {layer.layer.size_sectors} error",))
    delay_ms = spec.retry_delay // timedelta(milliseconds=1)
    segment = SplitDelaySegment(error_device=name, delay_ms=delay_ms)
    return _dm_steps(spec, context, segment, errors)


def _flakey_needs(spec: Spec) -> tuple[Need, ...]:
    feature = NeedDmFeature("flakey:error_reads", "6.5")
    return (*d.needs_dm(spec), NeedDmTarget("flakey"), feature, *_watch_needs(spec))


def _flakey_supports(spec: Spec, context: Context) -> str | None:
    if spec.on_write == "fail":
        return "writes pass through dm-flakey's error_reads (--on-write fail)"
    if spec.retry_delay:
        return "dm-flakey fails at once (--retry-delay)"
    return d.dm_supports(spec, context)


def _flakey_plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    segment = FlakeySegment(up_s=0, down_s=ALWAYS_DOWN_S, error_reads=True)
    return _dm_steps(spec, context, segment)


def _error_supports(spec: Spec, context: Context) -> str | None:
    if spec.on_write != "fail":
        return f"dm-error fails writes too (--on-write {spec.on_write})"
    if spec.retry_delay:
        return "dm-error fails at once (--retry-delay)"
    return d.dm_supports(spec, context)


def _error_plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    return _dm_steps(spec, context, ErrorSegment())


# --- afterwards -------------------------------------------------------------------


def _guards(spec: Spec, context: Context) -> tuple[Guard, ...]:
    return d.guards(context, whole_device=False)


def _evidence(spec: Spec, measured: tuple[Measured, ...]) -> Evidence:
    said = []
    if not any(item.step.model_dump().get("op") == "cache_drop" for item in measured):
        said.append("cached copies of these sectors are unknown: reads from the page cache succeed")
    return d.evidence(measured, said)


def _react(spec: Spec, steps: tuple[StepBase, ...], event: NodeEvent) -> Reaction | None:
    if isinstance(event, FileEvent):
        return d.file_reaction(event)
    if spec.on_write != "heal":
        return None
    for index, step in enumerate(steps):
        if not isinstance(step, DmOverlay | BioFail) or not _same_device(step, event):
            continue
        left = d.healed(_bad(step), event, 1)
        if left is None:
            continue
        if not left:
            return Reaction(remedied="every bad sector was rewritten")
        return Reaction(replace=(index, _with_bad(step, left)))
    return None


def _bad(step: DmOverlay | BioFail) -> Ranges:
    """Sectors that a step still holds as bad."""
    if isinstance(step, DmOverlay) and isinstance(step.segment, DustSegment):
        return step.segment.bad
    return step.ranges


def _with_bad(step: DmOverlay | BioFail, bad: Ranges) -> StepBase:
    """The step with fewer bad sectors; dm-dust keeps its segments, only its list shrinks."""
    if isinstance(step, DmOverlay) and isinstance(step.segment, DustSegment):
        return step.model_copy(update={"segment": step.segment.model_copy(update={"bad": bad})})
    return step.model_copy(update={"ranges": bad})


def _same_device(step: DmOverlay | BioFail, record: IoRecord) -> bool:
    return record.device == f"{step.major}:{step.minor}"


def _collateral(spec: Spec) -> tuple[str, ...]:
    said = ["what a program did after a read failed (a crash, a fail-over) stays done"]
    if spec.on_write == "fail":
        said.append("failed writes can abort the file system's journal: read-only until remounted")
    if spec.metadata:
        said.append("a failed metadata read can shut the file system down until it is mounted anew")
    return tuple(said)


KIND = FaultKind(
    name="latent-sector",
    summary="chosen sectors of a disk cannot be read",
    doc="""\
Reads of the chosen sectors fail with EIO at the block layer, as they do on a drive with a
latent sector error; all other sectors, and by default writes, are untouched. The fault is
below the file system, so that every way of reading meets it: read(2), mmap, O_DIRECT,
readahead, io_uring. A program that has the data in a cache of its own (PostgreSQL's shared
buffers) or in the page cache does not read the disk; --evict drops the page cache of exactly
the affected file range and reports what is still cached and why.

A bio that overlaps a bad sector fails as a whole, as a drive's command does; the file
system then retries page by page. The kernel's status is EIO where a real drive has
ENODATA under O_DIRECT (`faultctl fidelity latent-sector` compares).

On-write: `heal` is what a drive does, it remaps the sector at the next write. Where the
mechanism cannot heal by itself (dm-delay, dm-flakey) the agent sees the write by a trace and
swaps the table some milliseconds later.""",
    spec=Spec,
    targets=("file", "device", "volume"),
    ladder=(
        Rung(
            "bpf-bio",
            "exact sectors of any live block device",
            _bpf_needs,
            _bpf_plan,
            _bpf_supports,
        ),
        Rung(
            "dm-dust",
            "reads fail, the kernel heals on write",
            _dust_needs,
            _dust_plan,
            _dust_supports,
        ),
        Rung(
            "dm-delay",
            "reads go to an error device, writes pass",
            _delay_needs,
            _delay_plan,
            _delay_supports,
        ),
        Rung(
            "dm-flakey", "error_reads, always down", _flakey_needs, _flakey_plan, _flakey_supports
        ),
        Rung("dm-error", "reads and writes fail", d.needs_dm, _error_plan, _error_supports),
    ),
    evidence=_evidence,
    collateral=_collateral,
    remedies=(
        "rewrite the bad sectors (on-write heal), for example by rewriting the table or file",
        "move the data to another volume, or fail over to a replica",
        "replace the volume",
    ),
    select=select,
    guards=_guards,
    react=_react,
    no_hits_hint="nobody has read these sectors since: the data may be in the page cache, in a "
    "program's own cache (shared buffers), or not be used at all",
    examples=(
        "faultctl inject latent-sector --file /var/lib/postgresql/17/main/base/5/16384",
        "faultctl inject latent-sector --device /dev/mapper/data --sectors 1024+8",
        "faultctl inject latent-sector --volume /srv --count 3 --seed 7 --used --retry-delay 700ms",
    ),
)
