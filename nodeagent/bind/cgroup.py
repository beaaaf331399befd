"""Cgroup v2 targets as what limits processes: limits that apply, files that are there."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

from nodeagent.bind import process
from nodeagent.bind.family import Ask, Scene
from nodeagent.bind.mounts import read_mounts, resolve_mount_point
from nodeagent.bind.node import Node
from nodeagent.model.cgroup import CgroupBinding, Disk
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.process import CgroupScope, ProcessBinding
from nodeagent.model.target import CgroupTarget

CGROUPS = process.CGROUPS
FILES = ("cpu.max", "cpu.max.burst", "memory.high", "memory.max", "io.max", "pids.max",
         "memory.oom.group", "cgroup.freeze")  # fmt: skip
MICRO = 1_000_000


def bind(scene: Scene, ask: Ask) -> CgroupBinding | ProcessBinding:
    """A cgroup with its limits; a process where the kind takes one. Raises Refused."""
    if not isinstance(ask.target, CgroupTarget):
        return process.bind(scene, ask)
    if ask.facts.cgroup != "v2":
        raise Refused(
            f"cgroup {ask.target.cgroup} cannot be a target",
            f"this node's cgroup hierarchy is {ask.facts.cgroup or 'missing'}; v2 is needed",
            "boot with systemd.unified_cgroup_hierarchy=1",
        )
    found = process.bind(scene, ask)
    assert isinstance(found.scope, CgroupScope)  # noqa: S101 - as asked
    folder = folder_of(found.scope)
    _refuse_ours(folder, found.target)
    cpus, cpu_from = _cpus(folder)
    memory, memory_from = _memory(folder)
    total = node_memory(scene.node)
    return CgroupBinding(
        target=found.target,
        scope=found.scope,
        type=_read(folder / "cgroup.type"),
        frozen=any(_read(one / "cgroup.freeze") == "1" for one in lineage(folder)),
        values={name: _read(folder / name) for name in FILES if (folder / name).exists()},
        cpu_micro=int(cpus * MICRO),
        cpu_from=cpu_from,
        memory=min(memory, total) if memory is not None else total,
        memory_from=memory_from if memory is not None and memory <= total else "the node's memory",
        memory_limited=memory is not None,
        node_memory=total,
        oom_group=tuple(
            f"/{one.relative_to(CGROUPS)}"
            for one in lineage(folder)
            if _read(one / "memory.oom.group") == "1"
        ),
        node_agents=tuple(sorted({name.rpartition(" ")[0] for name in found.node_agents})),
        disk=_disk_of(scene.node, ask.spec),
    )


def folder_of(scope: CgroupScope) -> Path:
    """Where a cgroup's files are."""
    return CGROUPS / scope.path.lstrip("/")


def lineage(folder: Path) -> Iterator[Path]:
    """A cgroup and its ancestors below the root, the nearest first."""
    while folder != CGROUPS:
        yield folder
        folder = folder.parent


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return ""  # its controller is not enabled here


def _refuse_ours(folder: Path, target: str) -> None:
    pids = process.cgroup_pids(folder)
    for pid, named in ((os.getpid(), "faultd itself"), (1, "PID 1")):
        if pid in pids:
            raise Refused(
                f"{target} cannot be a target",
                f"{named} is in it or below it",
                "name the workload's own cgroup: cat /proc/PID/cgroup",
            )


def _cpus(folder: Path) -> tuple[Fraction, str]:
    """CPUs by the tightest cpu.max on the way up, else by cpuset, else all that are online."""
    best = Fraction(os.sysconf("SC_NPROCESSORS_ONLN"))
    where = "the node's CPUs"
    for one in lineage(folder):
        listed = count_cpus(_read(one / "cpuset.cpus.effective"))
        if listed and listed < best:
            best, where = Fraction(listed), f"cpuset of /{one.relative_to(CGROUPS)}"
        quota, _, period = _read(one / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit() and Fraction(int(quota), int(period)) < best:
            best = Fraction(int(quota), int(period))
            where = f"cpu.max of /{one.relative_to(CGROUPS)}"
    return best, where


def count_cpus(text: str) -> int:
    """How many CPUs a list such as `0-3,8` names (cpuset(7), list format); 0 if empty."""
    count = 0
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def _memory(folder: Path) -> tuple[int | None, str]:
    best: int | None = None
    where = ""
    for one in lineage(folder):
        text = _read(one / "memory.max")
        if text.isdigit() and (best is None or int(text) < best):
            best, where = int(text), f"memory.max of /{one.relative_to(CGROUPS)}"
    return best, where


def node_memory(node: Node) -> int:
    """MemTotal in bytes (proc_meminfo(5)). Raises OSError."""
    for line in (node.proc / "meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise OSError("MemTotal is not in /proc/meminfo")


def _disk_of(node: Node, spec: object) -> Disk | None:
    """The disk that the spec names, by itself or by what is mounted from it."""
    if (path := getattr(spec, "device", None)) is not None:
        return _disk(path)
    if (mount := getattr(spec, "volume", None)) is None:
        return None
    found = resolve_mount_point(node, mount, read_mounts(node))
    if not found.source.startswith("/"):
        raise Refused(
            f"the disk of {mount} cannot be throttled",
            f"{found.fs_type} on it is on no block device of its own",
        )
    source = os.path.realpath(found.source)
    number = os.stat(source).st_rdev if os.path.exists(source) else 0
    sysfs = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if (sysfs / "partition").exists():
        source = f"/dev/{sysfs.resolve().parent.name}"
    return _disk(source)


def _disk(path: str) -> Disk:
    """The whole disk at a path: io.max takes no partition (blkg_conf_open_bdev, blk-cgroup.c)."""
    try:
        status = os.stat(path)
    except OSError as exc:
        raise InvalidSpec(f"{path} cannot be throttled", f"{exc.strerror}") from exc
    if not stat.S_ISBLK(status.st_mode):
        raise InvalidSpec(f"{path} cannot be throttled", "it is no block device")
    major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    sysfs = Path(f"/sys/dev/block/{major}:{minor}")
    if (sysfs / "partition").exists():
        whole = sysfs.resolve().parent.name
        raise Refused(
            f"{path} cannot be throttled",
            "it is a partition, and io.max limits whole disks only",
            f"name the disk: --device /dev/{whole}",
        )
    return Disk(path=path, major=major, minor=minor)
