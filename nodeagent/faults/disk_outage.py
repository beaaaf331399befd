"""disk-outage: a disk is there, and every read, every write, or both fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from nodeagent.faults import _disk as d
from nodeagent.faults import _disk_evidence as de
from nodeagent.faults import _disk_sectors as ds
from nodeagent.model.evidence import Evidence
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Guard, Measured, Rung
from nodeagent.model.steps import StepBase
from nodeagent.model.steps.block import (
    ErrorSegment,
    ReadCheck,
    SegmentKind,
    SplitDelaySegment,
)


class Spec(FaultSpec):
    """What fails."""

    fail: Literal["all", "reads", "writes"] = Field(
        default="all", description="what fails: reads and writes, or one of them only"
    )
    cgroup: ds.Cgroup = ""


def _check(spec: Spec, context: Context, on_dm: bool) -> ReadCheck:
    bound = d.the_dm_layer(context) if on_dm else d.disk(context).block.layers[0]
    return d.read_check(bound, fails=spec.fail != "writes")


def _dm_plan(spec: Spec, context: Context, segment: SegmentKind) -> list[StepBase]:
    return d.steps_on_dm(context, segment, ("failed",), _check(spec, context, on_dm=True))


# --- rungs ------------------------------------------------------------------------


def _flakey_plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    return _dm_plan(spec, context, d.flakey(spec, 0, d.ALWAYS_DOWN_S))


def _bpf_plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    fail = d.bio_fail(context, reads=spec.fail != "writes", writes=spec.fail != "reads")
    return [fail] if fail.only else [fail, _check(spec, context, on_dm=False)]


def _delay_supports(spec: Spec, context: Context) -> str | None:
    if spec.fail == "all":
        return "the split dm-delay fails one direction only (--fail all)"
    return d.dm_supports(spec, context)


def _delay_plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    errors = d.error_device(context, d.the_dm_layer(context))
    segment = SplitDelaySegment(
        error_device=errors.name, delay_ms=0, fails="read" if spec.fail == "reads" else "write"
    )
    return [errors, *_dm_plan(spec, context, segment)]


def _error_supports(spec: Spec, context: Context) -> str | None:
    if spec.fail != "all":
        return f"dm-error fails reads and writes (--fail {spec.fail})"
    return d.dm_supports(spec, context)


def _error_plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    return _dm_plan(spec, context, ErrorSegment())


# --- afterwards -------------------------------------------------------------------


def _guards(spec: Spec, context: Context) -> tuple[Guard, ...]:
    return d.guards(context, whole_device=True)


def _evidence(spec: Spec, measured: tuple[Measured, ...]) -> Evidence:
    said = [] if spec.fail == "writes" else [de.CACHED_READS]
    return de.evidence(measured, said)


def _collateral(spec: Spec) -> tuple[str, ...]:
    said = ["what a program did after its I/O failed (a crash, a fail-over) stays done"]
    if spec.fail == "reads":
        return (*said, "a metadata read that fails can shut the file system down until a remount")
    return (*said, *de.FAILED_WRITES)


KIND = FaultKind(
    name="disk-outage",
    summary="all I/O of a disk fails, or all its reads, or all its writes",
    doc="""\
The device stays where it is, and its I/O ends with EIO at once: as a disk whose controller
has given up, or (--fail writes) one that has turned read-only in its firmware. The file
system above stays mounted and makes of it what it makes of such a disk.

Flushes: dm-flakey, where it takes the whole device, fails them too while writes fail. The
other mechanisms let them pass (device-mapper sends none to dm-error, and a BPF program sees
bios with data only), so that an fsync with nothing to write still succeeds. Discards fail
with dm-flakey and dm-error and pass by BPF.

Only I/O that reaches the disk fails: reads from the page cache go on, and buffered writes
fail later, at the next fsync or in the background (then: a line in the kernel log).""",
    spec=Spec,
    targets=("device", "volume"),
    ladder=(
        Rung(
            "dm-flakey",
            "always down; flushes fail with the writes",
            d.needs_flakey,
            _flakey_plan,
            d.flakey_supports,
        ),
        Rung("bpf-bio", "all sectors of any live block device", d.needs_bio_fail, _bpf_plan),
        Rung(
            "dm-delay",
            "one direction goes to an error device",
            d.needs_split_delay,
            _delay_plan,
            _delay_supports,
        ),
        Rung("dm-error", "reads and writes fail", d.needs_dm, _error_plan, _error_supports),
    ),
    evidence=_evidence,
    collateral=_collateral,
    remedies=(
        "fail over to a replica on another node or disk",
        "replace the volume, then restore the data to it",
        "once the disk works again: unmount, fsck, mount, restart what depends on it",
    ),
    guards=_guards,
    no_hits_hint="nobody has used the disk since: reads may come from the page cache, and "
    "writes may wait there for the next write-back",
    examples=(
        "faultctl inject disk-outage --volume /srv/data",
        "faultctl inject disk-outage --device /dev/mapper/data --fail writes",
    ),
)
