"""disk-fill: a file system runs full, by a hidden file that the revert removes."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from pydantic import Field, model_validator

from nodeagent.model.evidence import Evidence
from nodeagent.model.facts import NeedRoot
from nodeagent.model.fill import FillBinding
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Guard, Measured, Rung
from nodeagent.model.steps.fill import FileFill
from nodeagent.model.units import Percent, Size

RESERVE = 64 << 20
"""Bytes left free on a file system that the node itself lives on: journal, kubelet, logs."""


class Spec(FaultSpec):
    """How much; exactly one of the three."""

    bytes: Size | None = Field(default=None, description="take so many bytes")
    percent: Percent | None = Field(
        default=None, description="until so much of what users can have is used"
    )
    leave_free: Size | None = Field(
        default=None, description="until so many bytes are free to users; 0B: none"
    )

    @model_validator(mode="after")
    def _sound(self) -> Spec:
        asked = [one for one in (self.bytes, self.percent, self.leave_free) if one is not None]
        if len(asked) != 1:
            raise ValueError("exactly one of bytes, percent and leave_free is needed")
        if self.bytes == 0 or self.percent == 0:
            raise ValueError("that would take nothing")
        return self


def _supports(spec: Spec, context: Context) -> str | None:
    binding: FillBinding = context.binding
    if spec.bytes is not None and spec.bytes > binding.size:
        return f"{spec.bytes} bytes are more than the file system has: {binding.size}"
    if spec.leave_free is not None and spec.leave_free >= binding.size:
        return f"{spec.leave_free} bytes are all that the file system has: nothing would be taken"
    return None


def _plan(spec: Spec, context: Context) -> list[FileFill]:
    return [FileFill(**filling(context, RESERVE, spec.bytes, spec.percent, spec.leave_free))]


def filling(
    context: Context, reserve: int, take: int | None, percent: Decimal | None, leave: int | None
) -> dict[str, Any]:
    """Where a step takes room, and how much: by one of the last three. Values of a RoomFill."""
    binding: FillBinding = context.binding
    how, value = "leave", leave
    if take is not None:
        how, value = "take", take
    elif percent is not None:
        how, value = "used", int(percent * 10_000)
    return {
        "folder": binding.folder,
        "device": binding.device,
        "name": f".faultctl-{context.fault_id}",
        "how": how,
        "value": value,
        "reserve": reserve if binding.node_uses else 0,
    }


def _guards(spec: Any, context: Context) -> tuple[Guard, ...]:
    binding: FillBinding = context.binding
    if not binding.node_uses:
        return ()
    named = ", ".join(binding.node_uses[:4])
    return (Guard("node-disk", f"the node itself lives on this file system: {named}"),)


def evidence(spec: Any, measured: tuple[Measured, ...]) -> Evidence:
    """Bytes taken and left, by statvfs(3)."""
    found = next((item.data for item in measured if "file" in item.data), None)
    if found is None:
        return Evidence(counted=False)
    there = found["file"] is not None
    return Evidence(
        counted=True,
        hits=int(there),
        counters={
            "taken": found["file"] or 0,
            "free_before": found["before"],
            "free_now": found["free"],
        },
        statements=() if there else ("the file has been removed: the operator has found it",),
    )


KIND = FaultKind(
    name="disk-fill",
    summary="a file system runs full",
    doc="""\
A hidden file, .faultctl-ID in the root of the file system, takes the space by fallocate(2):
nothing is written to the disk. What is counted is what processes without privileges can have
(f_bavail): blocks reserved for root are not taken. After it the free space is measured; if it is
more than 1 % of the file system off what was asked, the fault is taken back and is an error.

On a file system that the node itself lives on (the agent's journal, the kubelet's directory) 64 MiB
are always left, and it has to be named: --i-know node-disk. The file outlives a reboot, and the
agent removes it when it starts; where the file system is not mounted then, the fault stays
`reverting` until it is.""",
    spec=Spec,
    targets=("volume",),
    family="fill",
    ladder=(
        Rung(
            "fallocate",
            "one hidden file of unwritten extents",
            lambda spec: (NeedRoot(),),
            _plan,
            _supports,
        ),
    ),
    evidence=evidence,
    collateral=lambda spec: (
        "writes that failed with ENOSPC have failed; a database may have stopped itself",
    ),
    remedies=("remove the file: rm MOUNT/.faultctl-ID", "grow the volume", "remove other files"),
    guards=_guards,
    examples=(
        "faultctl inject disk-fill --volume /var/lib/db --leave-free 0B",
        "faultctl inject disk-fill --volume /var/lib/db --percent 95%",
        "faultctl inject disk-fill --volume /var/lib/db --bytes 2Gi",
    ),
)
