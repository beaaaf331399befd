"""Services of systemd: what they are, where their processes are, what hangs on them."""

from __future__ import annotations

import os

from nodeagent.bind import process, systemd
from nodeagent.bind.cgroup import lineage
from nodeagent.bind.family import Ask, Scene
from nodeagent.bind.node import read_text
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.target import UnitTarget
from nodeagent.model.unit import UnitBinding

ASKED = ("Id", "LoadState", "ActiveState", "ControlGroup", "Restart", "RefuseManualStop")
LIFELINES = {
    "ssh": "people reach the node by it",
    "sshd": "people reach the node by it",
    "dbus": "logins and most services need it",
    "dbus-broker": "logins and most services need it",
    "systemd-networkd": "it holds the node's addresses",
    "NetworkManager": "it holds the node's addresses",
    "networking": "it holds the node's addresses",
    "systemd-logind": "logins need it",
    "systemd-journald": "every service's output ends in it",
    "systemd-udevd": "devices that come need it",
}
"""Services without which a person may not get back in, by name without suffix."""


def bind(scene: Scene, ask: Ask) -> UnitBinding:
    """An active service. Raises Refused or InvalidSpec."""
    if not isinstance(ask.target, UnitTarget):
        raise InvalidSpec("a unit is needed", ask.target.label())
    asked = ask.target.unit
    what = f"{ask.target.label()} cannot be a target"
    if not systemd.is_running():
        raise Refused(
            what,
            f"systemd does not run this node ({systemd.RUNNING} is missing)",
            "for a process or a cgroup: faultctl inject kill, pause or throttle",
        )
    name = asked if asked.endswith(".service") else f"{asked}.service"
    found = systemd.show(name, *ASKED)
    _check(what, found)
    cgroup = process.CGROUPS / found["ControlGroup"].lstrip("/")
    pids = process.cgroup_pids(cgroup) if found["ControlGroup"] else ()
    if os.getpid() in pids or 1 in pids:
        raise Refused(what, "faultd itself runs in it, which is never hit", "name another service")
    return UnitBinding(
        target=f"unit {found['Id']}",
        unit=found["Id"],
        scope=process.scope_at(cgroup) if pids and ask.facts.cgroup == "v2" else None,
        frozen=any(read_text(one / "cgroup.freeze") == "1" for one in lineage(cgroup))
        if pids
        else False,
        cpu_max=read_text(cgroup / "cpu.max") if pids else "",
        node_agents=process.agents_among(scene.node, pids[: process.MAX_LOOKED_AT]),
        lifeline=LIFELINES.get(found["Id"].removesuffix(".service"), ""),
        restarts=found["Restart"],
    )


def _check(what: str, found: dict[str, str]) -> None:
    if found["LoadState"] == "not-found":
        raise Refused(what, "there is no such service", "see: systemctl list-units --type=service")
    if found["LoadState"] != "loaded":
        raise Refused(what, f"it is {found['LoadState']}", f"see: systemctl status {found['Id']}")
    if found["ActiveState"] not in ("active", "reloading"):
        raise Refused(
            what,
            f"it is {found['ActiveState']}: there is nothing to break",
            f"see: systemctl status {found['Id']}",
        )
