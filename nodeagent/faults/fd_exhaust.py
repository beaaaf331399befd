"""fd-exhaust: a process can open no more files, sockets and pipes."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from nodeagent.faults import _cgroup as cg
from nodeagent.model.evidence import Evidence
from nodeagent.model.facts import NeedRoot
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Measured, Rung
from nodeagent.model.steps.limits import DescriptorLimit


class Spec(FaultSpec):
    """How many more it may open."""

    leave: int = Field(
        default=0, ge=0, le=1 << 20, description="descriptors that it may still open"
    )
    hard: bool = Field(
        default=False, description="lower the hard limit too: it cannot raise its own again"
    )


def _plan(spec: Spec, context: Context) -> list[DescriptorLimit]:
    return [DescriptorLimit(scope=context.binding.scope, leave=spec.leave, hard=spec.hard)]


def evidence(spec: Any, measured: tuple[Measured, ...]) -> Evidence:
    """What is open and what may still be; the kernel does not count EMFILE."""
    found = next((item.data for item in measured if "limit" in item.data), None)
    if found is None or found["limit"] is None:
        return Evidence(counted=False, statements=("the process has ended",))
    return Evidence(
        counted=False,
        counters={name: found[name] for name in ("limit", "open", "left")},
        statements=(
            f"{found['open']} descriptors are open, the limit is {found['limit']} (was "
            f"{found['prior']}): {found['left']} more can be opened",
        ),
    )


KIND = FaultKind(
    name="fd-exhaust",
    summary="a process can open no more files, sockets and pipes",
    doc="""\
RLIMIT_NOFILE of the process is lowered by prlimit(2) to just above what it has open, so that
open(2), socket(2), accept(2) and the like fail with EMFILE; what is open stays open. The limit is
a number that new descriptors must stay below: gaps of closed ones count as free, and what it
closes later it may open again. --leave keeps some for it.

A process may raise its soft limit again (Go programs do so at their start only); --hard keeps it
from that, unless it has CAP_SYS_RESOURCE. Children inherit the limit; the revert puts theirs back
as well while they are still below the process. If it has set its limit itself meanwhile, the
revert leaves it and says so. For all of the node: sysctl fs.file-max, which root does not feel.""",
    spec=Spec,
    targets=("pid",),
    family="process",
    ladder=(Rung("prlimit", "RLIMIT_NOFILE by prlimit(2)", lambda spec: (NeedRoot(),), _plan),),
    evidence=evidence,
    collateral=lambda spec: (
        "calls that failed with EMFILE have failed; what gave up for it stays so",
        "a child that has left the process's family keeps the lowered limit",
    ),
    remedies=("prlimit --pid PID --nofile=SOFT:HARD", "restart the process"),
    guards=cg.guards,
    no_hits_hint="the kernel does not count EMFILE: see what is left in the evidence",
    examples=(
        "faultctl inject fd-exhaust --pid 4242",
        "faultctl inject fd-exhaust --pid 4242 --leave 5 --hard",
    ),
)
