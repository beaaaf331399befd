"""panic: the kernel dies."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import Field, field_validator

from nodeagent.faults import _machine as machine
from nodeagent.model.facts import NeedMayReboot, NeedRoot
from nodeagent.model.kind import Context, FaultKind, Guard, Rung
from nodeagent.model.steps.machine import NodeDown
from nodeagent.model.units import Duration

NEEDS = (NeedRoot(), NeedMayReboot())
SECOND = timedelta(seconds=1)


class Spec(machine.DownSpec):
    """When, and whether the node comes back by itself."""

    reboot_after: Duration | None = Field(
        default=None,
        description="the kernel boots again so long after the panic, whole seconds "
        "(kernel.panic); without it, as the node is set",
    )

    @field_validator("reboot_after")
    @classmethod
    def _whole(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and (value % SECOND or not SECOND <= value <= timedelta(days=1)):
            raise ValueError("whole seconds, from 1s to 1d")
        return value


def _supports(spec: Spec, context: Context) -> str | None:
    return None if context.binding.sysrq else "/proc/sysrq-trigger cannot be written"


def _plan(spec: Spec, context: Context) -> list[NodeDown]:
    seconds = spec.reboot_after // SECOND if spec.reboot_after is not None else None
    delay = spec.after // machine.MS
    return [NodeDown(how="panic", delay_ms=delay, reboot_after_s=seconds)]


def _guards(spec: Spec, context: Context) -> tuple[Guard, ...]:
    found = [Guard("panic", "the kernel dies, and all that runs on the node")]
    binding = context.binding
    if spec.reboot_after is None and not binding.panic_s and not binding.crash_kernel:
        found.append(
            Guard("stays-down", "kernel.panic is 0: it stays down until somebody resets it")
        )
    return tuple(found)


def _collateral(spec: Any) -> tuple[str, ...]:
    return (
        *machine.collateral(spec),
        "with kdump the dump takes time and space (/var/crash); what is in pstore stays there",
    )


KIND = FaultKind(
    name="panic",
    summary="the kernel panics",
    doc=f"""\
By the kernel's sysrq key `c`, which makes it crash (Documentation/admin-guide/sysrq.rst), with its
whole report on the console, in pstore or by kdump, as the node is set up. Whether it boots again
is kernel.panic: 0 means that it stays down until somebody resets it; --reboot-after sets it before
the panic. It happens once, --after so long; until then a revert, and the agent's own death, call
it off.

Only on nodes whose agent was started with --allow-reboot, and only with --i-know panic.

{machine.BOOT}""",
    spec=Spec,
    targets=("node",),
    family="machine",
    ladder=(Rung("sysrq", "a crash of the kernel", lambda spec: NEEDS, _plan, _supports),),
    evidence=machine.evidence,
    collateral=_collateral,
    remedies=("reset the node, where it does not boot by itself",),
    guards=_guards,
    no_hits_hint="the node is still up",
    examples=(
        "faultctl inject panic --reboot-after 10s --i-know panic",
        "faultctl inject panic --node --i-know panic --i-know stays-down",
    ),
)
