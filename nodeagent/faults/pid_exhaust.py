"""pid-exhaust: a cgroup can start no more processes and threads."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from nodeagent.faults import _cgroup as cg
from nodeagent.model.evidence import Evidence
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Measured, Rung
from nodeagent.model.steps.limits import PidsLeave


class Spec(FaultSpec):
    """How many more it may start."""

    leave: int = Field(
        default=0, ge=0, le=1 << 22, description="processes and threads that it may still start"
    )


def _supports(spec: Spec, context: Context) -> str | None:
    return cg.no_file(cg.binding_of(context), "pids.max")


def _plan(spec: Spec, context: Context) -> list[PidsLeave]:
    return [PidsLeave(scope=cg.binding_of(context).scope, leave=spec.leave)]


def evidence(spec: Any, measured: tuple[Measured, ...]) -> Evidence:
    """Forks that the kernel refused since."""
    found = next((item.data for item in measured if "refused" in item.data), None)
    if found is None:
        return Evidence(counted=True)
    return Evidence(
        counted=True,
        hits=found["refused"],
        counters={"refused": found["refused"], "processes_now": found["now"]},
        statements=(f"pids.max is {found['limit']} (was {found['prior']}), it has {found['now']}",),
    )


KIND = FaultKind(
    name="pid-exhaust",
    summary="a cgroup can start no more processes and threads",
    doc="""\
pids.max of the cgroup is lowered to what it has at that moment, and --leave more: fork(2) and
clone(2) fail with EAGAIN there, for threads too. Nothing is killed; what ends may be started again
up to that number. Health checks by exec and new workers are what usually fails first. Refused forks
are counted by the kernel. throttle --pids sets an absolute limit instead.""",
    spec=Spec,
    targets=("cgroup",),
    family="cgroup",
    ladder=(Rung("pids-max", "the cgroup's pids.max", lambda spec: cg.NEEDS, _plan, _supports),),
    evidence=evidence,
    collateral=lambda spec: ("forks that failed have failed; what gave up for it stays so",),
    remedies=(
        "echo max > /sys/fs/cgroup/PATH/pids.max",
        "move the workload to another node",
    ),
    guards=cg.guards,
    no_hits_hint="the target has not tried to start a process or thread since",
    examples=(
        "faultctl inject pid-exhaust --cgroup /kubepods.slice/pod1",
        "faultctl inject pid-exhaust --cgroup /db.service --leave 2",
    ),
)
