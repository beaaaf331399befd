"""Steps on systemd's units, by systemctl(1)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from nodeagent.model.steps.base import StepBase

UNIT_NAME = r"^[A-Za-z0-9@:_.\\-]{1,247}\.(service|socket|timer|path|mount|slice|scope)$"
"""systemd.unit(5), without types that a fault has no use for."""


class UnitStop(StepBase):
    """Stop a unit that is active, with what would start it again; the revert starts all of them.

    Units that go down with it (they require it, or are part of it) are started again as well.
    Whether it is enabled is not touched, so that a reboot takes it back.
    """

    patience_s: ClassVar[int] = 300

    op: Literal["unit_stop"] = "unit_stop"
    unit: str = Field(pattern=UNIT_NAME)

    def key(self) -> str:
        return f"unit:{self.unit}"

    def summary(self) -> str:
        return f"systemctl stop {self.unit}"


class UnitKill(StepBase):
    """Signal the processes of a unit, once or every so often; the revert starts it if it is down.

    The repeating ends with the agent's process.
    """

    patience_s: ClassVar[int] = 300

    op: Literal["unit_kill"] = "unit_kill"
    unit: str = Field(pattern=UNIT_NAME)
    signal: str = Field(pattern=r"^[A-Z0-9]{2,8}$", description="name without SIG")
    every_ms: int = Field(default=0, ge=0, le=1 << 40, description="0: once")

    def key(self) -> str:
        return f"unit:{self.unit}"

    def summary(self) -> str:
        again = f", every {self.every_ms} ms" if self.every_ms else ""
        return f"systemctl kill --signal={self.signal} {self.unit}{again}"
