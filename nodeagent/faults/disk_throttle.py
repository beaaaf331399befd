"""disk-throttle: a cgroup's I/O on one disk gets slow; throttle's io.max by device or volume."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from nodeagent.faults import _cgroup as cg
from nodeagent.faults import throttle
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Rung
from nodeagent.model.steps.base import StepBase
from nodeagent.model.target import AbsolutePath
from nodeagent.model.units import Size

_RUNG = throttle.KIND.ladder[0]


class Spec(FaultSpec):
    """Which disk, and what it gives a second; what is not named is not limited."""

    device: AbsolutePath | None = Field(default=None, description="whole disk")
    volume: AbsolutePath | None = Field(
        default=None, description="instead: mount point of a file system on the disk"
    )
    read_bytes: Size | None = Field(default=None, ge=2, description="bytes read a second")
    write_bytes: Size | None = Field(default=None, ge=2, description="bytes written a second")
    read_ops: int | None = Field(default=None, ge=2, lt=1 << 32, description="reads a second")
    write_ops: int | None = Field(default=None, ge=2, lt=1 << 32, description="writes a second")

    @model_validator(mode="after")
    def _sound(self) -> Spec:
        if (self.device is None) == (self.volume is None):
            raise ValueError("exactly one of device and volume is needed")
        if not self.limits:
            raise ValueError("which limit? read_bytes, write_bytes, read_ops or write_ops")
        return self

    @property
    def limits(self) -> dict[str, Any]:
        """Those that are asked for, by their names in throttle."""
        named = ("read_bytes", "write_bytes", "read_ops", "write_ops")
        return {name: getattr(self, name) for name in named if getattr(self, name) is not None}


def _as_throttle(spec: Spec, context: Context) -> throttle.Spec:
    disk = cg.binding_of(context).disk
    path = spec.device if disk is None else disk.path
    # Built, not validated: the limits have been, and sizes are plain numbers by now.
    return throttle.Spec.model_construct(device=path, **spec.limits)


def _supports(spec: Spec, context: Context) -> str | None:
    return _RUNG.supports(_as_throttle(spec, context), context)


def _plan(spec: Spec, context: Context) -> list[StepBase]:
    return list(_RUNG.plan(_as_throttle(spec, context), context))


KIND = FaultKind(
    name="disk-throttle",
    summary="a workload's I/O on one disk gets slow",
    doc="""\
The io.max of throttle alone: of one cgroup, on one disk, by bytes and operations a second and by
direction. The disk is named by itself or by the mount point of a file system on it; of a partition
it is the whole disk, since io.max knows no other. Other cgroups have the disk as before; to slow
it for everybody, see disk-delay.

Direct I/O and reads are held; buffered writes only where memory and io are both enabled for the
cgroup and the file system supports it (ext4, xfs, btrfs).""",
    spec=Spec,
    targets=("cgroup",),
    family="cgroup",
    ladder=(Rung("cgroup-v2", "io.max of the cgroup", lambda spec: cg.NEEDS, _plan, _supports),),
    evidence=throttle.evidence,
    collateral=lambda spec: (
        "requests that timed out and processes that gave up meanwhile stay so",
    ),
    remedies=("move the workload, or its volume, to another disk",),
    guards=cg.guards,
    preset_of="throttle",
    no_hits_hint="the kernel does not count what io.max holds back",
    examples=(
        "faultctl inject disk-throttle --cgroup /db.service --volume /var/lib/db --write-bytes 1Mi",
        "faultctl inject disk-throttle --cgroup /kubepods.slice/pod1 --device /dev/sda "
        "--read-ops 50 --write-ops 20",
    ),
)
