"""`faultctl oracle check EXPERIMENT` plays the negative control itself, on a simulated node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from run_sim import SimNode, item, plan_of
from sim_server import boottime, serve
from test_run_whole import experiment, faultctl, written

from controller.experiment import Experiment
from controller.oracle_play import Pacing, control_plan
from controller.recorder import read_records
from controller.records import FaultEnded, RunEvent, Submission
from controller.run_state import FaultView
from nodeagent.model.errors import InvalidSpec

S = 10**9
OFTEN = {"interval": "250ms", "timeout": "2s"}


class Sick(SimNode):
    """The service is ill while the fault is armed, and stays so where it cannot recover."""

    healthy: Path
    recovers = True

    def apply(self, *args: Any) -> FaultView:
        found = super().apply(*args)
        self.healthy.unlink(missing_ok=True)
        return found

    def end(self, name: str, reason: str) -> None:
        if self.recovers:
            self.healthy.touch()
        super().end(name, reason)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SimpleNamespace]:
    node = Sick(boottime)
    node.healthy = tmp_path / "healthy"
    node.healthy.touch()
    nodes = serve(tmp_path, "a", nodes={"a": node})
    yield SimpleNamespace(node=node, nodes=nodes, folder=tmp_path / "run", cwd=tmp_path)
    nodes["a"].server.stop(0)


def checked(
    world: SimpleNamespace, probe: list[str], remedies: dict[str, Any] | None = None
) -> tuple[int, dict[str, Any]]:
    """Exit code, and what it says."""
    oracle = {"hold": "2s", "require": {"type": "level", "probe": "works"}}
    data = experiment(
        world.nodes,
        {"ill": (0, 3, "a")},
        duration="4s",
        probes={"works": {"type": "exec", "command": probe, **OFTEN}},
        oracles={"repaired": oracle},
    )
    data["remedies"] = remedies or {}
    data["faults"]["ill"]["remedies"] = list(data["remedies"])
    run = faultctl("oracle", "check", written(world.cwd, data), "--settle", "500ms",
                   "--folder", str(world.folder), "-o", "json", cwd=world.cwd)  # fmt: skip
    out, err = run.communicate(timeout=90)
    assert out, err
    found: dict[str, Any] = json.loads(out)
    return run.returncode, found


def test_an_oracle_that_sees_the_fault_and_its_remedy_is_sound(world: SimpleNamespace) -> None:
    code, found = checked(world, ["test", "-e", str(world.node.healthy)])
    assert (code, found["sound"]) == (0, True), found
    (control,) = found["controls"]
    assert control["armed"]["verdict"] == "fail"
    assert control["after"]["verdict"] == "pass"
    (ended,) = [r for r in read_records(world.folder, "faults.jsonl") if isinstance(r, FaultEnded)]
    assert (ended.reason, ended.by) == ("remedied", "remedy control")
    said = [r for r in read_records(world.folder, "operator.jsonl") if isinstance(r, Submission)]
    assert [(s.kind, s.actor, s.accepted) for s in said] == [("mitigation", "control", True)]


def test_an_oracle_that_sees_nothing_is_broken(world: SimpleNamespace) -> None:
    code, found = checked(world, ["true"])
    assert (code, found["sound"]) == (1, False)
    assert "it sees nothing" in " ".join(found["controls"][0]["broken"])


def test_an_oracle_that_fails_after_the_remedy_is_broken(world: SimpleNamespace) -> None:
    world.node.recovers = False
    code, found = checked(world, ["test", "-e", str(world.node.healthy)])
    assert code == 1
    assert "after a legitimate remedy" in " ".join(found["controls"][0]["broken"])


def test_the_act_of_a_remedy_is_carried_out(world: SimpleNamespace) -> None:
    """By the command of the file; its probe then ends the fault, and nobody reverts it."""
    healthy = str(world.node.healthy)
    remedy = {"probe": "works", "passes": 2, "act": {"command": ["touch", healthy]}}
    code, found = checked(world, ["test", "-e", healthy], {"mended": remedy})
    assert (code, found["sound"]) == (0, True), found
    (ended,) = [r for r in read_records(world.folder, "faults.jsonl") if isinstance(r, FaultEnded)]
    assert (ended.reason, ended.by) == ("remedied", "remedy mended")
    acts = [
        r
        for r in read_records(world.folder, "events.jsonl")
        if isinstance(r, RunEvent) and r.name == "control-acts"
    ]
    assert [a.data["act"] for a in acts] == [True]


def test_an_act_that_fails_repairs_nothing(world: SimpleNamespace) -> None:
    remedy = {"probe": "works", "act": {"command": ["false"]}}
    code, found = checked(world, ["test", "-e", str(world.node.healthy)], {"mended": remedy})
    assert code == 1
    assert "never remedied" in " ".join(found["controls"][0]["broken"])


def test_the_plan_of_a_control_has_no_noise_and_lives_long_enough() -> None:
    noise = item("n", 0, 9, role="noise")
    oracle = {"hold": "20s", "require": {"type": "level", "probe": "p"}}
    about = Experiment.model_validate(
        {"version": 1, "name": "x", "duration": "9s", "oracles": {"o": oracle}}
    )
    found = control_plan(plan_of(item("f", 2, 5), noise, end=9), about, Pacing(3 * S))
    (fault,) = found.items
    assert fault.slot == "f"
    assert (fault.end_ns - fault.start_ns) // S >= 3 + 20
    assert found.end_ns // S >= 2 + 3 + 20 + 3 + 20


def test_a_metastable_group_has_no_such_control() -> None:
    about = Experiment.model_validate({"version": 1, "name": "x", "duration": "9s"})
    plan = plan_of(item("f", 2, 5, group="g", group_type="metastable"))
    with pytest.raises(InvalidSpec, match="metastable"):
        control_plan(plan, about, Pacing(S))
