"""`faultctl submit`: what an operator under test hands in while a run is played."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml

from controller import render
from controller.cli.common import output_option
from controller.client import AgentAddress
from controller.oracle_rpc import send, serve, take
from nodeagent.model.errors import InvalidSpec

F = TypeVar("F", bound=Callable[..., Any])
EXIT_NOT_ACCEPTED = 1


def place_options(function: F) -> F:
    """--run or --desk, and who says it."""
    options = (
        click.option("--run", "folder", type=click.Path(path_type=Path), help="the run's folder"),
        click.option(
            "--desk", envvar="FAULTCTL_DESK", metavar="URL", help="a desk: see `submit serve`"
        ),
        click.option("--actor", default="", help="who hands it in"),
    )
    for option in reversed(options):
        function = option(function)
    return output_option(function)


@click.group()
def submit() -> None:
    """Hand in a report, a diagnosis, or that it is repaired. Times count from the injection."""


@submit.command()
@click.argument("file", type=click.File("rb"))
@click.option("--fault", default="", help="its id, if you were told one")
@place_options
@click.pass_context
def diagnosis(ctx: click.Context, /, file: Any, **place: Any) -> None:
    """FILE (YAML or JSON, - for standard input): service, artifact, category, mechanism,
    symptom, node, scope, and text."""
    _hand_in(ctx, {"kind": "diagnosis", "data": _mapping(file.read())}, place)


@submit.command()
@click.argument("file", type=click.File("rb"))
@place_options
@click.pass_context
def report(ctx: click.Context, /, file: Any, **place: Any) -> None:
    """FILE (YAML or JSON): alerts (names of probes), service, text. As often as you like."""
    _hand_in(ctx, {"kind": "report", "data": _mapping(file.read())}, place)


@submit.command()
@click.option("--fault", default="", help="its id, if you were told one; else all are meant")
@click.option("--text", default="", help="what was done")
@place_options
@click.pass_context
def mitigation(ctx: click.Context, /, text: str, **place: Any) -> None:
    """It is repaired: judging starts now."""
    _hand_in(ctx, {"kind": "mitigation", "data": {"text": text} if text else {}}, place)


@submit.command()
@click.argument("act")
@click.option("--service", default="", help="what it is aimed at")
@click.option("--executed/--planned", default=True, show_default=True)
@place_options
@click.pass_context
def action(ctx: click.Context, /, act: str, service: str, executed: bool, **place: Any) -> None:
    """Note something that the operator does, such as a command."""
    found = {"kind": "action", "act": act, "service": service, "executed": executed}
    _hand_in(ctx, found, place)


@submit.command(name="serve")
@click.option("--run", "folder", type=click.Path(path_type=Path), required=True)
@click.option("--listen", required=True, metavar="URL", help="unix:///PATH or tcp://HOST:PORT")
@click.pass_context
def serve_command(ctx: click.Context, /, folder: Path, listen: str) -> None:
    """A desk for operators elsewhere, until it is interrupted; TCP needs mutual TLS."""
    address: AgentAddress = ctx.find_root().obj
    server = serve(folder, dataclasses.replace(address, url=listen))
    click.echo(f"listening at {listen}")
    try:
        server.wait_for_termination()
    finally:
        server.stop(1)


def _mapping(raw: bytes) -> dict[str, Any]:
    try:
        data = yaml.safe_load(raw)
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise InvalidSpec("the file is not YAML", " ".join(str(exc).split())) from exc
    if not isinstance(data, dict) or not data:
        raise InvalidSpec("the file says nothing", "a mapping with text at least is needed")
    return data


def _hand_in(ctx: click.Context, request: dict[str, Any], place: dict[str, Any]) -> None:
    import json

    folder, desk = place["folder"], place["desk"]
    if (folder is None) == (desk is None):
        raise click.UsageError("give --run or --desk")
    request |= {"actor": place["actor"], "fault": place.get("fault") or ""}
    try:
        raw = json.dumps(request)
    except (TypeError, ValueError) as exc:
        raise InvalidSpec("the file holds what JSON does not", str(exc)) from exc
    if folder is not None:
        found = take(folder, raw.encode()).model_dump(mode="json")
    else:
        address: AgentAddress = ctx.find_root().obj
        found = send(dataclasses.replace(address, url=desk), request)
    _show(found, place["output"])
    if not found.get("accepted", True):
        ctx.exit(EXIT_NOT_ACCEPTED)


def _show(found: dict[str, Any], output: str) -> None:
    if output != "table":
        render.data(found, output)
        return
    word = found.get("kind", "action")
    if found.get("accepted", True):
        click.echo(f"{word} recorded at {found['t_ns'] / 1e9:.1f} s of the run")
    else:
        click.echo(f"{word} not accepted: {found['why_not']}")
