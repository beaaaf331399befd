"""Reading systemd's units by systemctl(1), which talks to process 1 by its own socket."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from nodeagent.bind.node import Node
from nodeagent.model.errors import BackendError

RUNNING = "/run/systemd/system"
"""There when systemd is process 1 (sd_booted(3))."""
READ_S = 20.0
STATE = ("LoadState", "ActiveState")


def is_running() -> bool:
    """Whether systemd manages this node."""
    return os.path.isdir(RUNNING)


def is_stopping() -> bool:
    """Whether systemd takes the node down (SystemState `stopping`): it starts no unit any more,
    and what its units were ends with this boot. Raises BackendError."""
    if has_handed_over():
        return True
    shown = ("show", "--property=SystemState", "--value")
    return is_running() and systemctl(*shown).strip() == "stopping"


def has_handed_over() -> bool:
    """Whether systemd-shutdown is process 1, which ends all processes (shutdown/shutdown.c)."""
    return Path("/proc/1/comm").read_text(encoding="utf-8").startswith("systemd-shutdow")


def systemctl(*words: str, timeout: float = READ_S) -> str:
    """Standard output. Raises BackendError with systemctl's own words."""
    argv = ["systemctl", "--no-pager", "--no-ask-password", *words]
    env = {**os.environ, "SYSTEMD_COLORS": "0", "LC_ALL": "C", "SYSTEMD_PAGER": ""}
    what = f"`systemctl {' '.join(words)}` failed"
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=timeout, check=False, env=env
        )
    except subprocess.TimeoutExpired as exc:
        raise BackendError(what, f"it did not end within {timeout:g} s") from exc
    except FileNotFoundError as exc:
        raise BackendError(what, "systemctl is not installed") from exc
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[:400]
        raise BackendError(what, said or f"it ended with {done.returncode}")
    return done.stdout


def show(unit: str, *names: str) -> dict[str, str]:
    """Properties of a unit; of one that does not exist LoadState is `not-found`."""
    asked = ",".join(names or STATE)
    lines = systemctl("show", f"--property={asked}", "--", unit).splitlines()
    pairs = (line.partition("=") for line in lines)
    return {name: value for name, _, value in pairs}


def active_states(units: tuple[str, ...]) -> dict[str, str]:
    """ActiveState of each unit that there is, by name; one call, whatever their number."""
    if not units:
        return {}
    text = systemctl("show", "--property=Id,ActiveState,LoadState", "--", *units)
    found: dict[str, str] = {}
    for block in text.split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        # Asked for one that does not exist, systemd makes up an inactive one.
        gone = values.get("LoadState") == "not-found" and values.get("ActiveState") == "inactive"
        if values and not gone:
            found[values["Id"]] = values["ActiveState"]
    return found


def unit_of(node: Node, pid: int) -> str:
    """The system unit that a process belongs to by its cgroup; empty for none."""
    try:
        text = (node.proc / str(pid) / "cgroup").read_text()
    except OSError:
        return ""
    for line in text.splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if (hierarchy == "0" or controllers == "name=systemd") and path != "/":
            return service_in(path)
    return ""


def service_in(cgroup: str) -> str:
    """The service that a cgroup of the system slice belongs to; empty for all others."""
    words = [word for word in Path(cgroup).parts if word != "/"]
    slices = [word for word in words if word.endswith(".slice")]
    if not words or words[: len(slices)] != slices or (slices and slices[0] == "user.slice"):
        return ""
    rest = words[len(slices) :]
    return rest[0] if rest and rest[0].endswith(".service") else ""
