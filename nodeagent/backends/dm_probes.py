"""Probe devices: made for a moment to ask a kernel what it can, swept when their maker died.

Their name has the maker's process id. One whose maker lives, or that carries our name but
not our uuid, is left alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from nodeagent.backends import Residue
from nodeagent.backends.dmctl import DeviceBusy, DmControl, DmInfo
from nodeagent.model.errors import Refused
from nodeagent.model.steps import StepBase

_NAME = re.compile(r"faultctl-probe-([0-9]{1,10})(-[a-z]+)?")


def is_orphan(name: str, uuid: str, proc: Path = Path("/proc")) -> bool:
    """Whether a device is a probe without a maker: its own process has none left to find."""
    found = _NAME.fullmatch(name)
    if found is None or uuid != f"FAULTCTL-{name}":
        return False
    return int(found[1]) == os.getpid() or not (proc / found[1]).exists()


def sweep_probes() -> list[str]:
    """Remove probe devices that dead processes left; their names.

    For the agent's start, before it probes itself, and for the guardian. One that is in
    use, or that somebody else removes, keeps nobody from anything: the doctor finds it.
    """
    try:
        control = DmControl()
    except Refused:
        return []
    with control:
        names: list[str] = []
        with suppress(OSError, DeviceBusy):
            while left := _orphans(control):
                # one may lie on another: the top ones first
                for info in [i for i in left if not i.open_count] or left:
                    control.remove(info.dev)
                    names.append(info.name)
        return names


def _orphans(control: DmControl) -> list[DmInfo]:
    infos = [control.find(item.dev) for item in control.list_devices()]
    return [info for info in infos if info is not None and is_orphan(info.name, info.uuid)]


def residue(node_id: str, claimed: Sequence[StepBase]) -> list[Residue]:
    """Probe devices that nobody needs any more."""
    try:
        control = DmControl()
    except Refused:
        return []
    with control:
        return [
            Residue(
                f"probe device {info.name}",
                f"{info.dev}, its maker is gone",
                partial(_remove, info),
            )
            for info in _orphans(control)
        ]


def _remove(info: DmInfo) -> None:
    with DmControl() as control:
        now = control.find(info.dev)
        if now is not None and now.uuid == info.uuid:
            control.remove(info.dev)
