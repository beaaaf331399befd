"""Cgroups for stressors, laid out in a folder: where they are made, what is counted of whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nodeagent.backends.stress_home import Home
from nodeagent.model.steps.process import StressRun


def step(folders: tuple[Path, ...], **more: Any) -> StressRun:
    known = {"folders": [str(f) for f in folders], "child": "faultctl-stress-t-1",
             "args": ["--cpu", "1"], "workers": 1, "oom_score_adj": 0}  # fmt: skip
    return StressRun.model_validate(known | more)


def test_v1_counts_the_target_and_uses_time_of_ours(tmp_path: Path) -> None:
    cpu, memory = tmp_path / "cpu", tmp_path / "memory"
    for folder in (cpu, memory):
        folder.mkdir()
        (folder / "cgroup.procs").touch()
    (cpu / "cpu.stat").write_text("nr_periods 9\nnr_throttled 4\nthrottled_time 5000000\n")
    (memory / "memory.usage_in_bytes").write_text("8192\n")
    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    home = Home(step((cpu, memory), hierarchy="v1"))
    assert home.parent_is_there()
    assert home.can_be_ended()
    home.make()
    assert all(child.is_dir() for child in home.children)
    assert home.exists()
    assert home.memory() == 8192
    (memory / "faultctl-stress-t-1/memory.oom_control").write_text("oom_kill 3\n")
    assert home.counters() == {"oom_kill": 5, "nr_throttled": 4, "throttled_usec": 5000}
    (cpu / "faultctl-stress-t-1/cpuacct.usage").write_text("7000000\n")
    (cpu / "faultctl-stress-t-1/cpu.stat").write_text("nr_periods 1\n")
    assert home.usage_usec() == 7000
    assert home.stalls() == {}


def test_the_nodes_is_its_own_target_and_gets_its_limits(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    child = tmp_path / "faultctl-stress-t-1"
    child.mkdir()
    for name in ("cpu.max", "memory.max"):
        (child / name).write_text("max\n")
    limits = [["cpu.max", "180000 100000"], ["memory.max", "5"], ["nosuch.max", "1"]]
    home = Home(step((tmp_path,), hierarchy="node", limits=limits))
    home.make()
    assert (child / "cpu.max").read_text() == "180000 100000"
    assert (child / "memory.max").read_text() == "5"
    assert not (child / "nosuch.max").exists()
    (child / "memory.events").write_text("oom 3\noom_kill 1\nnew_key 4\n")
    (child / "cpu.stat").write_text("usage_usec 77\nthrottled_usec x\n")
    assert home.counters()["oom_kill"] == 1
    assert home.usage_usec() == 77
    assert home.memory() == 0
