"""The experiments that ship: valid, complete, and what their walkthrough says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from controller.experiment_check import load_experiment
from controller.noise import measured_windows, with_noise
from controller.oracle_play import acts_of
from controller.run_measuring import Rules

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
POSTGRESQL = ROOT / "examples/postgresql.yaml"
SCRIPTS = sorted((ROOT / "examples").rglob("*.sh"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_an_example_is_a_valid_experiment(path: Path) -> None:
    loaded = load_experiment(path.read_bytes(), path.name)
    assert loaded.plan.of("fault")
    assert path.read_text().startswith("# yaml-language-server: $schema=../schemas/experiment")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_with_noise_and_without_an_example_has_the_same_faults(path: Path) -> None:
    loaded = load_experiment(path.read_bytes(), path.name)
    noisy = with_noise(loaded.plan, loaded.experiment)
    assert noisy.of("noise"), "an example without a place for its noise shows nothing"
    assert noisy.timeline() == loaded.plan.timeline()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_a_script_is_sound_and_can_be_run(path: Path) -> None:
    subprocess.run(["sh", "-n", str(path)], check=True)
    assert (path.stat().st_mode & 0o111 != 0) == (path.name != "env.sh")


def test_the_postgresql_experiment_is_judged_as_its_page_says() -> None:
    loaded = load_experiment(POSTGRESQL.read_bytes(), POSTGRESQL.name)
    experiment, (fault,) = loaded.experiment, loaded.plan.of("fault")
    rules = Rules.of(experiment)
    assert rules.early_end
    assert not rules.noise_too
    assert measured_windows(loaded.plan, experiment) == ()
    (act,) = acts_of(experiment, fault)
    assert act[0] == "restored"
    assert fault.truth is not None
    assert not fault.truth.remedies, "a remedy that the node recognises is always accepted"
    assert all(remedy.probe is None for remedy in experiment.remedies.values()), (
        "a probe that the operator can make pass must not end the fault"
    )
    # What noise may hit is never what the fault is about.
    services = {experiment.targets[t].service for t in experiment.noise.targets or ()}  # type: ignore[union-attr]
    assert fault.service not in services


def test_every_command_of_the_postgresql_experiment_comes_with_it() -> None:
    data = yaml.safe_load(POSTGRESQL.read_text())
    setup = (ROOT / "examples/postgresql/setup.sh").read_text()
    assert data["probes"]["checkout"]["command"] == ["/opt/shop/check"]
    assert '"$SHOP/check"' in setup
    named = data["remedies"]["restored"]["act"]["command"][0]
    assert (ROOT / "examples/postgresql/operators" / Path(named).name).is_file()
    for path in ("/srv/pg/orders.heap", "/sys/fs/cgroup/reports", "/run/netns/cache"):
        assert path.replace("/run/netns/", "") in setup


def test_the_walkthrough_names_every_operator() -> None:
    page = (ROOT / "docs/postgresql.md").read_text()
    operators = {path.name for path in SCRIPTS if path.parent.name == "operators"}
    assert operators
    assert set(re.findall(r"`([a-z-]+\.sh)`", page)) >= operators
