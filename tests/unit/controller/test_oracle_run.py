"""From end to end on a simulated node: real probes, a real run folder, an operator in a thread."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from judging_runs import header
from run_sim import SimNode, _Port

from controller.bundle import open_bundle
from controller.clock import boot_id, boottime_ns
from controller.experiment_check import load_experiment
from controller.kube.ways import Ways
from controller.oracle_desk import hand_in
from controller.recorder import Recorder
from controller.records import FaultArmed, Record
from controller.run_finish import Outcome, finish
from controller.run_start import Stage, _write_planned
from controller.score_files import open_run
from controller.score_run import score_run
from nodeagent.model.exposure import Exposure, Workload

S = 10**9
TRUTH = {
    "category": "disk",
    "mechanism": "latent sectors under a table",
    "service": "postgres",
    "scope": ["postgres"],
    "symptom_probe": "orders",
    "root_cause": "a sector of the table cannot be read",
}


def experiment(healthy: Path) -> dict[str, Any]:
    often = {"interval": "250ms", "timeout": "2s"}
    condition = [
        {"type": "level", "probe": "orders"},
        {"type": "workload", "probe": "database"},
        {"type": "restarts", "probe": "database"},
    ]
    return {
        "version": 1,
        "name": "pg-latent",
        "duration": "8s",
        "lease": "5s",
        "nodes": {"n1": {"agent": "unix:///run/none.sock"}},
        "targets": {
            "table": {
                "node": "n1",
                "service": "postgres",
                "target": {"type": "device", "device": "/dev/vdb"},
            }
        },
        "probes": {
            "orders": {"type": "exec", "command": ["test", "-e", str(healthy)], **often},
            "database": {"type": "process", "name": "pg-judged", **often},
            "users": {"type": "exposure", "fault": "bad-sectors", **often},
        },
        "faults": {
            "bad-sectors": {
                "kind": "latent-sector",
                "target": "table",
                "at": "1s",
                "spec": {"count": 1, "seed": 7},
                "truth": TRUTH,
            }
        },
        "oracles": {
            "repaired": {
                "hold": "2s",
                "cap": "30s",
                "exposure": "users",
                "require": {"type": "all", "of": condition},
            }
        },
    }


class Node(SimNode):
    """Its agent also says who can still be hit."""

    users = (Workload(pid=7, comm="postgres", how="file"),)

    @property
    def client(self) -> Node:
        return self

    def exposure(self, fault_id: str, timeout: float) -> Exposure | None:
        found = self.fault(fault_id)
        return Exposure(workloads=self.users) if found.state == "armed" else None


@dataclass
class World:
    """What an operator can touch."""

    folder: Path
    healthy: Path
    node: Node
    database: subprocess.Popen[bytes]
    fault: str = ""

    def submit(self) -> None:
        hand_in(self.folder, "mitigation", {})

    def end(self, reason: str) -> None:
        self.node.end(self.fault, reason)


def repairs(world: World) -> None:
    hand_in(world.folder, "report", {"alerts": ["orders"], "service": "postgres"})
    world.end("remedied")
    world.healthy.touch()
    time.sleep(0.3)
    world.submit()


def fails_over(world: World) -> None:
    """The fault stays, and nobody uses what it is on."""
    world.node.users = ()
    world.healthy.touch()
    time.sleep(0.3)
    world.submit()


def nothing(world: World) -> None:
    """Does nothing."""


def hides(world: World) -> None:
    """Takes the table out of the health check's path."""
    world.healthy.touch()
    time.sleep(0.3)
    world.submit()


def deletes(world: World) -> None:
    """No workload, no error."""
    world.end("remedied")
    world.healthy.touch()
    world.database.kill()
    world.database.wait()
    time.sleep(0.3)
    world.submit()


def kills_the_agent(world: World) -> None:
    world.node.down = True
    world.healthy.touch()
    time.sleep(0.3)
    world.submit()


def waits(world: World) -> None:
    """Until the lease is over."""
    world.end("expired")
    world.healthy.touch()
    time.sleep(0.3)
    world.submit()


class Nature:
    """Makes the symptom when the fault is armed, and lets the operator act a while later."""

    def __init__(self, world: World, operator: Callable[[World], None]) -> None:
        self.world, self.operator = world, operator
        self.thread: threading.Thread | None = None

    def show(self, *args: Any) -> None:
        """Nothing to see."""

    def record(self, record: Record) -> None:
        if isinstance(record, FaultArmed) and self.thread is None:
            self.world.fault = record.fault
            self.world.healthy.unlink()
            self.thread = threading.Thread(target=self._later)
            self.thread.start()

    def _later(self) -> None:
        time.sleep(1.2)
        self.operator(self.world)


def play(tmp_path: Path, operator: Callable[[World], None]) -> Outcome:
    healthy = tmp_path / "healthy"
    healthy.touch()
    raw = yaml.safe_dump(experiment(healthy)).encode()
    loaded = load_experiment(raw, "experiment.yaml")
    node = Node(boottime_ns)
    code = "open('/proc/self/comm','w').write('pg-judged')\nimport time\ntime.sleep(60)"
    folder = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", code]) as database:
        world = World(folder, healthy, node, database)
        nature = Nature(world, operator)
        head = header(boot_id=boot_id(), origin_boottime_ns=boottime_ns() + 2 * S)
        with Recorder.create(folder, head, loaded.raw, loaded.plan) as recorder:
            ports: Any = {"n1": _Port(node)}
            stage = Stage(loaded.experiment, loaded.plan, head, ports, recorder, [nature], Ways())
            _write_planned(recorder, loaded.plan, head.run, stage.runner.now())
            if operator is kills_the_agent:
                stage.core.settings = stage.core.settings.__class__(
                    **{**vars(stage.core.settings), "settle_ns": 2 * S}
                )
            stage.play()
        database.kill()
        assert nature.thread is not None
        nature.thread.join()
    return finish(folder, stage.core.stopping)


@pytest.mark.parametrize(
    ("operator", "verdict", "ended"),
    [
        (repairs, "pass", {"remedied"}),
        (fails_over, "pass", {"reverted"}),
        (nothing, "fail", {"reverted"}),
        (hides, "fail", {"reverted"}),
        (deletes, "fail", {"remedied"}),
        (kills_the_agent, "not pass", {"unconfirmed", "expired", "reverted"}),
        (waits, "fail", {"expired"}),
    ],
)
def test_each_operator_gets_what_it_earned(
    tmp_path: Path, operator: Callable[[World], None], verdict: str, ended: set[str]
) -> None:
    outcome = play(tmp_path, operator)
    assert outcome.bundle is not None
    run = open_run(outcome.bundle)
    (found,) = run.verdict.faults
    assert found.ended_as in ended, found
    if verdict == "not pass":
        assert found.verdict != "pass", found
    else:
        assert found.verdict == verdict, found
    stored = [
        v for v in open_bundle(outcome.bundle).records("verdicts.jsonl") if v.type == "verdict"
    ]
    assert {(v.subject, v.verdict) for v in stored if v.oracle in ("repaired", "all")} == {
        (found.subject, found.verdict),
        ("run", found.verdict),
    }, "what was recorded is what is computed again"
    scored = score_run(run)
    assert scored.text() == score_run(open_run(outcome.bundle)).text()
    outcomes = {repairs: "handled", fails_over: "repaired but not handled"}
    assert scored.score.marks[0].outcome == outcomes.get(operator, "missed")
