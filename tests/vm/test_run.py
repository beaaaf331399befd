"""Whole runs on lab nodes: the controller is killed twice, a link is cut, and all is back.

FAULTCTL_RUN_NODES=3 plays it on three nodes (each takes a CPU and a gigabyte).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from agentkit import Bench, running_agent
from disk_kit import raw_volume

from controller.bundle import verify
from controller.lab import Disk, Node, NodeConfig
from controller.recorder import read_records
from controller.records import FaultArmed, FaultDropped, FaultEnded, RunEvent

ROOT = Path(__file__).resolve().parents[2]
NODES = int(os.environ.get("FAULTCTL_RUN_NODES", "1"))
FAULTS = 30
APART_S, LIFE_S = 2, 24
TAIL_S = 20


@pytest.fixture
def benches(fresh_node: Callable[[NodeConfig], Node]) -> Iterator[dict[str, Bench]]:
    with ExitStack() as stack:
        found = {}
        for name in "abc"[:NODES]:
            node = fresh_node(NodeConfig(flavour="debian-13", disks=(Disk("d1", 1 << 28),)))
            bench = stack.enter_context(running_agent(node))
            stack.enter_context(raw_volume(bench))
            found[name] = bench
        yield found


def sector(number: int) -> int:
    """Far enough from each other that they compose on one device."""
    return 2048 + 512 * number


def experiment(benches: dict[str, Bench], faults: int = FAULTS) -> dict[str, Any]:
    names = sorted(benches)
    return {
        "version": 1,
        "name": "whole-run",
        "duration": f"{faults * APART_S + LIFE_S + TAIL_S}s",
        "blind": False,
        "lease": "60s",
        "nodes": {
            name: {
                "agent": bench.access.url,
                "tls_ca": str(bench.access.ca),
                "tls_cert": str(bench.access.cert),
                "tls_key": str(bench.access.key),
                "tls_server_name": "localhost",
            }
            for name, bench in benches.items()
        },
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
                "at": f"{n * APART_S}s",
                "for": f"{LIFE_S}s",
                "spec": {"sectors": f"{sector(n)}+8"},
            }
            for n in range(faults)
        },
    }


def faultctl(*args: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "controller.cli.main", *args],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


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


@pytest.mark.vm("debian-13")
@pytest.mark.timeout(900)
def test_killed_twice_and_cut_once_every_fault_ends_once(
    benches: dict[str, Bench], tmp_path: Path
) -> None:
    before = {name: bench.tables() for name, bench in benches.items()}
    file, folder = tmp_path / "experiment.yaml", tmp_path / "run"
    file.write_text(json.dumps(experiment(benches)))
    run = faultctl("run", str(file), "--folder", str(folder), cwd=tmp_path)
    wait_for(lambda: run.poll() is not None or armed(folder) >= 6, 120)
    assert run.poll() is None, run.communicate()
    assert benches["a"].errno("/dev/mapper/raw", sector(NODES)) == "Input/output error"
    run.kill()
    run.communicate()
    run = faultctl("run", "--take-over", str(folder), cwd=tmp_path)
    wait_for(lambda: run.poll() is not None or armed(folder) >= 10, 120)
    last = benches[sorted(benches)[-1]]
    cut(last, up=False)
    time.sleep(5)
    run.kill()
    run.communicate()
    cut(last, up=True)
    run = faultctl("run", "--take-over", str(folder), "-o", "json", cwd=tmp_path)
    out, err = run.communicate(timeout=400)
    assert run.returncode in (0, 3), err
    records = list(read_records(folder, "faults.jsonl"))
    ends = [r for r in records if isinstance(r, (FaultEnded, FaultDropped))]
    assert len(ends) == len({r.fault for r in ends}) == FAULTS
    # While the controller was dead or the link was cut, starts were missed.
    missed = {"late", "expired-before-start", "unreachable"}
    assert {r.reason for r in ends} <= {"reverted", "expired"} | missed
    words = Counter(r.reason for r in ends)
    assert words["reverted"] >= FAULTS // 4, words
    data = json.loads(out)
    assert verify(Path(data["bundle"]).read_bytes(), data["seal"]) == []
    names = [r.name for r in read_records(folder, "events.jsonl") if isinstance(r, RunEvent)]
    assert names.count("takeover") == 2
    for name, bench in benches.items():
        assert bench.tables() == before[name]
        assert bench.residue() == []
        history = bench.client.faults()
        assert len({f.id for f in history}) == len(history)
        assert all(f.state == "ended" for f in history)
    print(f"\nrun on {NODES} node(s): {data['ended']} {data['dropped']}")


@pytest.mark.vm("debian-13")
@pytest.mark.timeout(900)
def test_plan_lists_steps_and_conflicts_before_anything_starts(
    benches: dict[str, Bench], tmp_path: Path
) -> None:
    before = benches["a"].tables()
    data = experiment(benches, faults=3)
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
