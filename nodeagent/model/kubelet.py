"""The kubelet's configuration as text: its eviction thresholds. Pure.

Sources: pkg/kubelet/apis/config/v1beta1/defaults_linux.go and pkg/kubelet/eviction/helpers.go
of Kubernetes.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Signal = Literal[
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "pid.available",
]
CONDITIONS: dict[str, str] = {
    "memory.available": "MemoryPressure",
    "nodefs.available": "DiskPressure",
    "nodefs.inodesFree": "DiskPressure",
    "imagefs.available": "DiskPressure",
    "imagefs.inodesFree": "DiskPressure",
    "pid.available": "PIDPressure",
}
"""The node's condition that a signal below its threshold sets."""
MEASURED = ("memory.available", "nodefs.available", "nodefs.inodesFree")
"""Signals of which we can tell how much is free, as the kubelet would."""
DEFAULTS = {
    "memory.available": "100Mi",
    "nodefs.available": "10%",
    "nodefs.inodesFree": "5%",
    "imagefs.available": "15%",
    "imagefs.inodesFree": "5%",
}
"""In force only while evictionHard is not there: with one entry of it, the others are off."""
ABOVE = 10
"""Percentage points that a threshold is put above what is free."""


API_PORT = 10250
"""Where a kubelet serves logs, exec and port-forward (KubeletPort, pkg/cluster/ports/ports.go)."""


class KubeletBinding(BaseModel):
    """The kubelet of this node. Without its pid: that changes with every restart."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    config: str = Field(description="its configuration file, symbolic links resolved")
    named: str = Field(description="the same as its command line has it")
    root_dir: str = Field(description="--root-dir: where nodefs is measured")
    unit: str = Field(default="", description="systemd's unit of it, if any")
    overridden: str = Field(
        default="", description="an option on its command line that wins over the file"
    )


def threshold_above(free: int, total: int) -> str:
    """A threshold that so much free is below, in percent; halfway to 100 % where that is near.

    100 % itself is no threshold to the kubelet. Raises ValueError when nothing is used.
    """
    share = Fraction(free * 100, max(total, 1))
    if share + ABOVE < 99:
        return f"{ceil(share) + ABOVE}%"
    found = Fraction(ceil((share + 100) / 2 * 10_000), 10_000)
    if not share < found < 100:
        raise ValueError("all of it is free: no threshold is above that")
    return f"{float(found):.4f}".rstrip("0").rstrip(".") + "%"


def api_port(text: str) -> int:
    """The `port` of a configuration; 0 and none mean the default. Raises ValueError."""
    import yaml  # late: a kubelet that listens tells by its sockets

    try:
        found: Any = yaml.safe_load(text)
    except yaml.YAMLError as exc:
        raise ValueError(f"it is no YAML: {' '.join(str(exc).split())[:200]}") from exc
    port = found.get("port") if isinstance(found, dict) else None
    if type(port) is not int or not 0 <= port < 1 << 16:
        return API_PORT
    return port or API_PORT


def with_threshold(text: str, signal: str, threshold: str) -> str:
    """The configuration with another hard threshold. Raises ValueError.

    Where the file has no evictionHard the defaults are written as well: they would be off.
    """
    import yaml  # late: only an agent that has this fault needs it

    try:
        found: Any = yaml.safe_load(text)
    except yaml.YAMLError as exc:
        raise ValueError(f"it is no YAML: {' '.join(str(exc).split())[:200]}") from exc
    if not isinstance(found, dict) or found.get("kind") != "KubeletConfiguration":
        raise ValueError("it has no `kind: KubeletConfiguration`")
    hard = found.get("evictionHard")
    if hard is None:
        hard = dict(DEFAULTS)
    if not isinstance(hard, dict):
        raise ValueError("its evictionHard is no mapping")  # noqa: TRY004 - in a file, not a call
    if hard.get(signal) == threshold:
        raise ValueError(f"its evictionHard has {signal}: {threshold} already")
    dumped: str = yaml.safe_dump(
        {**found, "evictionHard": {**hard, signal: threshold}}, sort_keys=False
    )
    return dumped
