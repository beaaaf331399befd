"""kill: signals to a process, or to what is in a cgroup, once or again and again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

from pydantic import Field, model_validator

from nodeagent.faults import _cgroup as cg
from nodeagent.model.evidence import Evidence
from nodeagent.model.facts import NeedRoot
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Guard, Measured, Rung
from nodeagent.model.process import CgroupScope, PidScope
from nodeagent.model.steps.process import ProcessKill
from nodeagent.model.units import Duration

NUMBERS = {"HUP": 1, "INT": 2, "QUIT": 3, "ABRT": 6, "KILL": 9, "USR1": 10, "SEGV": 11,
           "USR2": 12, "TERM": 15}  # fmt: skip
"""Of x86 and arm (signal(7)); USR1 and USR2 differ on mips, alpha, sparc and parisc."""
Signal = Literal["HUP", "INT", "QUIT", "ABRT", "KILL", "USR1", "SEGV", "USR2", "TERM"]
MIN_EVERY = timedelta(milliseconds=100)
_MS = timedelta(milliseconds=1)


class Spec(FaultSpec):
    """Which signal, to whom, how often."""

    signal: Signal = Field(default="KILL", description="to stop and continue, see pause")
    every: Duration | None = Field(
        default=None, description="again after this long, to what is there then; without it, once"
    )
    whom: Literal["all", "one"] = Field(
        default="all", description="with a cgroup: all of its processes, or one of them by seed"
    )
    seed: int = Field(default=0, ge=0, lt=1 << 63, description="seed of the choice of one")

    @model_validator(mode="after")
    def _sound(self) -> Spec:
        if self.every is not None and self.every < MIN_EVERY:
            raise ValueError("every: at least 100ms")
        return self


def _supports(spec: Spec, context: Context) -> str | None:
    if isinstance(context.binding.scope, PidScope):
        if spec.whom == "one":
            return "a process is one already: whom is for a cgroup"
        if spec.every is not None and spec.signal == "KILL":
            return "it dies once; to kill what comes after it as well, name its --cgroup"
    elif context.binding.frozen and spec.signal != "KILL":
        return "it is frozen: only KILL would reach it"
    return None


def _plan(spec: Spec, context: Context) -> list[ProcessKill]:
    return [
        ProcessKill(
            scope=context.binding.scope,
            number=NUMBERS[spec.signal],
            name=spec.signal,
            whom=spec.whom,
            every_ms=spec.every // _MS if spec.every is not None else 0,
            seed=spec.seed,
        )
    ]


def _guards(spec: Any, context: Context) -> tuple[Guard, ...]:
    scope = context.binding.scope
    if isinstance(scope, CgroupScope) and scope.path == "/init.scope":
        return (
            *cg.guards(spec, context, sandbox=True),
            Guard("init", "it is the init system's own cgroup"),
        )
    return cg.guards(spec, context, sandbox=True)


def evidence(spec: Any, measured: tuple[Measured, ...]) -> Evidence:
    """Signals that the kernel took."""
    found = [item.data for item in measured if "sent" in item.data]
    sent = sum(data["sent"] for data in found)
    last = [line for data in found for line in data["last"]]
    return Evidence(
        counted=bool(found),
        hits=sent,
        counters={
            "signals": sent,
            "rounds": sum(data["rounds"] for data in found),
            "processes_now": sum(data["processes"] for data in found),
        },
        details={"last": last},
    )


KIND = FaultKind(
    name="kill",
    summary="processes get a signal, once or again and again",
    doc="""\
Each process of the target gets the signal, by a pidfd, so that never a later process with the same
pid is met. In a cgroup that is everything below it, and with --every whatever has come back in the
meantime: what restarts in the cgroup is killed again. With --whom one, it is one process each time,
chosen by --seed and the number of the round. PID 1, the agent and its guardian are never targets.

A revert ends the repeating; what is dead stays dead, and who restarts it is the workload's own
business. When the agent dies, the repeating ends with it.""",
    spec=Spec,
    targets=("cgroup", "pid"),
    family="cgroup",
    ladder=(Rung("signal", "kill(2) by pidfd", lambda spec: (NeedRoot(),), _plan, _supports),),
    evidence=evidence,
    collateral=lambda spec: (
        "processes that ended stay ended, with what they had not written",
        "a restart may be put off longer each time (CrashLoopBackOff, StartLimitBurst)",
    ),
    remedies=("restart the workload", "fail over to a replica"),
    guards=_guards,
    no_hits_hint="nothing was in the cgroup when a round came",
    examples=(
        "faultctl inject kill --pid 4242 --signal TERM",
        "faultctl inject kill --cgroup /kubepods.slice/pod1 --signal KILL --every 30s",
        "faultctl inject kill --cgroup /kubepods.slice/pod1 --whom one --seed 7",
    ),
)
