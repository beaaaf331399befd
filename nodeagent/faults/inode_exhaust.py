"""inode-exhaust: a file system has space, and no inode for a new file."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from nodeagent.faults import disk_fill
from nodeagent.model.evidence import Evidence
from nodeagent.model.facts import NeedRoot
from nodeagent.model.fill import FillBinding
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Measured, Rung
from nodeagent.model.steps.fill import InodeFill
from nodeagent.model.units import Percent

RESERVE = 1024
"""Inodes left free on a file system that the node itself lives on: journal, kubelet, logs."""


class Spec(FaultSpec):
    """How many; exactly one of the three."""

    take: int | None = Field(default=None, ge=1, lt=1 << 40, description="use so many inodes")
    percent: Percent | None = Field(default=None, description="until so much of all inodes is used")
    leave_free: int | None = Field(
        default=None, ge=0, lt=1 << 40, description="until so many inodes are free; 0: none"
    )

    @model_validator(mode="after")
    def _sound(self) -> Spec:
        asked = [one for one in (self.take, self.percent, self.leave_free) if one is not None]
        if len(asked) != 1:
            raise ValueError("exactly one of take, percent and leave_free is needed")
        if self.percent == 0:
            raise ValueError("that would take nothing")
        return self


def _supports(spec: Spec, context: Context) -> str | None:
    binding: FillBinding = context.binding
    if not binding.inodes:
        return (
            f"{binding.fs_type} makes inodes as it needs them, it has no number of them to use "
            "up: disk-fill takes the space instead"
        )
    if spec.take is not None and spec.take > binding.inodes:
        return f"{spec.take} inodes are more than the file system has: {binding.inodes}"
    if spec.leave_free is not None and spec.leave_free >= binding.inodes:
        return f"{spec.leave_free} inodes are all that it has: nothing would be taken"
    return None


def _plan(spec: Spec, context: Context) -> list[InodeFill]:
    how_much = (spec.take, spec.percent, spec.leave_free)
    return [InodeFill(**disk_fill.filling(context, RESERVE, *how_much))]


def evidence(spec: Any, measured: tuple[Measured, ...]) -> Evidence:
    """Inodes taken and left, by statvfs(3)."""
    found = next((item.data for item in measured if "there" in item.data), None)
    if found is None:
        return Evidence(counted=False)
    return Evidence(
        counted=True,
        hits=int(found["there"]),
        counters={"free_before": found["before"], "free_now": found["free"]},
        statements=()
        if found["there"]
        else ("the directory has been removed: the operator has found it",),
    )


KIND = FaultKind(
    name="inode-exhaust",
    summary="a file system has space, and no inode for a new file",
    doc="""\
Empty files in one hidden directory, .faultctl-ID in the root of the file system, use up its inodes:
new files fail with ENOSPC though df shows free space (df -i shows why). Afterwards the free inodes
are counted; more than 1 % off what was asked is an error, and all is taken back. Directories of
4096 files each take some blocks too.

File systems with a fixed number of inodes only: ext2, ext3, ext4, tmpfs. XFS and btrfs make them
as they need, and are refused. A native machine makes and removes about 100,000 files a second.
On a file system that the node itself lives on 1024 inodes are always left, and it has to be named:
--i-know node-disk. The directory outlives a reboot, and the agent removes it when it starts; where
the file system is not mounted then, the fault stays `reverting` until it is.""",
    spec=Spec,
    targets=("volume",),
    family="fill",
    ladder=(
        Rung(
            "empty-files",
            "empty files in one hidden directory",
            lambda spec: (NeedRoot(),),
            _plan,
            _supports,
        ),
    ),
    evidence=evidence,
    collateral=lambda spec: (
        "files that could not be made were not; a database may have stopped itself",
        "ext4's inode tables that nothing had used before are initialised now",
    ),
    remedies=("remove the directory: rm -r MOUNT/.faultctl-ID", "remove other files"),
    guards=disk_fill.KIND.guards,
    examples=(
        "faultctl inject inode-exhaust --volume /var/lib/db --leave-free 0",
        "faultctl inject inode-exhaust --volume /var/lib/db --percent 99%",
    ),
)
