"""`faultctl noise`: the catalogue, and what noise a run would have."""

from __future__ import annotations

from pathlib import Path

import click

from controller import render
from controller.cli.run import node_option, read_experiment
from controller.live import moment
from controller.noise import catalogue, with_noise
from nodeagent.faults import kinds


@click.group()
def noise() -> None:
    """Background disturbances that go away by themselves and are never a root cause."""


@noise.command(name="ls")
@click.option("-o", "--output", type=click.Choice(render.FORMATS), default="table")
def list_command(output: str) -> None:
    """List the catalogue."""
    rows = [
        {
            "name": name,
            "kind": kind.kind,
            "available": kind.on_objects or kind.kind in kinds(),
            "scope": kind.scope,
            "about": kind.about,
        }
        for name, kind in catalogue().items()
    ]
    if output != "table":
        render.data(rows, output)
        return
    render.table(
        ("NAME", "KIND", "SCOPE", "WHAT"),
        [
            (
                str(r["name"]),
                str(r["kind"]) + ("" if r["available"] else " (not in this version)"),
                str(r["scope"]),
                str(r["about"]),
            )
            for r in rows
        ],
    )


@noise.command(name="plan")
@click.argument("file", type=click.Path(path_type=Path), metavar="EXPERIMENT")
@click.option("--seed", type=click.IntRange(0, (1 << 63) - 1), help="instead of the file's")
@node_option
@click.option("-o", "--output", type=click.Choice(render.FORMATS), default="table")
def plan_command(file: Path, seed: int | None, nodes: tuple[str, ...], output: str) -> None:
    """Show the noise that a run of EXPERIMENT would have; asks no node."""
    loaded = read_experiment(file, nodes, seed=seed)
    plan = with_noise(loaded.plan, loaded.experiment)
    missing = [change for change in plan.changes if change.slot.startswith("n")]
    if output != "table":
        data = {
            "noise": [item.model_dump(mode="json") for item in plan.of("noise")],
            "missing": [change.model_dump(mode="json") for change in missing],
        }
        render.data(data, output)
        return
    rows = [
        (i.slot, moment(i.start_ns), moment(i.end_ns), i.name, i.kind, i.service, i.node)
        for i in plan.of("noise")
    ]
    render.table(("SLOT", "START", "END", "NOISE", "KIND", "SERVICE", "NODE"), rows, "no noise")
    for change in missing:
        render.out().print(f"missing {change.slot}: {change.rule}, {change.detail}", markup=False)
