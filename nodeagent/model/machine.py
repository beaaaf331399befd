"""Binding of the node as what can go down."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class MachineBinding(BaseModel):
    """Whether and how the node would come up again."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    target: str
    boot_id: str
    panic_s: int = Field(
        description="kernel.panic: the kernel boots again so long after a panic; 0: never, "
        "below 0: at once (Documentation/admin-guide/sysctl/kernel.rst)"
    )
    crash_kernel: bool = Field(default=False, description="kdump has loaded a kernel for a panic")
    sysrq: bool = Field(description="/proc/sysrq-trigger can be written")
