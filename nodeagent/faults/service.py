"""service: a systemd service is down, dies again and again, hangs, or is slow."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

from pydantic import Field, model_validator

from nodeagent.faults.kill import Signal
from nodeagent.model.evidence import Evidence
from nodeagent.model.facts import NeedRoot, NeedSystemd
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Guard, Measured, Rung
from nodeagent.model.steps.base import StepBase
from nodeagent.model.steps.cgroup import CgroupFreeze, CgroupWrite
from nodeagent.model.steps.unit import UnitKill, UnitStop
from nodeagent.model.unit import UnitBinding
from nodeagent.model.units import Duration, Percent

MIN_EVERY = timedelta(seconds=1)
PERIOD_US = 100_000
"""The kernel's default period of cpu.max."""
PERIOD_MS = 200
NEEDS = (NeedRoot(), NeedSystemd())
_MS = timedelta(milliseconds=1)


class Spec(FaultSpec):
    """What happens to it."""

    action: Literal["stop", "kill", "freeze", "slow"] = Field(
        default="stop", description="stopped; killed; standing still; running a share of the time"
    )
    signal: Signal | None = Field(default=None, description="with kill: which signal; else KILL")
    every: Duration | None = Field(
        default=None, description="with kill: again after this long, when it is up; else once"
    )
    speed: Percent | None = Field(
        default=None, description="with slow: of one CPU's time, or of its time, what is left to it"
    )

    @model_validator(mode="after")
    def _sound(self) -> Spec:
        if self.action != "kill" and (self.signal or self.every is not None):
            raise ValueError("signal and every go with --action kill")
        if self.every is not None and self.every < MIN_EVERY:
            raise ValueError("every: at least 1s")
        if (self.action == "slow") != (self.speed is not None):
            raise ValueError("speed goes with --action slow, and is needed there")
        if self.speed is not None and not 1 <= self.speed <= 99:
            raise ValueError("speed: from 1% to 99%")
        return self


# --- by systemd -------------------------------------------------------------------


def _by_systemd(spec: Spec, context: Context) -> str | None:
    return None if spec.action in ("stop", "kill") else f"systemd itself cannot {spec.action} it"


def _systemd(spec: Spec, context: Context) -> list[StepBase]:
    unit = context.binding.unit
    if spec.action == "stop":
        return [UnitStop(unit=unit)]
    every = spec.every // _MS if spec.every is not None else 0
    return [UnitKill(unit=unit, signal=spec.signal or "KILL", every_ms=every)]


# --- by its cgroup ----------------------------------------------------------------


def _no_cgroup(binding: UnitBinding) -> str | None:
    if binding.scope is None:
        return f"{binding.unit} has no process in a cgroup of version 2"
    if binding.frozen:
        return "its cgroup is frozen already"
    return None


def _by_quota(spec: Spec, context: Context) -> str | None:
    if spec.action != "slow":
        return "a CPU limit only slows"
    binding: UnitBinding = context.binding
    if reason := _no_cgroup(binding):
        return reason
    if not binding.cpu_max:
        return "its cgroup has no cpu.max: systemd has not enabled the CPU controller for it"
    quota, _, period = binding.cpu_max.partition(" ")
    if quota != "max" and int(quota) * PERIOD_US <= _quota_us(spec) * int(period):
        return f"its cpu.max is {binding.cpu_max} already, which is no more than that"
    return None


def _quota_us(spec: Spec) -> int:
    assert spec.speed is not None  # noqa: S101 - as the spec has it
    return int(spec.speed * PERIOD_US / 100)


def _quota(spec: Spec, context: Context) -> list[StepBase]:
    value = f"{_quota_us(spec)} {PERIOD_US}"
    return [CgroupWrite(scope=context.binding.scope, file="cpu.max", value=value)]


def _by_freezer(spec: Spec, context: Context) -> str | None:
    if spec.action not in ("freeze", "slow"):
        return "a freezer neither stops nor kills"
    return _no_cgroup(context.binding)


def _freezer(spec: Spec, context: Context) -> list[StepBase]:
    if spec.speed is None:
        return [CgroupFreeze(scope=context.binding.scope)]
    runs = max(1, int(spec.speed * PERIOD_MS / 100))
    turns = {"on_ms": PERIOD_MS - runs, "off_ms": runs}
    return [CgroupFreeze(scope=context.binding.scope, **turns)]


# --- what is to be known ----------------------------------------------------------


def _guards(spec: Spec, context: Context) -> tuple[Guard, ...]:
    binding: UnitBinding = context.binding
    found = []
    if binding.node_agents:
        named = ", ".join(binding.node_agents)
        reason = f"it is what keeps the node's containers going: {named}"
        found.append(Guard("node-agent", reason))
    if binding.lifeline:
        found.append(Guard("lifeline", f"{binding.unit}: {binding.lifeline}"))
    return tuple(found)


def evidence(spec: Any, measured: tuple[Measured, ...]) -> Evidence:
    """Whether it is down, how often it was killed, for how long it stood still."""
    data: dict[str, Any] = next((item.data for item in measured if item.data), {})
    if "sent" in data:
        down = {"down": int(data["unit_state"] != "active"), "rounds": data["rounds"]}
        return Evidence(counted=True, hits=data["sent"], counters={"signals": data["sent"], **down})
    if "unit_state" in data:
        up = data["unit_state"] == "active"
        said = ("it was started again: the operator has found it",) if up else ()
        details = {"state": data["unit_state"], "stopped_with_it": data["with_it"]}
        return Evidence(counted=True, hits=int(not up), statements=said, details=details)
    if "turns" in data:
        return Evidence(counted=True, hits=data["turns"], counters={"turns": data["turns"]})
    throttled = data.get("counters", {}).get("nr_throttled", 0)
    return Evidence(counted=bool(data), hits=throttled, counters={"nr_throttled": throttled})


def _collateral(spec: Spec) -> tuple[str, ...]:
    if spec.action in ("freeze", "slow"):
        return (
            "peers that gave up on it meanwhile (sessions, leases) have done so for good",
            "with WatchdogSec= set, systemd may kill and restart it: then it is healthy again",
        )
    return (
        "its processes are new ones afterwards: what they had in memory is gone",
        "restarts by systemd are counted (StartLimitBurst=, NRestarts); the count is not set back",
    )


KIND = FaultKind(
    name="service",
    summary="a systemd service is down, dying, hanging or slow",
    doc="""\
- `stop`: by systemd, with the sockets, timers and paths that would start it again. What goes down
  with it (Requires, BindsTo, PartOf) is noted before, and the revert starts all of it again.
- `kill`: a signal to all of its processes, once or each --every while it is up. systemd restarts
  it as its Restart= says; where it gave up, the revert resets the failure and starts it.
- `freeze`: its cgroup stands still by the kernel's freezer, which systemd does not know of: it is
  `active`, and answers nothing. Stopping it takes until TimeoutStopSec.
- `slow`: --speed is what is left to it: by cpu.max of one CPU, where systemd has enabled that for
  it, else by the freezer in turns of 200 ms.

A service that somebody restarts while it is frozen or slow gets a new cgroup, and is healthy.
Whether a unit is enabled or masked is not touched, so that a reboot takes everything back. The
service that faultd runs in is never hit.""",
    spec=Spec,
    targets=("unit",),
    family="unit",
    ladder=(
        Rung("systemctl", "by systemd itself", lambda spec: NEEDS, _systemd, _by_systemd),
        Rung("cpu-max", "cpu.max of its cgroup", lambda spec: NEEDS, _quota, _by_quota),
        Rung("cgroup-freezer", "its cgroup's freezer", lambda spec: NEEDS, _freezer, _by_freezer),
    ),
    evidence=evidence,
    collateral=_collateral,
    remedies=(
        "systemctl start UNIT (stopped or killed), systemctl restart UNIT (frozen or slow)",
        "reboot the node",
    ),
    guards=_guards,
    examples=(
        "faultctl inject service --unit chrony --action stop",
        "faultctl inject service --unit kubelet --action kill --every 30s --i-know node-agent",
        "faultctl inject service --unit nginx --action freeze",
        "faultctl inject service --unit nginx --action slow --speed 10%",
    ),
)
