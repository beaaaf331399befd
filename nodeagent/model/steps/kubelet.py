"""Steps on the kubelet."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from nodeagent.model.kubelet import Signal
from nodeagent.model.steps.base import StepBase


class KubeletThreshold(StepBase):
    """Put another eviction threshold into the kubelet's configuration and restart it.

    The file itself is kept beside it by a second name, and gets its own name back at the
    revert. With `unit` the kubelet is restarted by systemctl, else it gets SIGTERM and
    whatever supervises it starts it again.
    """

    patience_s: ClassVar[int] = 150
    survives_boot: ClassVar[bool] = True

    op: Literal["kubelet_threshold"] = "kubelet_threshold"
    fault: str = Field(pattern=r"^[a-z0-9-]+$", description="whose it is; part of the kept name")
    config: str = Field(description="absolute path, symbolic links resolved")
    named: str = Field(description="the same as the kubelet's command line has it")
    root_dir: str
    unit: str = ""
    signal: Signal
    threshold: str = Field(description="percent or quantity; empty: above what is free then")

    def key(self) -> str:
        return f"file:{self.config}"

    def summary(self) -> str:
        value = self.threshold or "<free + 10%>"
        restart = f"systemctl restart {self.unit}" if self.unit else "pkill -TERM -x kubelet"
        return f'yq -i \'.evictionHard["{self.signal}"] = "{value}"\' {self.config}; {restart}'
