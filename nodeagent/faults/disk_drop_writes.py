"""disk-drop-writes: writes are acknowledged and lost."""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.faults import _disk as d
from nodeagent.faults import _disk_evidence as de
from nodeagent.model.evidence import Evidence, IoRecord
from nodeagent.model.facts import Need, NeedDmTarget
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Guard, Measured, Rung
from nodeagent.model.steps import StepBase
from nodeagent.model.steps.block import FlakeySegment


class Spec(FaultSpec):
    """There is nothing to choose: every write is lost."""


def _needs(spec: Spec) -> tuple[Need, ...]:
    return (*d.needs_dm(spec), NeedDmTarget("flakey", (1, 2, 0), "drop_writes"))


def _plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    segment = FlakeySegment(up_s=0, down_s=d.ALWAYS_DOWN_S, drop_writes=True)
    check = d.read_check(d.the_dm_layer(context), fails=False)
    return d.steps_on_dm(context, segment, ("failed", "writes"), check)


def _guards(spec: Spec, context: Context) -> tuple[Guard, ...]:
    lost = "every write from now on is lost, and the file system on the disk with it"
    return (*d.guards(context, whole_device=True), Guard(de.DATA_LOSS, lost))


def _evidence(spec: Spec, measured: tuple[Measured, ...]) -> Evidence:
    return de.evidence(
        measured,
        ["each write that is counted as well was acknowledged and never reached the disk", de.FSCK],
        hits=(de.PASSED["write"],),
    )


def _hit(spec: Spec, record: IoRecord) -> bool:
    return de.passed(record, "write")


def _collateral(spec: Spec) -> tuple[str, ...]:
    return (
        "all that is written while it is armed is lost for good, though it was acknowledged",
        "the page cache keeps what the disk never got, so programs see it until it is evicted",
        de.FSCK,
    )


KIND = FaultKind(
    name="disk-drop-writes",
    summary="writes are acknowledged and lost, as in a power failure",
    doc="""\
Writes, flushes and discards succeed at once and never reach the disk (dm-flakey
drop_writes); reads go to the disk. It is what a drive does that lies about its cache when the
power fails: the disk stays as it was at the moment of arming. To see what survives, arm it,
let the program work and call fsync, unmount (or kill what uses it), revert, mount again.

While it is armed the running system hardly notices: what was written is in the page cache.
A read that has to go to the disk finds the old data.

This loses data by design, so it has to be acknowledged: --i-know data-loss. A revert makes
the disk take writes again and brings no data back. Under a file system that stays mounted,
memory and disk no longer agree, and what is written from then on makes it worse: unmount,
then fsck, before anything else.""",
    spec=Spec,
    targets=("device", "volume"),
    ladder=(Rung("dm-flakey", "drop_writes, always down", _needs, _plan, d.dm_supports),),
    evidence=_evidence,
    collateral=_collateral,
    remedies=(
        "unmount the volume, run fsck, and restore what is missing from a replica or backup",
        "fail over to a replica and build this one anew",
        "replace the volume",
    ),
    hit=_hit,
    guards=_guards,
    no_hits_hint="nothing was written to the disk since: buffered writes may wait for the "
    "next write-back",
    examples=(
        "faultctl inject disk-drop-writes --volume /srv/data --i-know data-loss",
        "faultctl inject disk-drop-writes --device /dev/mapper/data --i-know data-loss --lease 30s",
    ),
)
