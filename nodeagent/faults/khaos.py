"""khaos:*: the fault names of SREGym's khaos, as presets of our kinds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from pydantic import Field, model_validator

from nodeagent.encode.syscalls import expand
from nodeagent.faults import _syscall_evidence as se
from nodeagent.faults import _syscall_plan as sp
from nodeagent.faults import latent_sector
from nodeagent.faults._khaos_table import PARTS, STORIES, Part
from nodeagent.model.evidence import Evidence
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Measured, Rung
from nodeagent.model.steps import StepBase
from nodeagent.model.units import Percent


class Spec(FaultSpec):
    """How often and for whom; what becomes of which calls, the name says."""

    rate: Percent | None = Field(
        default=None, description="share of the matching calls; by default the name's own"
    )
    every: int = Field(default=1, ge=1, lt=1 << 32, description="only each n-th matching call")
    first: int | None = Field(
        default=None, ge=1, lt=1 << 63, description="only among the first n matching calls"
    )
    at_most: int | None = Field(
        default=None, ge=1, lt=1 << 63, description="so many calls fail of each effect, no more"
    )
    seed: int = Field(default=0, ge=0, lt=1 << 63, description="seed of the rate's draws")
    tree: bool = Field(
        default=False, description="with --pid: its descendants too, also those of later"
    )
    runtime: bool = Field(
        default=False, description="with --cgroup: hit container runtimes and pause as well"
    )

    @model_validator(mode="after")
    def _sound(self) -> Spec:
        if self.rate is not None and (
            not self.rate or self.rate * 10_000 != int(self.rate * 10_000)
        ):
            raise ValueError("rate: more than 0%, in steps of 0.0001%")
        return self


@dataclass(frozen=True)
class _Effect:
    """One part with the user's options: what the planner of syscall takes."""

    call: tuple[str, ...]
    errno: str | None
    value: int | None
    after: bool
    rate: Decimal
    every: int
    first: int | None
    at_most: int | None
    seed: int
    runtime: bool
    uid: int | None = None
    when: str = ""
    exe: tuple[str, ...] = ()
    fd_type: tuple[sp.FdType, ...] = ()
    path: tuple[str, ...] = ()
    on_device: str | None = None
    port: tuple[int, ...] = ()
    address: tuple[str, ...] = ()


def effects(parts: tuple[Part, ...], spec: Spec) -> tuple[_Effect, ...]:
    """The distinct effects of some parts: the same one twice is one."""
    found: dict[tuple[Any, ...], _Effect] = {}
    for part in parts:
        number = int(part.result) if part.result.isdigit() else None
        found[part.call, part.result, part.after] = _Effect(
            call=part.call,
            errno=part.result if number is None else None,
            value=number,
            after=part.after,
            rate=Decimal(part.rate) if spec.rate is None else spec.rate,
            every=spec.every,
            first=spec.first,
            at_most=spec.at_most,
            seed=spec.seed,
            runtime=spec.runtime,
        )
    return tuple(found.values())


def _rung(parts: tuple[Part, ...], rung: Rung) -> Rung:
    """A rung of syscall for several effects: it serves all of them, or none."""

    def supports(spec: Any, context: Context) -> str | None:
        reasons = (rung.supports(effect, context) for effect in effects(parts, spec))
        return next((reason for reason in reasons if reason is not None), None)

    def plan(spec: Any, context: Context) -> list[StepBase]:
        return [step for e in effects(parts, spec) for step in rung.plan(e, context)]

    return replace(rung, supports=supports, plan=plan)


def _calls(parts: tuple[Part, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(call for part in parts for call in part.call))


def _doc(parts: tuple[Part, ...], story: str) -> str:
    calls = ", ".join(call.name for call in expand(_calls(parts)))
    lines = [f"A story of several faults under one id, with one revert: {story}."] if story else []
    for part in dict.fromkeys(parts):
        way = "is done, and then " if part.after else ""
        result = f"returns {part.result}"
        share = "" if part.rate == 100 else f" for {part.rate} % of the calls"
        lines.append(f"In khaos: {part.khaos}. Here: {', '.join(part.call)} {way}{result}{share}.")
        if part.note:
            lines.append(part.note)
    lines.append(
        f"All aliases of the operation are hit ({calls}), in all threads of the process; with "
        "--tree in its children, with --cgroup through restarts. khaos hits the one call, and the "
        "process it was given. Nothing is pinned, nothing is left when the agent dies."
    )
    if len(set(parts)) > 1 or len(effects(parts, Spec())) < len(parts):
        lines.append(
            f"{len(effects(parts, Spec()))} distinct effect(s); the same one is armed once."
        )
    lines.append("See also: faultctl explain syscall")
    return "\n".join(lines)


def _preset(name: str, parts: tuple[Part, ...], story: str = "") -> FaultKind:
    def evidence(spec: Any, measured: tuple[Measured, ...]) -> Evidence:
        return se.evidence(_calls(parts), measured)

    def collateral(spec: Any) -> tuple[str, ...]:
        said = ["what a program did because a call failed (a crash, a fail-over) stays done"]
        if any(part.after for part in parts):
            said.append("the calls are really done: what they opened or mapped stays")
        return tuple(said)

    summary = story or f"as in khaos: {parts[0].khaos}"
    return FaultKind(
        name=f"khaos:{name}",
        summary=summary,
        doc=_doc(parts, story),
        spec=Spec,
        targets=("pid", "cgroup"),
        family="process",
        ladder=tuple(_rung(parts, rung) for rung in sp.LADDER),
        evidence=evidence,
        collateral=collateral,
        remedies=(
            "restart the process (a fault on --pid ends with it; on --cgroup it holds)",
            "move the workload to another node, or fail over to a replica",
        ),
        guards=sp.guards,
        react=sp.react,
        polled=True,
        preset_of="syscall",
        no_hits_hint="the target has made no such call since: see faultctl explain syscall",
        examples=(
            f"faultctl inject khaos:{name} --pid 4242",
            f"faultctl inject khaos:{name} --cgroup /kubepods.slice/pod1 --rate 50% --seed 7",
        ),
    )


BLOCK_READ_ERROR = replace(
    latent_sector.KIND,
    name="khaos:block_read_error",
    summary="as in khaos: reads of chosen sector ranges fail",
    doc="In khaos: reads of at most 32 sector ranges `start:end` return an error. Here the kind "
    "latent-sector by another name: ranges are written `start+length` or `first-last`, there may "
    "be 100,000 of them, a write heals by default, and metadata is spared unless asked for.\n"
    "See also: faultctl explain latent-sector",
    preset_of="latent-sector",
    examples=("faultctl inject khaos:block_read_error --device /dev/mapper/data --sectors 8+8",),
)

KINDS: tuple[FaultKind, ...] = (
    *(_preset(name, (part,)) for name, part in PARTS.items()),
    *(
        _preset(name, tuple(PARTS[part] for part in story.parts), story.text)
        for name, story in STORIES.items()
    ),
    BLOCK_READ_ERROR,
)
