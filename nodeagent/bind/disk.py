"""Disk targets: files, devices and volumes to sectors on every layer, with what is at stake."""

from __future__ import annotations

from nodeagent.bind.family import Ask, Scene
from nodeagent.bind.process import cgroup_at, scope_at
from nodeagent.bind.resolve import resolve, resolve_device, resolve_volume
from nodeagent.bind.spacemap import space_map
from nodeagent.bind.usage import IN_USE, guards
from nodeagent.model.binding import BlockBinding, SpaceMap, VolumeIdentity
from nodeagent.model.disk import DiskBinding
from nodeagent.model.kind import Context


def bind(scene: Scene, ask: Ask) -> DiskBinding:
    """The sectors of a target, narrowed to those that the kind chooses. Raises Refused, ..."""
    block = resolve(scene.node, ask.target)
    if ask.kind.select is not None:
        space = _space(scene, block) if block.file is None else None
        wide = DiskBinding(block=block, space=space)
        context = Context(ask.fault_id, ask.target, wide, ask.facts)
        chosen = ask.kind.select(ask.spec, context)
        if chosen != block.ranges:
            narrow = resolve_device(scene.node, block.top.name, chosen)
            block = block.model_copy(
                update={"layers": narrow.layers, "ends": narrow.ends, "whole": narrow.whole}
            )
    found = guards(scene.node, block, scene.protected)
    cgroup = getattr(ask.spec, "cgroup", "")
    only = (
        scope_at(cgroup_at(cgroup, f"I/O of cgroup {cgroup} cannot be failed")) if cgroup else None
    )
    return DiskBinding(block=block, guards=found, only=only)


def _space(scene: Scene, block: BlockBinding) -> SpaceMap | None:
    """What the file system on the device keeps where; None when there is none.

    A device with something mounted above it (a partition, a volume) is unknown
    ground: all of it counts as metadata.
    """
    volume = block.volume or _volume_on(scene, block)
    if volume is not None:
        return space_map(scene.node, volume)
    users = [g for g in guards(scene.node, block) if g.kind in IN_USE]
    if users:
        return SpaceMap(
            unknown=block.ranges,
            partial=True,
            notes=tuple(f"{block.top.name} is in use: {g.what} ({g.via})" for g in users),
        )
    return None


def _volume_on(scene: Scene, block: BlockBinding) -> VolumeIdentity | None:
    for mount_point in block.top.mountpoints:
        found = resolve_volume(scene.node, mount_point).volume
        if found is not None:
            return found
    return None
