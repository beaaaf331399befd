"""Whole runs on lab nodes: the controller is killed twice, a link is cut, and all is back.

The short one is on one node, the long one on three (each takes a CPU and a gigabyte);
FAULTCTL_RUN_NODES changes both.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from agentkit import Bench, faultctl, running_agent
from disk_kit import raw_volume

from controller.bundle import verify
from controller.lab import Disk, Node, NodeConfig
from controller.recorder import read_records
from controller.records import FaultArmed, FaultDropped, FaultEnded, RunEvent

NODES = os.environ.get("FAULTCTL_RUN_NODES")


@dataclass(frozen=True)
class Shape:
    """How many faults on how many nodes, in seconds from start to start, and of life."""

    nodes: int
    faults: int
    apart: int
    life: int
    lease: int
    cut: int
    """Seconds without the last node's link."""

    @property
    def names(self) -> str:
        return "abc"[: int(NODES or self.nodes)]

    @property
    def length(self) -> int:
        return self.faults * self.apart + self.life


# Long enough that on a busy host the run is not over when its controller is killed again.
SHORT = Shape(nodes=1, faults=12, apart=4, life=24, lease=60, cut=4)
# 540 s from the first start to the last, and up to five faults at once on all nodes together.
LONG = Shape(nodes=3, faults=30, apart=18, life=60, lease=60, cut=20)


@contextmanager
def played_on(fresh_node: Callable[[NodeConfig], Node], shape: Shape) -> Iterator[dict[str, Bench]]:
    """An agent and a raw volume on each node."""
    with ExitStack() as stack:
        found = {}
        for name in shape.names:
            node = fresh_node(NodeConfig(flavour="debian-13", disks=(Disk("d1", 1 << 28),)))
            bench = stack.enter_context(running_agent(node))
            stack.enter_context(raw_volume(bench))
            found[name] = bench
        yield found


def sector(number: int) -> int:
    """Far enough from each other that they compose on one device."""
    return 2048 + 512 * number


def experiment(benches: dict[str, Bench], shape: Shape) -> dict[str, Any]:
    names = sorted(benches)
    return {
        "version": 1,
        "name": "whole-run",
        "duration": f"{shape.length}s",
        "blind": False,
        "lease": f"{shape.lease}s",
        "nodes": {name: bench.entry() for name, bench in benches.items()},
        "targets": {
            f"disk-{name}": {
                "node": name,
                "service": f"raw-{name}",
                "target": {"type": "device", "device": "/dev/mapper/raw"},
            }
            for name in names
        },
        "faults": {
            f"f{n}": {
                "kind": "latent-sector",
                "target": f"disk-{names[n % len(names)]}",
                "at": f"{n * shape.apart}s",
                "for": f"{shape.life}s",
                "spec": {"sectors": f"{sector(n)}+8"},
            }
            for n in range(shape.faults)
        },
    }


def armed(folder: Path) -> int:
    return sum(isinstance(r, FaultArmed) for r in read_records(folder, "faults.jsonl"))


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


def cut(bench: Bench, up: bool) -> None:
    """The node's network, by a channel that does not use it."""
    bench.node.sh(
        "for d in /sys/class/net/*; do d=${d##*/}; [ $d = lo ] || "
        f"ip link set dev $d {'up' if up else 'down'}; done"
    )


def play(benches: dict[str, Bench], shape: Shape, folder: Path) -> dict[str, Any]:
    """A run whose controller is killed twice, the second time with a node's link cut."""
    cwd, file = folder.parent, folder.parent / "experiment.yaml"
    file.write_text(json.dumps(experiment(benches, shape)))
    run = faultctl("run", str(file), "--folder", str(folder), cwd=cwd)
    names = sorted(benches)
    wait_for(lambda: run.poll() is not None or armed(folder) >= len(names) + 2, 180)
    assert run.poll() is None, run.communicate()
    first = benches[names[0]]
    assert first.errno("/dev/mapper/raw", sector(len(names))) == "Input/output error"
    run.kill()
    run.communicate()
    run = faultctl("run", "--take-over", str(folder), cwd=cwd)
    wait_for(lambda: run.poll() is not None or armed(folder) >= shape.faults // 2, shape.length)
    cut(benches[names[-1]], up=False)
    time.sleep(shape.cut)
    run.kill()
    run.communicate()
    cut(benches[names[-1]], up=True)
    run = faultctl("run", "--take-over", str(folder), "-o", "json", cwd=cwd)
    out, err = run.communicate(timeout=shape.length + 240)
    assert run.returncode in (0, 3), err
    found: dict[str, Any] = json.loads(out)
    return found


def check(benches: dict[str, Bench], shape: Shape, folder: Path, data: dict[str, Any]) -> None:
    """Every fault ended once for a stated reason, twice over: by the record and by the nodes."""
    records = list(read_records(folder, "faults.jsonl"))
    ends = [r for r in records if isinstance(r, (FaultEnded, FaultDropped))]
    assert len(ends) == len({r.fault for r in ends}) == shape.faults
    # While the controller was dead or the link was cut, starts were missed.
    missed = {"late", "expired-before-start", "unreachable"}
    assert {r.reason for r in ends} <= {"reverted", "expired"} | missed
    words = Counter(r.reason for r in ends)
    assert words["reverted"] >= shape.faults // 4, words
    assert verify(Path(data["bundle"]).read_bytes(), data["seal"]) == []
    names = [r.name for r in read_records(folder, "events.jsonl") if isinstance(r, RunEvent)]
    assert names.count("takeover") == 2
    for bench in benches.values():
        assert bench.residue() == []
        history = bench.client.faults()
        assert len({f.id for f in history}) == len(history)
        assert all(f.state == "ended" for f in history)
        told = {r.fault: r.reason for r in ends if isinstance(r, FaultEnded)}
        assert {f.id: f.end_reason for f in history}.items() <= told.items()


def most_at_once(folder: Path) -> int:
    """Faults that were there at one moment, by the record."""
    records = list(read_records(folder, "faults.jsonl"))
    steps = [(r.t_ns, 1) for r in records if isinstance(r, FaultArmed)]
    steps += [(r.t_ns, -1) for r in records if isinstance(r, FaultEnded)]
    return max(accumulate(change for _, change in sorted(steps)))


@pytest.mark.vm("debian-13")
@pytest.mark.timeout(900)
def test_killed_twice_and_cut_once_every_fault_ends_once(
    fresh_node: Callable[[NodeConfig], Node], tmp_path: Path
) -> None:
    with played_on(fresh_node, SHORT) as benches:
        before = {name: bench.tables() for name, bench in benches.items()}
        data = play(benches, SHORT, tmp_path / "run")
        assert {name: bench.tables() for name, bench in benches.items()} == before
        check(benches, SHORT, tmp_path / "run", data)
        plan_finds_what_excludes_each_other(benches, tmp_path)


@pytest.mark.slow
@pytest.mark.vm("debian-13")
@pytest.mark.timeout(2400)
def test_thirty_faults_in_ten_minutes_on_three_nodes(
    fresh_node: Callable[[NodeConfig], Node], tmp_path: Path
) -> None:
    with played_on(fresh_node, LONG) as benches:
        before = {name: bench.tables() for name, bench in benches.items()}
        data = play(benches, LONG, tmp_path / "run")
        assert {name: bench.tables() for name, bench in benches.items()} == before
        check(benches, LONG, tmp_path / "run", data)
        assert most_at_once(tmp_path / "run") >= 3
        print(f"\nrun on {len(benches)} node(s): {data['ended']} {data['dropped']}")


def plan_finds_what_excludes_each_other(benches: dict[str, Bench], tmp_path: Path) -> None:
    """`run --plan` lists steps, and a conflict is found before anything starts."""
    before = benches["a"].tables()
    data = experiment(benches, replace(SHORT, faults=3))
    file = tmp_path / "experiment.yaml"
    file.write_text(json.dumps(data))
    run = faultctl("run", str(file), "--plan", "-o", "json", cwd=tmp_path)
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    assert all(len(steps) for steps in json.loads(out)["steps"].values())
    data["faults"]["f1"]["target"] = data["faults"]["f0"]["target"]
    data["faults"]["f1"]["spec"] = {"sectors": f"{sector(0) + 4}+8"}
    file.write_text(json.dumps(data))
    run = faultctl("run", str(file), cwd=tmp_path)
    assert "excludes" in run.communicate(timeout=120)[1]
    assert run.returncode == 3
    assert benches["a"].tables() == before
