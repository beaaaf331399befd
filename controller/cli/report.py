"""`faultctl report`: a run as one HTML page."""

from __future__ import annotations

import os
from pathlib import Path

import click

from controller.score_files import open_run
from controller.score_run import score_run
from nodeagent.model.errors import Refused


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--file", "-f", "out", type=click.Path(path_type=Path), help="of the page")
def report(bundle: Path, out: Path | None) -> None:
    """Write the report of a run: one page that needs nothing else, also on paper."""
    from controller.report.page import render as render_page

    page = render_page(score_run(open_run(bundle)))
    name = bundle.name.removesuffix(".tar").removesuffix(".bundle")
    target = out or bundle.with_name(f"{name}.html")
    part = target.with_name(f".{target.name}.part")
    try:
        part.write_text(page, encoding="utf-8")
        os.replace(part, target)
    except OSError as exc:
        raise Refused(f"{target} cannot be written", exc.strerror or str(exc)) from exc
    click.echo(str(target))
