"""`faultctl oracle`: judge a run again, and the negative control of its oracles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from controller import render
from controller.cli.common import duration_of
from controller.cli.kube import ways, with_access
from controller.cli.run import RUNS, node_option, planned, read_experiment, views
from controller.experiment_plan import ns
from controller.oracle_control import Control, check
from controller.oracle_desk import hand_in
from controller.oracle_play import Pacing, Player, control_plan
from controller.run_start import Options, Stage, new_run_id, play_new
from controller.score_files import open_run
from nodeagent.model.errors import InvalidSpec, Refused

EXIT_FALSE = 1


@click.group()
def oracle() -> None:
    """Verdicts on faults and runs."""


@oracle.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Choice(render.FORMATS), default="table")
@click.pass_context
def judge(ctx: click.Context, bundle: Path, output: str) -> None:
    """Judge a run from its records: one verdict a fault, and one for the run.

    Exit 0 if the run passes, 1 if not; unknown is not a pass.
    """
    found = open_run(bundle).verdict
    if output != "table":
        render.data(found.data(), output)
    else:
        rows = [
            (v.subject, v.oracle, v.verdict, v.ended_as, v.moment.why, "; ".join(v.reasons))
            for v in found.faults
        ]
        columns = ("FAULT", "ORACLE", "VERDICT", "ENDED", "JUDGED", "WHY")
        render.table(columns, rows, "no fault was injected")
        click.echo(f"run: {found.verdict}")
    if found.verdict != "pass":
        ctx.exit(EXIT_FALSE)


@oracle.command(name="check")
@click.argument("path", type=click.Path(path_type=Path), metavar="EXPERIMENT|BUNDLE")
@node_option
@click.option("--folder", type=click.Path(path_type=Path), help="of the record of the control")
@click.option(
    "--settle",
    metavar="DURATION",
    default="10s",
    show_default=True,
    help="for a symptom to show, and for the system to recover",
)
@click.option("-o", "--output", type=click.Choice(render.FORMATS), default="table")
@with_access
@click.pass_context
def check_command(ctx: click.Context, /, path: Path, output: str, **values: Any) -> None:
    """The negative control of an experiment's oracles.

    Plays the EXPERIMENT without noise: each fault is left alone for one hold time, then remedied
    (by the act that its remedy has in the file, else the node takes it back), then handed in as
    repaired. A BUNDLE, or a run folder, is one in which that was done already.

    Each oracle must fail while its fault is armed, by what its probes see and not only because
    the fault is there, and must pass after the remedy. Exit 1: the experiment is broken.
    """
    if path.suffix in (".yaml", ".yml", ".json"):
        path = _played(path, values)
    run = open_run(path)
    controls = check(run.history, run.oracles, run.paces)
    broken = not controls or any(c.broken for c in controls)
    if output != "table":
        data = {"sound": not broken, "controls": [c.data() for c in controls], "run": str(path)}
        render.data(data, output)
    else:
        slots = {f.id: f.planned.slot for f in run.history.injected()}
        _show(controls, slots)
    if broken:
        ctx.exit(EXIT_FALSE)


def _show(controls: list[Control], slots: dict[str, str]) -> None:
    rows = [
        (slots[c.fault], c.oracle, "broken" if c.broken else "sound", "; ".join(c.broken))
        for c in controls
    ]
    render.table(("FAULT", "ORACLE", "CONTROL", "WHY"), rows, "no fault was injected")


def _played(file: Path, values: dict[str, Any]) -> Path:
    """The bundle of a control that was played. Raises InvalidSpec, Refused, Unreachable."""
    loaded = read_experiment(file, values["nodes"])
    if not loaded.experiment.oracles:
        raise InvalidSpec(f"{file.name} has no oracle", "there is nothing to check")
    through = ways(values["access"])
    loaded, _ = planned(loaded, False, through)
    pacing = Pacing(ns(duration_of("--settle", values["settle"])))
    plan = control_plan(loaded.plan, loaded.experiment, pacing)
    run = new_run_id()
    folder = values["folder"] or RUNS / f"{loaded.experiment.name}-control-{run}"
    options = Options(run=run, folder=folder, noise=False, blind=loaded.experiment.blind)

    def overseer(stage: Stage) -> Player:
        def submit(fault: str) -> None:
            hand_in(folder, "mitigation", {}, fault=fault, actor="control")

        return Player(stage.core, loaded.experiment, pacing, stage.client, submit)

    with views(plan) as watching:
        outcome = play_new(loaded, plan, options, through, watching, overseer)
    if outcome.bundle is None:
        raise Refused("the control was not recorded", f"see {folder}")
    return outcome.bundle
