"""disk-flaky: a disk that works for some seconds, fails for some, and so on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from nodeagent.faults import _disk as d
from nodeagent.faults import _disk_evidence as de
from nodeagent.model.evidence import Evidence
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Guard, Measured, Rung
from nodeagent.model.steps import StepBase
from nodeagent.model.units import Duration, format_duration

SECOND = timedelta(seconds=1)


def _interval(value: timedelta) -> timedelta:
    if value < SECOND or value % SECOND:
        raise ValueError("dm-flakey counts whole seconds, 1s or more")
    if value > timedelta(days=1):
        raise ValueError("an interval is at most 1d")
    return value


Interval = Annotated[Duration, AfterValidator(_interval)]


class Spec(FaultSpec):
    """When the disk works and when it does not."""

    up: Interval = Field(
        default=timedelta(seconds=10), description="works for so long, in whole seconds"
    )
    down: Interval = Field(
        default=timedelta(seconds=5), description="then fails for so long, in whole seconds"
    )
    fail: Literal["all", "reads", "writes"] = Field(
        default="all", description="what fails while it is down"
    )


def _plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    segment = d.flakey(spec, spec.up // SECOND, spec.down // SECOND)
    return d.steps_on_dm(context, segment, ("failed",))


def _guards(spec: Spec, context: Context) -> tuple[Guard, ...]:
    return d.guards(context, whole_device=True)


def _evidence(spec: Spec, measured: tuple[Measured, ...]) -> Evidence:
    up, down = format_duration(spec.up), format_duration(spec.down)
    said = [f"up for {up}, then down for {down}, by turns since it was armed"]
    if spec.fail != "writes":
        said.append(de.CACHED_READS)
    return de.evidence(measured, said)


def _collateral(spec: Spec) -> tuple[str, ...]:
    said = ["what a program did after its I/O failed (a crash, a fail-over) stays done"]
    if spec.fail == "reads":
        return (*said, "a metadata read that fails can shut the file system down until a remount")
    return (*said, *de.FAILED_WRITES)


KIND = FaultKind(
    name="disk-flaky",
    summary="a disk works for some seconds and fails for some, by turns",
    doc="""\
Like a loose cable: for --up the disk works, for --down its I/O ends with EIO, and again. The
clock is dm-flakey's: it counts whole seconds from the moment when its table is loaded, and
begins with an up interval, so the first failure comes after --up.

While it is down flushes fail with the writes. What was under way when an interval ends
is not touched, except reads: one that was sent while the disk was down fails.

A file system often does not outlive the first down interval: after a failed journal write
ext4 turns read-only and XFS shuts down, and the following up interval does not bring them
back. Use --fail reads for a fault that comes and goes for those above too (needs a
dm-flakey with error_reads).""",
    spec=Spec,
    targets=("device", "volume"),
    ladder=(
        Rung(
            "dm-flakey",
            "intervals in the kernel's own target",
            d.needs_flakey,
            _plan,
            d.flakey_supports,
        ),
    ),
    evidence=_evidence,
    collateral=_collateral,
    remedies=(
        "fail over to a replica on another node or disk",
        "replace the volume, then restore the data to it",
        "once the disk works again: unmount, fsck, mount, restart what depends on it",
    ),
    guards=_guards,
    no_hits_hint="nobody has used the disk during a down interval since",
    examples=(
        "faultctl inject disk-flaky --volume /srv/data --up 20s --down 3s --fail reads",
        "faultctl inject disk-flaky --device /dev/mapper/data --up 1m --down 10s",
    ),
)
