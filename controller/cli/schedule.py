"""`faultctl schedule`: draws, shows, plays and fits schedules."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import click
import yaml

from controller import render
from controller.cli.kube import ways, with_access
from controller.cli.run import (
    folder_option,
    node_option,
    noise_option,
    noise_wanted,
    play,
    read_experiment,
)
from controller.cli.show_plan import show_plan
from controller.experiment_schedule import places_of, plan_schedule
from controller.live import moment
from controller.noise import with_noise
from controller.options import checked
from controller.run_nodes import open_ports
from controller.run_pods import on_cluster
from controller.schedule import (
    generate,
    preset_named,
    presets,
    profile_from,
    profile_named,
    schedule_from,
)
from controller.schedule_fit import fit as fit_incidents
from controller.schedule_model import Limits, Profile, Schedule
from controller.schedule_show import changes, headline, plot
from controller.viable import viable_targets
from nodeagent.model.errors import Refused

_LIMITS = ("max_concurrent", "per_service", "per_node", "per_zone", "cool_down", "max_delay")


@click.group()
def schedule() -> None:
    """Draw, show and play schedules of faults."""


def read_text(path: Path) -> str:
    """A text file. Raises Refused."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise Refused(f"{path} cannot be read", str(exc)) from exc


def profile_of(value: str | None) -> Profile | None:
    """A profile that ships, by name, or one in a file."""
    if value is None:
        return None
    path = Path(value)
    if path.suffix in (".yaml", ".yml") or path.exists():
        return profile_from(read_text(path), path.name)
    return profile_named(value)


@schedule.command(name="generate")
@click.option("--seed", type=click.IntRange(0, (1 << 63) - 1), required=True)
@click.option("--preset", default="marathon", show_default=True, help=f"{', '.join(presets())}")
@click.option("--profile", metavar="NAME|FILE", help="instead of the preset's")
@click.option(
    "--targets",
    type=click.Path(path_type=Path),
    metavar="EXPERIMENT",
    help="draw from the targets of this file; absent: placeholders",
)
@node_option
@click.option("--viable", is_flag=True, help="ask the nodes, draw only what they could inject now")
@click.option("--max-concurrent", type=click.IntRange(1), help="faults live at once")
@click.option("--per-service", type=click.IntRange(1), help="live at once on one service")
@click.option("--per-node", type=click.IntRange(1), help="live at once on one node")
@click.option("--per-zone", type=click.IntRange(1), help="live at once in one zone")
@click.option("--cool-down", metavar="DURATION", help="between two faults on one service")
@click.option("--max-delay", metavar="DURATION", help="how long a limit may delay a start")
@click.option(
    "--file", "-f", "out", type=click.Path(path_type=Path), help="write it there, not to stdout"
)
@with_access
def generate_command(access: dict[str, Any], **values: Any) -> None:
    """Draw the schedule of a seed: the same bytes every time and everywhere."""
    places = None
    if values["targets"] is not None:
        loaded = read_experiment(values["targets"], values["nodes"], for_schedule=True)
        places = places_of(loaded.experiment)
        if values["viable"]:
            with open_ports(loaded.experiment, loaded.plan, ways(access)) as ports:
                places = viable_targets(loaded.experiment, ports).places(places)
    found = generate(
        values["seed"],
        values["preset"],
        profile=profile_of(values["profile"]),
        limits=_limits(values),
        places=places,
    )
    for line in changes(found):
        render.err().print(line, markup=False)
    if values["out"] is None:
        click.echo(found.text(), nl=False)
        return
    values["out"].write_text(found.text(), encoding="ascii", newline="\n")
    for line in headline(found):
        render.err().print(line, markup=False)


def _limits(values: dict[str, Any]) -> Limits | None:
    given = {name: values[name] for name in _LIMITS if values[name] is not None}
    if not given:
        return None
    preset = preset_named(values["preset"]).limits.model_dump(mode="json", exclude_none=True)
    return Limits.model_validate(checked(Limits, {**preset, **given}))


def _read(path: Path) -> Schedule:
    return schedule_from(read_text(path), path.name)


@schedule.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--plot", "plotted", is_flag=True, help="lanes instead of a list")
@click.option("-o", "--output", type=click.Choice(render.FORMATS), default="table")
def show(file: Path, plotted: bool, output: str) -> None:
    """Show a schedule file."""
    found = _read(file)
    if output != "table":
        render.data(found.model_dump(mode="json"), output)
        return
    console = render.out()
    for line in headline(found):
        console.print(line, markup=False)
    if plotted:
        for line in plot(found, shutil.get_terminal_size((100, 24)).columns):
            console.print(line, markup=False, soft_wrap=True)
    else:
        rows = [
            (
                f.slot,
                moment(f.start_ms * 10**6),
                moment(f.end_ms * 10**6),
                f.kind,
                f.severity,
                f.service,
                f.node,
            )
            for f in found.faults
        ]
        render.table(("SLOT", "START", "END", "KIND", "SEVERITY", "SERVICE", "NODE"), rows)
    for line in changes(found):
        console.print(line, markup=False)


@schedule.command(name="run")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--targets",
    type=click.Path(path_type=Path),
    required=True,
    metavar="EXPERIMENT",
    help="file with nodes, targets, probes and guards; its own faults are left out",
)
@click.option("--plan", "plan_only", is_flag=True, help="show timeline and steps, touch nothing")
@click.option("--offline", is_flag=True, help="with --plan: ask no node")
@noise_option
@node_option
@folder_option
@click.option("--allow-refused", is_flag=True, help="start though nodes would refuse some faults")
@click.option("-o", "--output", type=click.Choice(render.FORMATS), default="table")
@with_access
def run_command(file: Path, targets: Path, access: dict[str, Any], **values: Any) -> None:
    """Play a schedule on the targets of an experiment file."""
    found = _read(file)
    loaded = read_experiment(targets, values["nodes"], for_schedule=True)
    plan = plan_schedule(found, loaded.experiment)
    noise = noise_wanted(values["noise"], loaded.experiment)
    if noise:
        plan = with_noise(plan, loaded.experiment)
    through = ways(access)
    if values["plan_only"]:
        asked = None if values["offline"] else through
        show_plan(loaded.experiment, plan, values["output"], asked)
        return
    plan = on_cluster(plan, loaded.experiment, through)
    click.get_current_context().exit(play(loaded, plan, noise, {**values, "repeat": 1}, through))


@schedule.command(name="fit")
@click.argument("incidents", type=click.Path(path_type=Path))
@click.option(
    "--file", "-f", "out", type=click.Path(path_type=Path), help="write the profile there"
)
def fit_command(incidents: Path, out: Path | None) -> None:
    """Fit a profile to a CSV of incidents: start, end or duration, kind, severity."""
    profile, fits = fit_incidents(read_text(incidents), incidents.name)
    data = profile.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    data["calibrated"] = True
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    for name, found in fits.items():
        words = f"{name}: {found.spec.distribution}, distance {found.ks}"
        render.err().print(words, markup=False)
    if out is None:
        click.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")


@schedule.command(name="targets")
@click.argument("file", type=click.Path(path_type=Path), metavar="EXPERIMENT")
@node_option
@click.option("-o", "--output", type=click.Choice(render.FORMATS), default="table")
@with_access
def targets_command(
    file: Path, nodes: tuple[str, ...], output: str, access: dict[str, Any]
) -> None:
    """List every pair of kind and target that could be injected now, and why others cannot."""
    show_targets(file, nodes, output, access)


def show_targets(file: Path, nodes: tuple[str, ...], output: str, access: dict[str, Any]) -> None:
    """The same for `faultctl faults --targets`."""
    loaded = read_experiment(file, nodes, for_schedule=True)
    with open_ports(loaded.experiment, loaded.plan, ways(access)) as ports:
        found = viable_targets(loaded.experiment, ports)
    rows = found.rows()
    if output != "table":
        render.data([row.__dict__ for row in rows], output)
        return
    render.table(
        ("TARGET", "NODE", "KIND", "VIABLE", "MECHANISM OR REASON"),
        [
            (r.target, r.node, r.kind, "yes" if r.viable else "no", r.mechanism or r.why)
            for r in rows
        ],
    )
