"""`faultctl oracle`: judge a run again, and the negative control of its oracles."""

from __future__ import annotations

from pathlib import Path

import click

from controller import render
from controller.oracle_control import check
from controller.score_files import open_run

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
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Choice(render.FORMATS), default="table")
@click.pass_context
def check_command(ctx: click.Context, bundle: Path, output: str) -> None:
    """The negative control, on a run in which each fault was left alone for one hold time and
    then ended by an accepted remedy.

    Each oracle must fail while its fault is armed, by what its probes see and not only because
    the fault is there, and must pass after the remedy. Exit 1: the experiment is broken.
    """
    run = open_run(bundle)
    controls = check(run.history, run.oracles, run.paces)
    broken = not controls or any(c.broken for c in controls)
    if output != "table":
        render.data({"sound": not broken, "controls": [c.data() for c in controls]}, output)
    else:
        rows = [
            (c.fault, c.oracle, "broken" if c.broken else "sound", "; ".join(c.broken))
            for c in controls
        ]
        render.table(("FAULT", "ORACLE", "CONTROL", "WHY"), rows, "no fault was injected")
    if broken:
        ctx.exit(EXIT_FALSE)
