"""disk-corrupt: bytes change silently on their way from or to the disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from nodeagent.encode.dm_targets import PROBABILITY_BASE
from nodeagent.faults import _disk as d
from nodeagent.faults import _disk_evidence as de
from nodeagent.model.evidence import Evidence, IoRecord
from nodeagent.model.facts import Facts, Need, NeedDmFeature, NeedDmTarget
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Guard, Measured, Rung
from nodeagent.model.steps import StepBase
from nodeagent.model.steps.block import CorruptByte, FlakeySegment, ReadCheck
from nodeagent.model.units import Percent, format_percent

MAX_BYTE = 65_536
SMALLEST_BIO = 512
_PER_PERCENT = PROBABILITY_BASE // 100


def _chance(value: Decimal) -> Decimal:
    if value <= 0 or value * _PER_PERCENT % 1:
        raise ValueError("a rate is more than 0% and a multiple of 0.0000001%")
    return value


Rate = Annotated[Percent, AfterValidator(_chance)]


class Spec(FaultSpec):
    """Which bytes change, how, and how often."""

    direction: Literal["read", "write"] = Field(
        default="read", description="change what is read, or what is written"
    )
    rate: Rate | None = Field(
        default=None,
        description="share of the bios of which one random byte gets a random value; "
        "100% unless --byte is given",
    )
    byte: int | None = Field(
        default=None,
        ge=1,
        le=MAX_BYTE,
        description="position of the byte in every bio, from 1, instead of a random one",
    )
    value: int | None = Field(
        default=None, ge=0, le=255, description="value that the byte gets; goes with --byte"
    )

    @model_validator(mode="after")
    def _one_way(self) -> Spec:
        if (self.byte is None) != (self.value is None):
            raise ValueError("byte and value go together")
        if self.byte is not None and self.rate is not None:
            raise ValueError("byte changes every bio: it excludes rate")
        return self

    @property
    def chance(self) -> int:
        """Of 1e9 bios so many; 0 where the byte is chosen."""
        if self.byte is not None:
            return 0
        return int((Decimal(100) if self.rate is None else self.rate) * _PER_PERCENT)

    @property
    def every_bio(self) -> bool:
        """Whether each bio that is counted was changed for sure."""
        if self.byte is not None:
            return self.byte <= SMALLEST_BIO
        return self.chance == PROBABILITY_BASE


@dataclass(frozen=True)
class NeedCorrupting:
    """A dm-flakey that does what it says; facts come from a trial at the agent's start."""

    direction: Literal["read", "write"]

    def missing(self, facts: Facts) -> str | None:
        if f"flakey:corrupts_{self.direction}s" in facts.dm_features:
            return None
        if "flakey:tried" not in facts.dm_features:
            return "whether dm-flakey corrupts at all could not be tried here (module loop)"
        if self.direction == "read":
            return (
                "this kernel's dm-flakey accepts to corrupt reads and changes nothing "
                "(tried on a loop device; newer kernels do it)"
            )
        return (
            "this kernel's dm-flakey changes the writer's own memory instead of what is "
            "written (tried on a loop device; Linux 6.5 and later change a copy)"
        )


def _needs(spec: Spec) -> tuple[Need, ...]:
    needs: tuple[Need, ...] = (*d.needs_dm(spec), NeedDmTarget("flakey", (1, 2, 0)))
    if spec.byte is None:
        needs = (*needs, NeedDmFeature(f"flakey:random_{spec.direction}_corrupt", "6.5"))
    return (*needs, NeedCorrupting(spec.direction))


def _segment(spec: Spec) -> FlakeySegment:
    byte = None
    if spec.byte is not None and spec.value is not None:
        direction: Literal["r", "w"] = "r" if spec.direction == "read" else "w"
        byte = CorruptByte(nth=spec.byte, direction=direction, value=spec.value)
    return FlakeySegment(
        up_s=0,
        down_s=d.ALWAYS_DOWN_S,
        corrupt=byte,
        random_read=spec.chance if spec.direction == "read" else 0,
        random_write=spec.chance if spec.direction == "write" else 0,
    )


def _check(spec: Spec, context: Context) -> ReadCheck:
    """What a read of live data can show: a known byte, or that two reads differ."""
    bound = d.the_dm_layer(context)
    if spec.direction == "read" and spec.byte is not None and spec.value is not None:
        return d.read_check(bound, spec.byte, fails=False, byte=(spec.byte, spec.value))
    differs = spec.direction == "read" and spec.every_bio
    return d.read_check(bound, fails=False, differs=differs)


def _plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    emit: Literal["reads", "writes"] = "reads" if spec.direction == "read" else "writes"
    return d.steps_on_dm(context, _segment(spec), ("failed", emit), _check(spec, context))


def _guards(spec: Spec, context: Context) -> tuple[Guard, ...]:
    if spec.direction == "write":
        why = "wrong bytes are written to the disk and stay there"
    else:
        why = "wrong bytes that were read stay in the page cache and can be written back"
    return (*d.guards(context, whole_device=True), Guard(de.DATA_LOSS, why))


def _evidence(spec: Spec, measured: tuple[Measured, ...]) -> Evidence:
    if spec.every_bio:
        said = [f"each {spec.direction} that is counted as well had one byte overwritten"]
    elif spec.byte is not None:
        said = [f"a {spec.direction} shorter than {spec.byte} bytes passes unchanged"]
    else:
        share = format_percent(Decimal(spec.chance) / _PER_PERCENT)
        said = [f"about {share} of the {spec.direction}s counted; the kernel does not say which"]
    said += [de.CACHED_READS] if spec.direction == "read" else []
    return de.evidence(
        measured,
        [*said, _after(spec)],
        hits=(de.PASSED[spec.direction],),
        countable=spec.every_bio,
    )


def _hit(spec: Spec, record: IoRecord) -> bool:
    return spec.every_bio and de.passed(record, spec.direction)


def _after(spec: Spec) -> str:
    if spec.direction == "write":
        return de.FSCK
    return (
        "after the revert wrong bytes may still be in the page cache: unmount the file system "
        "to drop them; if anything was written meanwhile, run fsck before it is mounted again"
    )


def _collateral(spec: Spec) -> tuple[str, ...]:
    if spec.direction == "write":
        lasting = "wrong bytes that were written stay on the disk for good"
    else:
        lasting = (
            "wrong bytes that were read are written back where their page is changed, or where "
            "the file system acts on them: then they stay on the disk for good"
        )
    return (lasting, "what a program did with wrong data stays done", _after(spec))


KIND = FaultKind(
    name="disk-corrupt",
    summary="bytes change silently as they are read or written",
    doc="""\
I/O succeeds, and a byte of it is wrong: what ECC or a checksum should have found. By default
one random byte of every bio gets a random value (one in 256 is the value that it had); with
--rate of that share of the bios. With --byte and --value the chosen byte of every bio gets the
chosen value; a bio that is shorter passes unchanged. A bio is what the file system sends
as one: a page, or a megabyte; so the share of wrong bytes depends on how the data is read.

On read the disk keeps the right data, and other reads of it differ. What was read before is
in the page cache and stays right; what is read now stays wrong there until it is evicted.
On write the wrong data is on the disk and the page cache has the right one.

The ladder has one rung, dm-flakey, and kernels differ: the random form is new in Linux 6.5;
before that release a corrupted write changes the writer's own memory, which is another
fault, and kernels such as 6.1 accept to corrupt reads and change nothing. The agent tries both
on a private loop device when it starts, and refuses what would be a lie.

Both directions can lose data, so each has to be acknowledged: --i-know data-loss.""",
    spec=Spec,
    targets=("device", "volume"),
    ladder=(Rung("dm-flakey", "corrupts bios, always down", _needs, _plan, d.dm_supports),),
    evidence=_evidence,
    collateral=_collateral,
    remedies=(
        "find what is wrong by checksums (a database's own, fsck, btrfs scrub) and restore it",
        "fail over to a replica whose checksums are right and build this one anew",
        "replace the volume",
    ),
    hit=_hit,
    guards=_guards,
    no_hits_hint="nobody has read (or written) the disk since: reads may come from the page cache",
    examples=(
        "faultctl inject disk-corrupt --volume /srv/data --rate 2.5% --i-know data-loss",
        "faultctl inject disk-corrupt --device /dev/mapper/data --direction write --byte 100 "
        "--value 255 --i-know data-loss",
    ),
)
