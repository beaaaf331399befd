"""Whole runs of the `faultctl` program against simulated nodes over gRPC."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sim_server import serve

from controller.bundle import open_bundle, verify
from controller.recorder import read_records
from controller.records import FaultArmed, FaultDropped, FaultEnded, RunEvent

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, SimpleNamespace]]:
    found = serve(tmp_path, "abc")
    yield found
    for entry in found.values():
        entry.server.stop(0)


def experiment(
    nodes: dict[str, SimpleNamespace], faults: dict[str, tuple[float, float, str]], **more: Any
) -> dict[str, Any]:
    """name -> (start, life, node), in seconds."""
    return {
        "version": 1,
        "name": "sim",
        "duration": "8s",
        "blind": False,
        "lease": "5s",
        "nodes": {name: {"agent": entry.url} for name, entry in nodes.items()},
        "targets": {
            f"t-{name}": {
                "node": node,
                "service": f"s-{name}",
                "target": {"type": "device", "device": f"/dev/{name}"},
            }
            for name, (_, _, node) in faults.items()
        },
        "faults": {
            name: {
                "kind": "latent-sector",
                "target": f"t-{name}",
                "at": f"{round(start * 1000)}ms",
                "for": f"{round(life * 1000)}ms",
                "spec": {"count": 1},
            }
            for name, (start, life, _) in faults.items()
        },
        **more,
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


def written(tmp_path: Path, data: dict[str, Any]) -> str:
    path = tmp_path / "experiment.yaml"
    path.write_text(json.dumps(data))  # JSON is YAML
    return str(path)


def ended_once(folder: Path, count: int) -> list[FaultEnded | FaultDropped]:
    records = list(read_records(folder, "faults.jsonl"))
    ends = [r for r in records if isinstance(r, (FaultEnded, FaultDropped))]
    assert len({r.fault for r in ends}) == len(ends) == count
    return ends


def test_run_from_start_to_sealed_bundle(nodes: Any, tmp_path: Path) -> None:
    file = written(tmp_path, experiment(nodes, {"x": (0.5, 2, "a"), "y": (1, 3, "b")}))
    folder = tmp_path / "run"
    run = faultctl("run", file, "--folder", str(folder), "-o", "json", cwd=tmp_path)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 0, err
    data = json.loads(out)
    assert data["ended"] == {"reverted": 2}
    ended_once(folder, 2)
    bundle = Path(data["bundle"])
    assert verify(bundle.read_bytes(), data["seal"]) == []
    header = open_bundle(bundle).header
    assert header.experiment == "sim"
    errors = [
        r.sent_ns - r.start_ns
        for r in read_records(folder, "faults.jsonl")
        if isinstance(r, FaultArmed)
    ]
    assert len(errors) == 2
    assert all(0 <= e < 2_000_000_000 for e in errors)
    assert folder.stat().st_mode & 0o077 == 0


def test_ctrl_c_twice_reverts_everything(nodes: Any, tmp_path: Path) -> None:
    """CASES 16: an interrupt during the way back drops nothing."""
    file = written(
        tmp_path, experiment(nodes, {"x": (0.2, 60, "a"), "y": (0.2, 60, "b")}, duration="2m")
    )
    folder = tmp_path / "run"
    run = faultctl("run", file, "--folder", str(folder), cwd=tmp_path)
    wait_for(lambda: nodes["a"].node.armings and nodes["b"].node.armings)
    run.send_signal(signal.SIGINT)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=60)
    assert run.returncode == 130
    assert {r.by for r in ended_once(folder, 2) if isinstance(r, FaultEnded)} == {"interrupt"}
    assert all(f.state == "ended" for n in nodes.values() for f in n.node.faults.values())


def wait_for(condition: Any, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_controller_killed_twice_and_a_link_cut_once(nodes: Any, tmp_path: Path) -> None:
    # Slow enough that a controller on a busy machine starts while there is something to do.
    faults = {f"f{n}": (0.3 + n, 2 + n % 4, "abc"[n % 3]) for n in range(15)}
    file = written(tmp_path, experiment(nodes, faults, duration="21s"))
    folder = tmp_path / "run"
    run = faultctl("run", file, "--folder", str(folder), cwd=tmp_path)
    wait_for(lambda: sum(n.node.armings.total() for n in nodes.values()) >= 4)
    run.kill()
    run.communicate()
    nodes["c"].node.down = True
    run = faultctl("run", "--take-over", str(folder), cwd=tmp_path)
    wait_for(lambda: sum(n.node.armings.total() for n in nodes.values()) >= 8)
    run.kill()
    run.communicate()
    nodes["c"].node.down = False
    run = faultctl("run", "--take-over", str(folder), "-o", "json", cwd=tmp_path)
    out, err = run.communicate(timeout=90)
    assert run.returncode in (0, 3), err
    ended_once(folder, 15)
    for entry in nodes.values():
        assert all(count == 1 for count in entry.node.armings.values())
        assert all(f.state == "ended" for f in entry.node.faults.values())
    assert verify(Path(json.loads(out)["bundle"]).read_bytes()) == []
    names = [r.name for r in read_records(folder, "events.jsonl") if isinstance(r, RunEvent)]
    assert names.count("takeover") == 2


def test_second_controller_is_refused_and_stop_works_from_another_terminal(
    nodes: Any, tmp_path: Path
) -> None:
    data = experiment(nodes, {"x": (0.2, 110, "a"), "y": (110, 5, "b")}, duration="2m")
    file = written(tmp_path, data)
    folder = tmp_path / "run"
    run = faultctl("run", file, "--folder", str(folder), cwd=tmp_path)
    wait_for(lambda: nodes["a"].node.armings)
    other = faultctl("run", "--take-over", str(folder), cwd=tmp_path)
    assert "another controller" in other.communicate(timeout=30)[1]
    assert other.returncode == 3
    answers = []
    for verb in ("pause", "pause", "resume", "stop"):
        told = faultctl(verb, str(folder), cwd=tmp_path)
        answers.append(told.communicate(timeout=30)[0].split(": ")[1].split(",")[0].strip())
    assert answers == ["ok", "already", "ok", "ok"]
    run.communicate(timeout=30)
    assert run.returncode == 0
    ends = ended_once(folder, 2)
    assert sorted(r.reason for r in ends) == ["reverted", "stopped"]
    told = faultctl("stop", str(folder), cwd=tmp_path)
    assert "ended" in told.communicate(timeout=30)[0]


def test_stop_ends_a_run_whose_controller_died(nodes: Any, tmp_path: Path) -> None:
    data = experiment(nodes, {"x": (0.2, 110, "a")}, lease="60s", duration="2m")
    folder = tmp_path / "run"
    run = faultctl("run", written(tmp_path, data), "--folder", str(folder), cwd=tmp_path)
    wait_for(lambda: nodes["a"].node.armings)
    run.kill()
    run.communicate()
    told = faultctl("stop", str(folder), cwd=tmp_path)
    out, err = told.communicate(timeout=60)
    assert told.returncode == 0, err
    assert [r.reason for r in ended_once(folder, 1)] == ["reverted"]
    assert "bundle" in out


def test_unreachable_node_at_the_start_touches_nothing(nodes: Any, tmp_path: Path) -> None:
    data = experiment(nodes, {"x": (0.2, 2, "a"), "y": (0.2, 2, "b")})
    data["nodes"]["b"]["agent"] = f"unix://{tmp_path}/none.sock"
    folder = tmp_path / "run"
    run = faultctl("run", written(tmp_path, data), "--folder", str(folder), cwd=tmp_path)
    err = run.communicate(timeout=60)[1]
    assert run.returncode == 4
    assert "b" in err
    assert not folder.exists()
    assert nodes["a"].node.writes == 0


def test_plan_touches_nothing_and_prints_the_timeline(nodes: Any, tmp_path: Path) -> None:
    """CASES 159, 161: a dry run writes nothing, and says exactly what a run would hit."""
    file = written(tmp_path, experiment(nodes, {"x": (0.5, 2, "a")}))
    run = faultctl("run", file, "--plan", "-o", "json", cwd=tmp_path)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 0, err
    data = json.loads(out)
    assert [f["slot"] for f in data["faults"]] == ["x"]
    assert nodes["a"].node.writes == 0
    assert not (tmp_path / "runs").exists()
