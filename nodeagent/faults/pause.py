"""pause: a process or everything in a cgroup stands still, always or in turns."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import Field, model_validator

from nodeagent.faults import _cgroup as cg
from nodeagent.model.evidence import Evidence
from nodeagent.model.facts import NeedRoot
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Measured, Rung
from nodeagent.model.process import CgroupScope, PidScope
from nodeagent.model.steps.base import StepBase
from nodeagent.model.steps.cgroup import CgroupFreeze
from nodeagent.model.steps.process import ProcessStop
from nodeagent.model.units import Duration

MIN_PHASE = timedelta(milliseconds=10)
_MS = timedelta(milliseconds=1)


class Spec(FaultSpec):
    """For how long it stands still and runs, in turns; without them, it only stands still."""

    on: Duration | None = Field(
        default=None, description="it stands still for this long, in turns with off"
    )
    off: Duration | None = Field(default=None, description="it runs for this long in between")

    @model_validator(mode="after")
    def _sound(self) -> Spec:
        if (self.on is None) != (self.off is None):
            raise ValueError("on and off go together")
        for phase in (self.on, self.off):
            if phase is not None and phase < MIN_PHASE:
                raise ValueError("on, off: at least 10ms")
        return self


def _freezable(spec: Spec, context: Context) -> str | None:
    if not isinstance(context.binding.scope, CgroupScope):
        return "a process alone has no freezer"
    if context.binding.frozen:
        return "it is frozen already, by itself or by a cgroup above it"
    return None


def _stoppable(spec: Spec, context: Context) -> str | None:
    if isinstance(context.binding.scope, PidScope):
        return None
    return "a cgroup is stopped by its freezer, with the processes of later"


def _freeze(spec: Spec, context: Context) -> list[StepBase]:
    return [CgroupFreeze(scope=context.binding.scope, **_phases(spec))]


def _stop(spec: Spec, context: Context) -> list[StepBase]:
    return [ProcessStop(scope=context.binding.scope, **_phases(spec))]


def _phases(spec: Spec) -> dict[str, int]:
    if spec.on is None or spec.off is None:
        return {}
    return {"on_ms": spec.on // _MS, "off_ms": spec.off // _MS}


def evidence(spec: Any, measured: tuple[Measured, ...]) -> Evidence:
    """A turn counts when the kernel has said that everything stood still."""
    found = [item.data for item in measured if "turns" in item.data]
    turns = sum(data["turns"] for data in found)
    return Evidence(
        counted=bool(found),
        hits=turns,
        counters={"turns": turns, "paused_now": sum(data["paused"] for data in found)},
    )


def _collateral(spec: Any) -> tuple[str, ...]:
    return (
        "peers that gave up on it meanwhile (leases, sessions, elections) have done so for good",
        "its parent is told of SIGSTOP and SIGCONT (SIGCHLD), not of the freezer",
    )


KIND = FaultKind(
    name="pause",
    summary="a process or a cgroup stands still",
    doc="""\
A cgroup is stopped by its freezer (cgroup.freeze), with everything that starts in it later; a
process by SIGSTOP, sent to exactly the process that was bound. It keeps its memory, sockets and
locks: to its peers it looks hung, not dead. Armed when the kernel says that all of it stands
still; a process in an uninterruptible wait (a hung disk) cannot be stopped, and the fault is
taken back. A frozen cgroup can still be killed. With --on and --off it stands still and runs in
turns. A stopped process that somebody continues runs, and the revert finds nothing to do.""",
    spec=Spec,
    targets=("cgroup", "pid"),
    family="cgroup",
    ladder=(
        Rung(
            "cgroup-freezer",
            "the cgroup's freezer, which processes cannot see",
            lambda spec: cg.NEEDS,
            _freeze,
            _freezable,
        ),
        Rung("sigstop", "SIGSTOP to the process", lambda spec: (NeedRoot(),), _stop, _stoppable),
    ),
    evidence=evidence,
    collateral=_collateral,
    remedies=(
        "echo 0 > /sys/fs/cgroup/PATH/cgroup.freeze, or kill -CONT PID",
        "restart the workload, or fail over to a replica",
    ),
    guards=cg.guards,
    examples=(
        "faultctl inject pause --cgroup /kubepods.slice/pod1",
        "faultctl inject pause --pid 4242 --on 2s --off 5s",
    ),
)
