"""What kinds share that take the node down. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import Field, field_validator

from nodeagent.model.evidence import Evidence
from nodeagent.model.kind import FaultSpec, Measured
from nodeagent.model.units import Duration

MIN_DELAY = timedelta(seconds=1)
MAX_DELAY = timedelta(hours=1)
MS = timedelta(milliseconds=1)
BOOT = (
    "When the agent starts after the boot, it finds the fault in its journal, which is on disk\n"
    "before anything happens: it ends as `rebooted`, and faultd's log says what had been armed."
)


class DownSpec(FaultSpec):
    """When it happens."""

    after: Duration = Field(
        default=timedelta(seconds=2),
        description="so long after it was armed; a revert until then calls it off",
    )

    @field_validator("after")
    @classmethod
    def _in_bounds(cls, value: timedelta) -> timedelta:
        if not MIN_DELAY <= value <= MAX_DELAY:
            raise ValueError("from 1s, so that the answer is out, to 1h")
        return value


def evidence(spec: Any, measured: tuple[Measured, ...]) -> Evidence:
    """While the node is up, nothing has happened yet."""
    data = next((item.data for item in measured if "waiting" in item.data), None)
    if data is None:
        return Evidence(counted=False)
    said = (f"the node was not taken down: {data['failed']}",) if data["failed"] else ()
    return Evidence(
        counted=True, hits=0, counters={"waiting": int(data["waiting"])}, statements=said
    )


def collateral(spec: Any) -> tuple[str, ...]:
    """What a boot leaves behind."""
    return (
        "everything that ran on the node has ended, and pods may have moved to other nodes",
        "what was not on disk is lost, unless the reboot is orderly",
        "the agent comes back only where something starts it (a unit, a DaemonSet)",
        "other armed faults end with the boot",
    )
