"""From a validated request to a binding: reads the node, changes nothing."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel

from nodeagent.bind.node import Node
from nodeagent.bind.resolve import resolve, resolve_device, resolve_volume
from nodeagent.bind.spacemap import space_map
from nodeagent.bind.usage import guards
from nodeagent.model.binding import BlockBinding, SpaceMap, VolumeIdentity
from nodeagent.model.disk import DiskBinding
from nodeagent.model.errors import InvalidSpec
from nodeagent.model.facts import Facts
from nodeagent.model.kind import Context, FaultKind, FaultSpec
from nodeagent.model.target import DeviceTarget, FileTarget, TargetBase, VolumeTarget

PROTECTED = ("/var/lib/kubelet", "/var/lib/containerd", "/var/lib/containers", "/var/lib/etcd")


class Binder:
    """Resolves targets on this node.

    protected: directories whose devices are guarded, the journal's among them.
    """

    def __init__(self, node: Node, protected: Iterable[str]) -> None:
        self._node = node
        self._protected = tuple(protected)

    def bind(
        self, kind: FaultKind, fault_id: str, target: TargetBase, spec: FaultSpec, facts: Facts
    ) -> BaseModel:
        """The binding of a target. Raises Refused or InvalidSpec."""
        if isinstance(target, DeviceTarget | VolumeTarget | FileTarget):
            return self._disk(kind, fault_id, target, spec, facts)
        raise InvalidSpec(f"{target.label()} cannot be bound on this node")

    def _disk(
        self, kind: FaultKind, fault_id: str, target: TargetBase, spec: FaultSpec, facts: Facts
    ) -> DiskBinding:
        block = resolve(self._node, target)
        space = None
        if kind.select is not None:
            if block.file is None:
                space = self._space(block)
            wide = DiskBinding(block=block, space=space)
            chosen = kind.select(spec, Context(fault_id, target, wide, facts))
            if chosen != block.ranges:
                narrow = resolve_device(self._node, block.top.name, chosen)
                block = block.model_copy(
                    update={"layers": narrow.layers, "ends": narrow.ends, "whole": narrow.whole}
                )
        found = guards(self._node, block, self._protected)
        return DiskBinding(block=block, guards=found)

    def _space(self, block: BlockBinding) -> SpaceMap | None:
        """What the file system on the device keeps where; None when there is none.

        A device with something mounted above it (a partition, a volume) is unknown
        ground: all of it counts as metadata.
        """
        volume = block.volume or self._volume_on(block)
        if volume is not None:
            return space_map(self._node, volume)
        users = [g for g in guards(self._node, block) if g.kind in ("mounted", "held", "swap")]
        if users:
            return SpaceMap(
                unknown=block.ranges,
                partial=True,
                notes=tuple(f"{block.top.name} is in use: {g.what} ({g.via})" for g in users),
            )
        return None

    def _volume_on(self, block: BlockBinding) -> VolumeIdentity | None:
        for mount_point in block.top.mountpoints:
            found = resolve_volume(self._node, mount_point).volume
            if found is not None:
                return found
        return None
