"""`faultctl bundle`: seal a run folder, verify a bundle, see what is in it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from controller import render
from controller.bundle import SUFFIX, open_bundle, seal_folder, verify
from controller.recorder import read_header
from controller.recorder_lock import lock_folder
from nodeagent.model.errors import Refused


@click.group()
def bundle() -> None:
    """Sealed records of runs."""


@bundle.command(name="seal")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--file", "-f", "out", type=click.Path(path_type=Path), help="of the bundle")
def seal_command(folder: Path, out: Path | None) -> None:
    """Seal a run folder that no controller plays; `run` does it by itself at the end."""
    read_header(folder)
    lock = lock_folder(folder)
    try:
        manifest = seal_folder(folder, out or folder.with_name(folder.name + SUFFIX))
    finally:
        os.close(lock)
    click.echo(manifest.seal)


@bundle.command(name="verify")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--seal", default="", help="one that was kept elsewhere; else it proves only itself")
@click.option("-o", "--output", type=click.Choice(render.FORMATS), default="table")
def verify_command(file: Path, seal: str, output: str) -> None:
    """Find every changed, missing or added byte; exit 1 if there is one."""
    try:
        raw = file.read_bytes()
    except OSError as exc:
        raise Refused(f"{file} cannot be read", exc.strerror or str(exc)) from exc
    damage = verify(raw, seal)
    if output != "table":
        render.data([{"where": d.where, "what": d.what} for d in damage], output)
    else:
        for item in damage:
            render.out().print(str(item), markup=False)
        if not damage:
            render.out().print(f"{file}: every byte is as it was sealed", markup=False)
    if damage:
        click.get_current_context().exit(1)


@bundle.command(name="show")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Choice(render.FORMATS), default="table")
def show_command(file: Path, output: str) -> None:
    """Show what a bundle holds, after it was verified."""
    found = open_bundle(file)
    data = {
        **found.header.model_dump(mode="json"),
        "seal": found.manifest.seal,
        "files": {entry.name: entry.size for entry in found.manifest.files},
    }
    if output != "table":
        render.data(data, output)
        return
    render.table(("", ""), [(str(key), str(value)) for key, value in data.items()])
