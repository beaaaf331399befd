"""disk-delay: reads, writes and flushes of a disk come late, each by its own time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from nodeagent.faults import _disk as d
from nodeagent.faults import _disk_evidence as de
from nodeagent.model.evidence import Evidence, IoRecord
from nodeagent.model.facts import Need, NeedDmTarget
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Guard, Measured, Rung
from nodeagent.model.steps import StepBase
from nodeagent.model.steps.block import DelaySegment, WatchOp
from nodeagent.model.units import Duration

MILLISECOND = timedelta(milliseconds=1)
MAX_DELAY = timedelta(minutes=10)
HUNG_TASK = timedelta(seconds=120)


def _late(value: timedelta) -> timedelta:
    if value % MILLISECOND:
        raise ValueError("dm-delay counts whole milliseconds")
    if value > MAX_DELAY:
        raise ValueError("a delay is at most 10m")
    return value


Late = Annotated[Duration, AfterValidator(_late)]


class Spec(FaultSpec):
    """How late each class of I/O is."""

    read: Late = Field(default=timedelta(0), description="reads end so much later")
    write: Late = Field(default=timedelta(0), description="writes end so much later")
    flush: Late = Field(default=timedelta(0), description="cache flushes (fsync) end so much later")

    @model_validator(mode="after")
    def _some_delay(self) -> Spec:
        if not (self.read or self.write or self.flush):
            raise ValueError("nothing would be late: give read, write or flush a delay")
        return self

    @property
    def ops(self) -> tuple[str, ...]:
        """Directions whose bios can be counted as late."""
        return tuple(op for op, late in (("read", self.read), ("write", self.write)) if late)


def _needs(spec: Spec) -> tuple[Need, ...]:
    return (*d.needs_dm(spec), NeedDmTarget("delay", (1, 2, 1)))


def _supports(spec: Spec, context: Context) -> str | None:
    objection = d.dm_supports(spec, context)
    if objection is None and spec.flush:
        return d.flushes_suffer(context, "dm-delay", "delay")
    return objection


def _plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    segment = DelaySegment(
        read_ms=spec.read // MILLISECOND,
        write_ms=spec.write // MILLISECOND,
        flush_ms=spec.flush // MILLISECOND,
    )
    words: dict[str, WatchOp] = {"read": "reads", "write": "writes"}
    emit = ("failed", *(words[op] for op in spec.ops))
    check = d.read_check(d.the_dm_layer(context), fails=False, at_least_ms=segment.read_ms)
    return d.steps_on_dm(context, segment, emit, check)


def _guards(spec: Spec, context: Context) -> tuple[Guard, ...]:
    return d.guards(context, whole_device=True)


def _evidence(spec: Spec, measured: tuple[Measured, ...]) -> Evidence:
    said = []
    if spec.read:
        said.append(de.CACHED_READS)
    if spec.flush:
        said.append("flushes are not counted; a disk without a write cache is sent none at all")
    return de.evidence(
        measured,
        said,
        hits=tuple(de.PASSED[op] for op in spec.ops),
        countable=bool(spec.ops),
        timed=True,
    )


def _hit(spec: Spec, record: IoRecord) -> bool:
    return any(de.passed(record, op) for op in spec.ops)


def _collateral(spec: Spec) -> tuple[str, ...]:
    said = ["what a program did while it waited (a time-out, a fail-over) stays done"]
    if max(spec.read, spec.write, spec.flush) >= HUNG_TASK:
        said.append("the kernel reports hung tasks, and panics where kernel.hung_task_panic is set")
    return tuple(said)


KIND = FaultKind(
    name="disk-delay",
    summary="reads, writes and flushes of a disk come late",
    doc="""\
Each bio waits in the kernel (dm-delay) for its class's time before it goes to the disk, on
top of what the disk itself takes. Bios wait side by side, not one after the other: the delay
is latency, not a limit of throughput. A program that keeps many requests under way is hurt
less than one that waits for each.

A buffered write is not late itself, since it ends in the page cache; the fsync that writes
it back waits for the writes and then, with --flush, for the cache flush, one after the other.
--flush without --write makes only that last part late. A delay that is not given is none.

The time is constant: device-mapper has no jitter, so there is no option for it.

Revert sends everything that waits on its way at once; nothing is lost.""",
    spec=Spec,
    targets=("device", "volume"),
    ladder=(Rung("dm-delay", "waits by class, to the millisecond", _needs, _plan, _supports),),
    evidence=_evidence,
    collateral=_collateral,
    remedies=(
        "move the load to another disk or node, or fail over",
        "take synchronous writes off the path (a faster log device)",
        "replace the volume",
    ),
    hit=_hit,
    guards=_guards,
    no_hits_hint="nobody has sent the disk such I/O since: reads may come from the page cache",
    examples=(
        "faultctl inject disk-delay --volume /srv/data --read 20ms --write 20ms --flush 50ms",
        "faultctl inject disk-delay --device /dev/mapper/data --flush 500ms",
    ),
)
