"""latent-sector: chosen sectors of a disk cannot be read, and nothing else is touched."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field, model_validator

from nodeagent.faults import _disk as d
from nodeagent.faults import _disk_evidence as de
from nodeagent.faults import _disk_sectors as ds
from nodeagent.faults._latent_rungs import LADDER
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.evidence import Evidence, FileEvent, IoRecord, NodeEvent
from nodeagent.model.kind import (
    Context,
    FaultKind,
    FaultSpec,
    Guard,
    Measured,
    Reaction,
)
from nodeagent.model.ranges import Ranges, intersect
from nodeagent.model.steps import StepBase
from nodeagent.model.steps.block import (
    BioFail,
    DmOverlay,
    DustSegment,
)
from nodeagent.model.target import FileTarget
from nodeagent.model.units import Duration


class Spec(FaultSpec):
    """Which sectors are bad, and how they behave."""

    sectors: ds.Sectors | None = Field(
        default=None,
        description="512-byte sectors of the target device: start+length, first-last, by commas",
    )
    count: int | None = Field(
        default=None, ge=1, le=ds.MAX_PICKED, description="so many random blocks instead"
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
    cgroup: ds.Cgroup = ""
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
        return ds.pick_blocks(binding.block.ranges, spec.count, spec.seed, top)
    if spec.sectors is not None:
        ranges = ds.check_inside(ds.whole_blocks(spec.sectors, top), top)
    elif spec.count is not None:
        ranges = ds.pick_blocks(_candidates(spec, context), spec.count, spec.seed, top)
    else:
        raise InvalidSpec(
            "which sectors are to be bad?",
            "a device or volume target needs --sectors or --count",
            "or name a file: --file PATH",
        )
    if not spec.metadata:
        ds.keep_off_metadata(ranges, binding)
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


# --- afterwards -------------------------------------------------------------------


def _guards(spec: Spec, context: Context) -> tuple[Guard, ...]:
    return d.guards(context, whole_device=False)


def _evidence(spec: Spec, measured: tuple[Measured, ...]) -> Evidence:
    said = []
    if not any(item.step.model_dump().get("op") == "cache_drop" for item in measured):
        said.append("cached copies of these sectors are unknown: reads from the page cache succeed")
    return de.evidence(measured, said)


def _react(spec: Spec, steps: tuple[StepBase, ...], event: NodeEvent) -> Reaction | None:
    if isinstance(event, FileEvent):
        return d.file_reaction(event)
    if spec.on_write != "heal" or not isinstance(event, IoRecord):
        return None
    for index, step in enumerate(steps):
        if not isinstance(step, DmOverlay | BioFail) or not _same_device(step, event):
            continue
        left = de.healed(_bad(step), event, 1)
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

--cgroup fails the I/O of one cgroup only, as it is charged: its own reads, and pages that are
written back for it. Others read the same sectors well; what they read is in the page cache
then, and the cgroup finds it there.

On-write: `heal` is what a drive does, it remaps the sector at the next write. Where the
mechanism cannot heal by itself (dm-delay, dm-flakey) the agent sees the write by a trace and
swaps the table some milliseconds later.""",
    spec=Spec,
    targets=("file", "device", "volume"),
    ladder=LADDER,
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
        "faultctl inject latent-sector --device /dev/vdb --sectors 1024+8 --cgroup /db.slice",
        "faultctl inject latent-sector --volume /srv --count 3 --seed 7 --used --retry-delay 700ms",
    ),
)
