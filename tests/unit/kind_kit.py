"""What tests of all kinds share: their examples as requests, a node that can do everything."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import pytest

from controller.cli import inject as inject_module
from nodeagent.faults import kinds
from nodeagent.model.binding import (
    BlockBinding,
    BlockLayer,
    DescentEnd,
    Extent,
    FileIdentity,
    LayerRanges,
    SpaceMap,
    VolumeIdentity,
    whole_range,
)
from nodeagent.model.disk import DiskBinding
from nodeagent.model.facts import Facts
from nodeagent.model.kind import Context, FaultKind
from nodeagent.model.plan import FaultRequest
from nodeagent.model.planner import parse_request
from nodeagent.model.ranges import Range, Ranges
from nodeagent.model.target import DeviceTarget, FileTarget, TargetBase, VolumeTarget

SECTORS = 1 << 24


class _All(tuple[str, ...]):
    """Has everything."""

    def __contains__(self, item: object) -> bool:
        return True


class _Newest(dict[str, tuple[int, int, int]]):
    """Has every target in a version of the far future."""

    def get(self, key: object, default: object = None) -> Any:
        return (99, 0, 0)


ABLE = Facts.model_construct(
    node_id="0123456789abcdef",
    hostname="n",
    kernel_release="99.0",
    arch="x86_64",
    boot_id="b",
    root=True,
    btf=True,
    libbpf="libbpf.so.1",
    bpf_objects=_All(),
    lockdown="none",
    lsm=_All(("bpf",)),
    dm_version="4.99.0",
    dm_targets=_Newest(),
    dm_features=_All(),
    error_injection=_All(),
    cgroup="v2",
    notes=(),
)
"""The facts of a node that lacks nothing."""
UNABLE = Facts(node_id="0123456789abcdef", kernel_release="2.6.32", arch="x86_64", boot_id="b")
"""The facts of a node that has nothing."""


def examples() -> list[tuple[str, str]]:
    """(kind, command line) of every example."""
    return [(kind.name, line) for kind in kinds().values() for line in kind.examples]


class _Caught(BaseException):
    pass


@contextmanager
def _catching() -> Iterator[list[FaultRequest]]:
    """Requests end here instead of at an agent."""
    caught: list[FaultRequest] = []

    class Agent:
        def __enter__(self) -> Agent:
            return self

        def __exit__(self, *args: object) -> None: ...

        def plan(self, request: FaultRequest) -> None:
            caught.append(request)
            raise _Caught

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inject_module, "client", Agent)
        yield caught


def parsed(line: str) -> FaultRequest:
    """The request that a command line makes."""
    words = shlex.split(line)
    assert words[:2] == ["faultctl", "inject"], line
    with _catching() as caught:
        try:
            inject_module.inject.main([*words[2:], "--plan"], standalone_mode=False)
        except _Caught:
            return caught[0]
    raise AssertionError(f"{line} asked for nothing")


def options_of(kind: FaultKind) -> list[click.Parameter]:
    """All parameters of a kind's command."""
    return inject_module.inject_command(kind).params


def _layers(ranges: Ranges) -> tuple[LayerRanges, ...]:
    dm = BlockLayer(
        major=253,
        minor=0,
        name="/dev/mapper/data",
        kernel_name="dm-0",
        kind="dm",
        size_sectors=SECTORS,
        logical_block=512,
        physical_block=512,
        dm_name="data",
        dm_uuid="X",
        table=(f"0 {SECTORS} linear 8:16 0",),
        slaves=("8:16",),
    )
    disk = BlockLayer(
        major=8,
        minor=16,
        name="/dev/sdb",
        kernel_name="sdb",
        kind="disk",
        size_sectors=SECTORS,
        logical_block=512,
        physical_block=512,
        holders=("253:0",),
    )
    return (
        LayerRanges(layer=dm, ranges=ranges, depth=0),
        LayerRanges(layer=disk, ranges=ranges, depth=1, above="253:0"),
    )


def _file(target: FileTarget) -> FileIdentity:
    length = target.length or 65536
    return FileIdentity(
        asked=target.file,
        path=target.file,
        major=253,
        minor=0,
        inode=12,
        generation=1,
        size=1 << 20,
        mtime_ns=1,
        ctime_ns=1,
        offset=target.offset,
        length=length,
        fs_block=4096,
        extents=(Extent(logical=target.offset, physical=1 << 20, length=length),),
    )


def _binding(target: TargetBase, ranges: Ranges) -> DiskBinding:
    layers = _layers(ranges)
    volume = None
    if isinstance(target, VolumeTarget):
        volume = VolumeIdentity(
            mount_point=target.volume,
            root="/",
            fs_type="ext4",
            source="/dev/mapper/data",
            major=253,
            minor=0,
            read_only=False,
        )
    block = BlockBinding(
        target=target.label(),
        layers=layers,
        ends=(DescentEnd(dev="8:16", ranges=ranges, exact=True, reason="the lowest device"),),
        whole=ranges == whole_range(layers[0].layer),
        volume=volume,
        file=_file(target) if isinstance(target, FileTarget) else None,
    )
    return DiskBinding(block=block)


def bound(kind: FaultKind, request: FaultRequest) -> DiskBinding | None:
    """A disk target bound to a dm device on a disk; None for targets of another family."""
    target, spec = parse_request(kind, request)
    if not isinstance(target, DeviceTarget | VolumeTarget | FileTarget):
        return None
    if isinstance(target, FileTarget):
        start = (1 << 20) // 512
        ranges: Ranges = (Range(start=start, length=(target.length or 65536) // 512),)
    else:
        ranges = (Range(start=0, length=SECTORS),)
    wide = _binding(target, ranges)
    if kind.select is None:
        return wide
    space = SpaceMap(file_data=ranges, partial=False)
    known = DiskBinding(block=wide.block, space=space)
    chosen = kind.select(spec, Context(request.id, target, known, ABLE))
    return _binding(target, chosen)
