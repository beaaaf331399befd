"""clock: the node's wall clock is wrong, runs wrong, or jumps to and fro."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import Field, model_validator

from nodeagent.model.evidence import Evidence
from nodeagent.model.facts import NeedRoot
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Guard, Measured, Rung
from nodeagent.model.process import PidScope
from nodeagent.model.steps.base import StepBase
from nodeagent.model.steps.clock import ClockSkew
from nodeagent.model.steps.process import ProcessStop
from nodeagent.model.steps.unit import UnitStop
from nodeagent.model.timekeeping import ClockBinding
from nodeagent.model.units import Drift, Duration, Shift

MIN_OFFSET = timedelta(milliseconds=4)
MIN_PHASE = timedelta(milliseconds=1)
MIN_DRIFT_PPB = 1000
_US = timedelta(microseconds=1)


class Spec(FaultSpec):
    """By how much it is off, how much too fast it runs, and whether it jumps to and fro."""

    offset: Shift | None = Field(
        default=None, description="set it forward (+30d) or back (-5m) by so much, at once"
    )
    drift: Drift | None = Field(
        default=None, description="let it run too fast (+200ppm, +2%) or too slow; at most 10%"
    )
    on: Duration | None = Field(
        default=None, description="with an offset: it is off for this long, in turns with off"
    )
    off: Duration | None = Field(default=None, description="it is right for this long in between")

    @model_validator(mode="after")
    def _sound(self) -> Spec:
        if self.offset is None and self.drift is None:
            raise ValueError("an offset or a drift is needed")
        if self.offset is not None and abs(self.offset) < MIN_OFFSET:
            raise ValueError("offset: at least 4ms either way")
        if self.drift is not None and abs(self.drift) < MIN_DRIFT_PPB:
            raise ValueError("drift: at least 1ppm either way")
        if (self.on is None) != (self.off is None):
            raise ValueError("on and off go together")
        if self.on is not None and (self.offset is None or self.drift is not None):
            raise ValueError("on and off go with an offset, and without a drift")
        if any(phase is not None and phase < MIN_PHASE for phase in (self.on, self.off)):
            raise ValueError("on, off: at least 1ms")
        return self


def _plan(spec: Spec, context: Context) -> list[StepBase]:
    binding: ClockBinding = context.binding
    units = sorted({one.unit for one in binding.daemons if one.unit})
    alone = [one for one in binding.daemons if not one.unit]
    return [
        *(UnitStop(unit=name) for name in units),
        *(ProcessStop(scope=PidScope(pid=d.pid, start_ticks=d.start_ticks)) for d in alone),
        ClockSkew(
            offset_ns=(spec.offset // _US) * 1000 if spec.offset is not None else 0,
            drift_ppb=spec.drift or 0,
            on_us=spec.on // _US if spec.on is not None else 0,
            off_us=spec.off // _US if spec.off is not None else 0,
        ),
    ]


def _guards(spec: Spec, context: Context) -> tuple[Guard, ...]:
    objections = context.binding.tls
    if not objections:
        return ()
    reason = (
        "no new TLS connection to this agent will be taken while the clock is wrong; open ones, "
        "its Unix socket and the lease still end the fault: " + "; ".join(objections[:2])
    )
    return (Guard("tls", reason),)


def evidence(spec: Any, measured: tuple[Measured, ...]) -> Evidence:
    """How far the clock is off, by CLOCK_MONOTONIC_RAW."""
    data = next((item.data for item in measured if "skew_ns" in item.data), None)
    if data is None:
        return Evidence(counted=False)
    skew_ms = data["skew_ns"] // 1_000_000
    wrong = data["state"] == "ours" or data["turning"]
    statements = []
    if not wrong:
        statements.append("the clock is not off by what was asked: somebody has set it")
    if abs(data["rtc_moved_s"] or 0) > 1:
        statements.append(
            f"the real-time clock was set by {data['rtc_moved_s']:+d} s meanwhile: "
            "it is not put back, and a reboot would take its time"
        )
    for item in measured:
        if item.data.get("unit_state") == "active" and isinstance(item.step, UnitStop):
            statements.append(f"{item.step.unit} was started again: it sets the clock")
    return Evidence(
        counted=True,
        hits=data["turns"] if wrong else 0,
        counters={"skew_ms": skew_ms, "turns": data["turns"]},
        statements=tuple(statements),
        details={"seconds": data["seconds"], "skew_ns": data["skew_ns"]},
    )


def _collateral(spec: Spec) -> tuple[str, ...]:
    found = [
        "what was written with the wrong time keeps it: files, logs, database rows, tokens",
        "certificates, tickets and tokens (TLS, Kerberos, JWT) count as not valid while the clock "
        "is outside of their time, the kubelet's and etcd's among them",
        "timers by the wall clock (cron, systemd's OnCalendar, at) fire early, late or twice",
        "leases that others hold by the wall clock (Kubernetes' Lease objects) may have been lost",
        "a systemd-timesyncd that somebody starts meanwhile remembers the wrong time "
        "(/var/lib/systemd/timesync/clock) and sets the clock to it when it starts",
    ]
    if spec.drift:
        found.append("CLOCK_MONOTONIC and CLOCK_BOOTTIME drift too: time-outs are that much off")
    return tuple(found)


KIND = FaultKind(
    name="clock",
    summary="the node's wall clock is wrong",
    doc="""\
CLOCK_REALTIME is set forward or back by an exact step, or made to run too fast or too slow by
adjtimex(2), or both; with --on and --off it jumps to and fro. What keeps the clock
(systemd-timesyncd, chronyd, ntpd, ...) is stopped before: a systemd unit by systemd, with what
would start it again; any other process by SIGSTOP. The revert leaves each as it was; whether a
unit is enabled or masked is not touched.

The right time is known by CLOCK_MONOTONIC_RAW and the suspended time, which neither a step nor a
drift reaches: the journal has the clock's reading and rate from before, and from them follows the
right time at the revert, to less than 50 ms, whoever reverts. The kernel's NTP status word and
its error bounds come back too. A clock that somebody has set meanwhile, by half of the way back or
more, is left to him; one that is off by something else is an error for a person.

While it lasts the clock counts as unsynchronized, so that the kernel does not write its time into
the real-time clock. So a reboot brings the right time back, and starts the daemons that are
enabled.

Leases are counted in CLOCK_MONOTONIC_RAW and hold. New TLS connections to the agent are only taken
when the clients' CA is valid at the node's new time (the plan says so, and asks with a guard); the
Unix socket always works. A process cannot have a wall clock of its own: a target other than the
node is refused.""",
    spec=Spec,
    targets=("node", "pid", "cgroup"),
    family="clock",
    ladder=(
        Rung(
            "adjtimex",
            "steps and rates of adjtimex(2)",
            lambda spec: (NeedRoot(),),
            _plan,
        ),
    ),
    evidence=evidence,
    collateral=_collateral,
    remedies=(
        "start the time daemon again: systemctl start systemd-timesyncd (or chronyd, ntpd)",
        "set the clock from the real-time clock, which is right: hwclock --hctosys",
        "reboot the node",
    ),
    guards=_guards,
    examples=(
        "faultctl inject clock --offset +30d --i-know tls",
        "faultctl inject clock --node --offset -5m",
        "faultctl inject clock --drift +200ppm",
        "faultctl inject clock --offset +200ms --on 100ms --off 100ms",
    ),
)
