"""reboot: the node boots again, in order or as by the reset button."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from nodeagent.faults import _machine as machine
from nodeagent.model.facts import NeedMayReboot, NeedRoot, NeedSystemd
from nodeagent.model.kind import Context, FaultKind, Guard, Rung
from nodeagent.model.steps.machine import NodeDown

NEEDS = (NeedRoot(), NeedMayReboot())


class Spec(machine.DownSpec):
    """How it goes down."""

    how: Literal["orderly", "sudden"] = Field(
        default="orderly", description="services are stopped first; or at once, like a reset"
    )
    sync: bool = Field(default=False, description="with sudden: write dirty pages to disk before")

    @model_validator(mode="after")
    def _sound(self) -> Spec:
        if self.sync and self.how == "orderly":
            raise ValueError("sync goes with --how sudden: an orderly reboot syncs anyway")
        return self


def _orderly(spec: Spec, context: Context) -> str | None:
    return None if spec.how == "orderly" else "systemd stops services first"


def _sudden(spec: Spec, context: Context) -> str | None:
    if spec.how != "sudden":
        return "it asks nobody, and stops no service"
    return None if context.binding.sysrq else "/proc/sysrq-trigger cannot be written"


def _plan(spec: Spec, context: Context) -> list[NodeDown]:
    return [NodeDown(how=spec.how, delay_ms=spec.after // machine.MS, sync=spec.sync)]


def _guards(spec: Any, context: Context) -> tuple[Guard, ...]:
    return (Guard("reboot", "the whole node goes down, and all that runs on it"),)


KIND = FaultKind(
    name="reboot",
    summary="the node boots again",
    doc=f"""\
Orderly, by systemd, which stops all services before; or sudden, by the kernel's sysrq key `b`
(Documentation/admin-guide/sysrq.rst): nothing is stopped, unmounted or, without --sync, written to
disk. It happens once, --after so long; until then a revert, and the agent's own death, call it off.

Only on nodes whose agent was started with --allow-reboot, and only with --i-know reboot.

{machine.BOOT}""",
    spec=Spec,
    targets=("node",),
    family="machine",
    ladder=(
        Rung("systemctl", "by systemd", lambda s: (*NEEDS, NeedSystemd()), _plan, _orderly),
        Rung("sysrq", "by the kernel, at once", lambda s: NEEDS, _plan, _sudden),
    ),
    evidence=machine.evidence,
    collateral=machine.collateral,
    remedies=("none is needed: the node comes back by itself; see why its workloads did not move",),
    guards=_guards,
    no_hits_hint="the node is still up",
    examples=(
        "faultctl inject reboot --i-know reboot",
        "faultctl inject reboot --node --how sudden --after 10s --i-know reboot",
    ),
)
