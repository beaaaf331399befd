"""Places for load: cgroups of v2 and v1, and the node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

from nodeagent.bind import cgroup
from nodeagent.bind.family import Ask, Scene
from nodeagent.bind.mounts import read_mounts
from nodeagent.bind.node import Node, read_text
from nodeagent.bind.process import agents_among
from nodeagent.model.cgroup import CgroupBinding
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.load import LoadBinding
from nodeagent.model.target import CgroupTarget, NodeTarget

WANTED = ("cpu", "cpuacct", "memory", "pids", "freezer", "cpuset")
"""Controllers of v1 that limit or count load, or end it."""
NO_LIMIT = 1 << 60
"""memory.limit_in_bytes without a limit is a huge number of pages (PAGE_COUNTER_MAX)."""


def bind(scene: Scene, ask: Ask) -> LoadBinding:
    """Where stressors are to run. Raises Refused or InvalidSpec."""
    if isinstance(ask.target, NodeTarget):
        return _node(scene.node, ask)
    if not isinstance(ask.target, CgroupTarget):
        raise InvalidSpec("a cgroup or the node is needed", ask.target.label())
    if ask.facts.cgroup != "v2":
        return _v1(scene.node, ask.target.cgroup)
    found = cgroup.bind(scene, ask)
    assert isinstance(found, CgroupBinding)  # noqa: S101 - a cgroup target has this binding
    left_out = ("values", "disk")
    known = {n: getattr(found, n) for n in CgroupBinding.model_fields if n not in left_out}
    return LoadBinding(path=found.scope.path, **known)


def _node(node: Node, ask: Ask) -> LoadBinding:
    if ask.facts.cgroup != "v2":
        raise Refused(
            "no load can run beside everything on the node",
            f"the cgroup hierarchy is {ask.facts.cgroup or 'missing'}, and the cap needs v2",
            "name a --cgroup",
        )
    total = cgroup.node_memory(node)
    return LoadBinding(
        target="the node",
        hierarchy="node",
        path="",
        folders=(str(cgroup.CGROUPS),),
        controllers=tuple(read_text(cgroup.CGROUPS / "cgroup.subtree_control").split()),
        cpu_micro=os.sysconf("SC_NPROCESSORS_ONLN") * cgroup.MICRO,
        cpu_from="the node's CPUs",
        memory=total,
        memory_from="the node's memory",
        node_memory=total,
    )


# --- cgroup v1 (Documentation/admin-guide/cgroup-v1/) --------------------------------


def hierarchies(node: Node) -> dict[str, Path]:
    """Controller of v1 -> where its hierarchy is mounted by its root."""
    found: dict[str, Path] = {}
    for mount in read_mounts(node):
        if mount.fs_type == "cgroup" and mount.root == "/":
            for option in mount.super_options.split(","):
                if option in WANTED:
                    found.setdefault(option, Path(mount.mount_point))
    return found


def _v1(node: Node, asked: str) -> LoadBinding:
    what = f"cgroup {asked} cannot be a target"
    mounted = hierarchies(node)
    path = _below(asked, mounted)
    places = {c: root / path.lstrip("/") for c, root in mounted.items()}
    there = {c: place for c, place in places.items() if (place / "cgroup.procs").exists()}
    if not there or path in ("", "/"):
        tried = ", ".join(sorted({str(place) for place in places.values()})) or "no v1 hierarchy"
        raise Refused(what, f"it is in none of: {tried}", "see: cat /proc/PID/cgroup")
    folders = tuple(sorted({str(place) for place in there.values()}))
    pids = {pid for folder in folders for pid in _pids(Path(folder))}
    for pid, named in ((os.getpid(), "faultd itself"), (1, "PID 1")):
        if pid in pids:
            raise Refused(what, f"{named} is in it or below it", "name the workload's own cgroup")
    cpus, cpu_from = _cpus(there, mounted)
    memory, memory_from = _memory(there, mounted)
    total = cgroup.node_memory(node)
    return LoadBinding(
        target=f"cgroup {path}",
        hierarchy="v1",
        path=path,
        folders=folders,
        controllers=tuple(sorted(there)),
        frozen="freezer" in there and read_text(there["freezer"] / "freezer.state") != "THAWED",
        cpu_micro=int(cpus * cgroup.MICRO),
        cpu_from=cpu_from,
        memory=min(memory or total, total),
        memory_from=memory_from if memory is not None and memory <= total else "the node's memory",
        memory_limited=memory is not None,
        node_memory=total,
        node_agents=agents_among(node, pids),
    )


def _below(asked: str, mounted: dict[str, Path]) -> str:
    """The path below the roots, also of one that was named by its whole path."""
    for root in sorted(set(mounted.values()), key=lambda p: -len(str(p))):
        if f"{asked}/".startswith(f"{root}/"):
            return os.path.normpath(asked.removeprefix(str(root)) or "/")
    return os.path.normpath(asked)


def _pids(folder: Path) -> Iterator[int]:
    for here, _, files in os.walk(folder):
        if "cgroup.procs" in files:
            yield from map(int, read_text(Path(here, "cgroup.procs")).split())


def _lineage(there: dict[str, Path], mounted: dict[str, Path], controller: str) -> Iterator[Path]:
    place, root = there.get(controller), mounted.get(controller)
    while place is not None and place != root:
        yield place
        place = place.parent


def _cpus(there: dict[str, Path], mounted: dict[str, Path]) -> tuple[Fraction, str]:
    """By the tightest quota on the way up, else by cpuset, else all that are online."""
    best, where = Fraction(os.sysconf("SC_NPROCESSORS_ONLN")), "the node's CPUs"
    for one in _lineage(there, mounted, "cpuset"):
        listed = cgroup.count_cpus(read_text(one / "cpuset.effective_cpus").strip())
        if listed and listed < best:
            best, where = Fraction(listed), f"cpuset of {one}"
    for one in _lineage(there, mounted, "cpu"):
        quota = read_text(one / "cpu.cfs_quota_us").strip()
        period = read_text(one / "cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit() and Fraction(int(quota), int(period)) < best:
            best, where = Fraction(int(quota), int(period)), f"cpu.cfs_quota_us of {one}"
    return best, where


def _memory(there: dict[str, Path], mounted: dict[str, Path]) -> tuple[int | None, str]:
    best: int | None = None
    where = ""
    for one in _lineage(there, mounted, "memory"):
        limit = int(read_text(one / "memory.limit_in_bytes").strip() or NO_LIMIT)
        if limit < NO_LIMIT and (best is None or limit < best):
            best, where = limit, f"memory.limit_in_bytes of {one}"
    return best, where
