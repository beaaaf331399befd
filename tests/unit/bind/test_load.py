"""Places for load: cgroups of v1 laid out in a folder, limits of ancestors, what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeagent.bind import load
from nodeagent.bind.node import Node
from nodeagent.model.errors import Refused

UNLIMITED = "9223372036854771712"
LAYOUT = {
    "cpu/pod/cpu.cfs_quota_us": "50000",
    "cpu/pod/cpu.cfs_period_us": "100000",
    "cpu/pod/app/cpu.cfs_quota_us": "-1",
    "cpu/pod/app/cpu.cfs_period_us": "100000",
    "memory/pod/memory.limit_in_bytes": "67108864",
    "memory/pod/app/memory.limit_in_bytes": UNLIMITED,
    "freezer/pod/app/freezer.state": "THAWED",
}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node with three hierarchies; the process 42 is in the target."""
    lines = []
    for number, name in enumerate(("cpu,cpuacct", "memory", "freezer")):
        root = tmp_path / "cg" / name.partition(",")[0]
        (root / "pod/app").mkdir(parents=True)
        for folder in (root, root / "pod", root / "pod/app"):
            (folder / "cgroup.procs").write_text("42\n" if folder.name == "app" else "")
        lines.append(f"{30 + number} 20 0:{number} / {root} rw - cgroup cgroup rw,{name}")
    for path, text in LAYOUT.items():
        (tmp_path / "cg" / path).write_text(f"{text}\n")
    for pid in ("self", "42"):
        (tmp_path / "proc" / pid).mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("\n".join(lines) + "\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1048576 kB\n")
    (tmp_path / "proc/42/comm").write_text("app\n")
    return Node(proc=tmp_path / "proc")


def test_limits_of_ancestors_count(node: Node, tmp_path: Path) -> None:
    found = load._v1(node, "/pod/app")
    assert found.controllers == ("cpu", "cpuacct", "freezer", "memory")
    assert found.folders == tuple(str(tmp_path / f"cg/{n}/pod/app") for n in
                                  ("cpu", "freezer", "memory"))  # fmt: skip
    assert (found.cpu_micro, found.memory) == (500_000, 64 << 20)
    assert found.cpu_from.startswith("cpu.cfs_quota_us of ")
    assert found.memory_limited
    assert not found.frozen
    assert load._v1(node, f"{tmp_path}/cg/memory/pod/app") == found, "named by its whole path"


def test_without_limits_it_is_the_node(node: Node, tmp_path: Path) -> None:
    (tmp_path / "cg/cpu/pod/cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cg/memory/pod/memory.limit_in_bytes").write_text(f"{UNLIMITED}\n")
    found = load._v1(node, "/pod/app")
    assert (found.memory, found.memory_from) == (1 << 30, "the node's memory")
    assert found.cpu_micro == os.sysconf("SC_NPROCESSORS_ONLN") * 1_000_000
    assert not found.memory_limited


def test_one_that_only_some_hierarchies_have(node: Node, tmp_path: Path) -> None:
    (tmp_path / "cg/memory/other").mkdir()
    (tmp_path / "cg/memory/other/cgroup.procs").write_text("")
    assert load._v1(node, "/other").controllers == ("memory",)


def test_what_is_not_there_names_what_was_tried(node: Node, tmp_path: Path) -> None:
    for asked in ("/none", "/", "/pod/../.."):
        with pytest.raises(Refused) as caught:
            load._v1(node, asked)
        assert str(tmp_path / "cg/cpu") in caught.value.why
    (tmp_path / "cg/cpu/pod/app/cgroup.procs").write_text(f"{os.getpid()}\n")
    with pytest.raises(Refused, match="faultd itself"):
        load._v1(node, "/pod")
