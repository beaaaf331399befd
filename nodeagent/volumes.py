"""Pass-through device-mapper volumes: they make a plain device ready for live table swaps.

A prepared volume is not a fault: it stays until it is released, through agents and
leases, and is gone after a reboot like every device-mapper device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nodeagent.backends.dm_nodes import publish, unpublish
from nodeagent.backends.dmctl import ByName, DmControl, read_table
from nodeagent.bind.node import Node
from nodeagent.bind.resolve import resolve_device
from nodeagent.bind.usage import IN_USE, guards
from nodeagent.encode.dm import Segment, Table
from nodeagent.journal import Journal
from nodeagent.model.errors import Conflict, InvalidSpec, Refused

UUID_PREFIX = "FAULTCTL-VOL-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)


@dataclass(frozen=True)
class VolumeInfo:
    """One prepared volume. sectors: 512 bytes each."""

    name: str
    path: str
    device: str
    sectors: int
    mountpoints: tuple[str, ...]


class Volumes:
    """Prepares, lists and releases volumes of this node."""

    def __init__(self, node_id: str) -> None:
        self._prefix = f"{UUID_PREFIX}{node_id.replace('-', '')[:8]}-"
        self._node = Node(dm_table=read_table)

    def prepare(self, device: str, name: str) -> VolumeInfo:
        """Put a linear table over an unused device. Raises InvalidSpec or Refused."""
        if not _NAME.fullmatch(name):
            raise InvalidSpec(
                f"{name!r} is not a volume name",
                "letters, digits, '_', '.', '-'; at most 64; not first '.', '_' or '-'",
            )
        bound = resolve_device(self._node, device)
        layer = bound.top
        if layer.kind == "dm":
            raise Refused(
                f"{device} needs no preparation",
                "it is device-mapper already",
                f"inject on it: --device {layer.name}",
            )
        used = [g for g in guards(self._node, bound) if g.kind in IN_USE]
        if used:
            raise Refused(
                f"{device} is in use",
                "; ".join(f"{g.what} ({g.via})" for g in used),
                "unmount it first, and mount the prepared volume instead",
            )
        table = Table((Segment(0, layer.size_sectors, "linear", (layer.dev, "0")),))
        with DmControl() as control:
            if control.find(ByName(name)) is not None:
                raise Refused(f"a device-mapper device {name!r} exists already")
            dev = control.create_active(
                name, self._prefix + name, table, layer.read_only, private=False
            )
            publish(name, dev)
        return next(v for v in self.list() if v.name == name)

    def release(self, name: str, journal: Journal) -> None:
        """Take a prepared volume away. Raises Refused while it is in use or holds a fault."""
        with DmControl() as control:
            info = control.find(ByName(name))
            if info is None or not info.uuid.startswith(self._prefix):
                raise Refused(
                    f"{name!r} is not a prepared volume of this node",
                    "there is no such device" if info is None else "faultctl did not make it",
                    "see: faultctl volume ls",
                )
            for row in journal.active_steps([f"block:{info.dev.major}:{info.dev.minor}"]):
                raise Conflict(
                    f"{name!r} holds the fault {row.fault_id}",
                    "",
                    f"revert it first: faultctl revert {row.fault_id}",
                )
            if info.open_count:
                raise Refused(f"{name!r} is in use", "it is open or mounted", "unmount it first")
            control.remove(info.dev)
            unpublish(name, info.dev)

    def list(self) -> list[VolumeInfo]:
        """Prepared volumes of this node; empty without device-mapper."""
        found = []
        try:
            control = DmControl()
        except Refused:
            return []
        with control:
            for item in control.list_devices():
                info = control.find(item.dev)
                if info is None or not info.uuid.startswith(self._prefix):
                    continue
                bound = resolve_device(self._node, f"/dev/mapper/{info.name}")
                layer = bound.top
                found.append(
                    VolumeInfo(
                        name=info.name,
                        path=f"/dev/mapper/{info.name}",
                        device=bound.layers[-1].layer.name,
                        sectors=layer.size_sectors,
                        mountpoints=layer.mountpoints,
                    )
                )
        return found
