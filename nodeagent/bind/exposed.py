"""Who can still be hit by a fault: a bounded look through /proc, by what the fault is bound to."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodeagent.bind.node import Node
from nodeagent.bind.process import CGROUPS, cgroup_pids, start_ticks, stat_fields
from nodeagent.bind.usage import reached_above
from nodeagent.model.binding import BlockBinding
from nodeagent.model.exposure import Exposure, How, Workload
from nodeagent.model.process import CgroupScope, PidScope

MAX_SECONDS = 3.0
MAX_WORKLOADS = 64
_MAP = re.compile(rb"^\S+ \S+ \S+ ([0-9a-f]+):([0-9a-f]+) (\d+)", re.MULTILINE)
_Test = Callable[[Path], How | None]


def exposed(
    node: Node, plan: Mapping[str, Any], ours: Iterable[int] = (), seconds: float = MAX_SECONDS
) -> Exposure:
    """Who can be hit by a fault with this plan now; `ours` are pids that do not count.

    After so many seconds it ends as not complete. Raises OSError when /proc or a mount table
    cannot be read.
    """
    test = _test_for(node, plan["binding"])
    if test is None:
        if plan["target"].get("type") == "node":
            return Exposure(workloads=(Workload(pid=0, comm="every process", how="node"),))
        return Exposure(known=False, note=f"nobody can say that of {plan['kind']}")
    found: list[Workload] = []
    complete, deadline = True, time.monotonic() + seconds
    skip = {os.getpid(), *ours}
    for pid in sorted(int(name) for name in os.listdir(node.proc) if name.isdigit()):
        if time.monotonic() > deadline or len(found) >= MAX_WORKLOADS:
            complete = False
            break
        if pid in skip:
            continue
        try:
            how = test(node.proc / str(pid))
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            complete = False
            continue
        if how is not None:
            found.append(_workload(node, pid, how))
    return Exposure(complete=complete, workloads=tuple(found))


def _test_for(node: Node, binding: Mapping[str, Any]) -> _Test | None:
    """How a process is tested, by the shape of the binding; None for one that is not known."""
    if "block" in binding:
        test = _of_disk(node, BlockBinding.model_validate(binding["block"]))
        only = binding.get("only")
        return test if only is None else _both(_of_cgroup(CgroupScope.model_validate(only)), test)
    if "netns" in binding:
        return _of_netns(int(binding["netns"]["inode"]))
    if "scope" in binding:
        scope = binding["scope"]
        if "pid" in scope:
            return _of_pid(node, PidScope.model_validate(scope))
        return _of_cgroup(CgroupScope.model_validate(scope))
    if "folder" in binding and "device" in binding:
        return _of_file_system(_Things(frozenset({int(binding["device"])})))
    return None


# --- disks --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Things:
    """Numbers of what is looked for: st_dev of file systems, (st_dev, inode), rdev of devices."""

    file_systems: frozenset[int]
    file: tuple[int, int] | None = None
    devices: frozenset[int] = frozenset()


def _number(dev: str) -> int:
    major, _, minor = dev.partition(":")
    return os.makedev(int(major), int(minor))


def _of_disk(node: Node, block: BlockBinding) -> _Test:
    devices, mounts = reached_above(node, block)
    file = None
    if block.file is not None:
        file = (os.makedev(block.file.major, block.file.minor), block.file.inode)
    return _of_file_system(
        _Things(
            file_systems=frozenset(_number(dev) for dev in mounts),
            file=file,
            devices=frozenset(_number(dev) for dev in devices),
        )
    )


def _of_file_system(things: _Things) -> _Test:
    def test(pid: Path) -> How | None:
        maps = (pid / "maps").read_bytes()
        if not maps:
            return None  # a kernel thread, or a zombie: neither reads
        best: How | None = None
        for how in _uses(pid, maps, things):
            if how != "volume":
                return how
            best = how
        return best

    return test


def _uses(pid: Path, maps: bytes, things: _Things) -> Iterator[How]:
    for found in set(_MAP.findall(maps)):
        dev, inode = os.makedev(int(found[0], 16), int(found[1], 16)), int(found[2])
        if things.file == (dev, inode):
            yield "file"
        elif inode and dev in things.file_systems:
            yield "volume"
    with os.scandir(pid / "fd") as entries:
        paths = [Path(entry.path) for entry in entries]
    for path in (*paths, pid / "cwd", pid / "root"):
        try:
            status = os.stat(path)
        except OSError:
            continue
        if things.file == (status.st_dev, status.st_ino):
            yield "file"
        elif stat.S_ISBLK(status.st_mode) and status.st_rdev in things.devices:
            yield "device"
        elif status.st_dev in things.file_systems:
            yield "volume"


# --- processes ----------------------------------------------------------------------


def _of_pid(node: Node, scope: PidScope) -> _Test:
    alive: set[int] = set()

    def test(pid: Path) -> How | None:
        number = int(pid.name)
        if number == scope.pid:
            hit = start_ticks(node, number) == scope.start_ticks
        else:  # parents have been looked at before: pids are in order, but for a wrap-around
            hit = scope.tree and int(stat_fields(node, number)[1]) in alive
        if hit:
            alive.add(number)
        return "scope" if hit else None

    return test


def _of_cgroup(scope: CgroupScope) -> _Test:
    members = frozenset(cgroup_pids(CGROUPS / scope.path.lstrip("/")))
    return lambda pid: "scope" if int(pid.name) in members else None


def _both(first: _Test, second: _Test) -> _Test:
    """Who is meant by both; how the second says."""
    return lambda pid: second(pid) if first(pid) is not None else None


def _of_netns(inode: int) -> _Test:
    return lambda pid: "netns" if os.stat(pid / "ns/net").st_ino == inode else None


def _workload(node: Node, pid: int, how: How) -> Workload:
    return Workload(
        pid=pid,
        comm=_first_line(node.proc / str(pid) / "comm"),
        how=how,
        cgroup=_first_line(node.proc / str(pid) / "cgroup").rpartition("::")[2],
    )


def _first_line(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip().rpartition("\n")[2]
    except OSError:
        return ""
