"""Steps that take the whole node down."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nodeagent.model.steps.base import StepBase

How = Literal["orderly", "sudden", "panic"]
COMMANDS: dict[str, str] = {
    "orderly": "systemctl reboot",
    "sudden": "echo b > /proc/sysrq-trigger",
    "panic": "echo c > /proc/sysrq-trigger",
}


class NodeDown(StepBase):
    """After a delay the node goes down, once; only a boot ends that.

    Until the delay is over a revert, and the agent's death, call it off. reboot_after_s: what
    kernel.panic is set to before a panic, so that the kernel boots again by itself
    (Documentation/admin-guide/sysctl/kernel.rst); None leaves it.
    """

    op: Literal["node_down"] = "node_down"
    how: How
    delay_ms: int = Field(ge=0, le=1 << 40)
    sync: bool = Field(default=False, description="sync(2) before a sudden reboot")
    reboot_after_s: int | None = Field(default=None, ge=1, le=86_400)

    def key(self) -> str:
        return "node:up"

    def summary(self) -> str:
        words = [f"sleep {self.delay_ms / 1000:g}"]
        words += ["sync"] if self.sync else []
        if self.reboot_after_s is not None:
            words.append(f"sysctl -w kernel.panic={self.reboot_after_s}")
        return "; ".join([*words, COMMANDS[self.how]])
