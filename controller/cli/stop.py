"""`faultctl stop`, `pause` and `resume`: commands to a run, from another terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from controller import render
from controller.cli.kube import ways, with_access
from controller.cli.run import RUNS, show_outcome, views
from controller.recorder import read_header
from controller.recorder_lock import is_locked
from controller.run_commands import Command
from controller.run_control import send
from controller.run_finish import is_over
from controller.run_resume import take_over
from nodeagent.model.errors import InvalidSpec

_WORDS = {
    "ok": "done",
    "cancelled": "called off before it began",
    "not-started": "it has not begun; nothing was done",
    "already": "it was already; nothing was done",
    "not-paused": "it was not paused; nothing was done",
    "stopping": "it is stopping already; nothing was done",
    "ended": "it is over; nothing was done",
}

folder_argument = click.argument(
    "folder", type=click.Path(path_type=Path), required=False, metavar="[FOLDER]"
)


def running(folder: Path | None) -> Path:
    """The named run folder, or the only one in runs/ that is being played."""
    if folder is not None:
        read_header(folder)
        return folder
    found = [p for p in sorted(RUNS.glob("*")) if p.is_dir() and is_locked(p)]
    if len(found) != 1:
        raise InvalidSpec(
            "which run?",
            "none is played in runs/" if not found else f"{len(found)} are played in runs/",
            "name its folder",
        )
    return found[0]


def give(folder: Path | None, name: Command, access: dict[str, Any] | None = None) -> None:
    """Give a command; say what came of it. access: for `stop`, which can need the nodes."""
    where = running(folder)
    if is_over(where):
        code = "ended"
    elif is_locked(where):
        code = send(where, name)
    else:
        code = "not-started" if name != "stop" else ""
    if code or access is None:
        render.out().print(f"{where}: {code}, {_WORDS.get(code, code)}", markup=False)
        return
    # Its controller is gone: take the run over only to end it.
    with views() as watching:
        outcome = take_over(where, ways(access), watching, stop_at_once=True)
    show_outcome(outcome, "table")


@click.command()
@folder_argument
@with_access
def stop(folder: Path | None, access: dict[str, Any]) -> None:
    """End a run now and take everything back, also when its controller has died."""
    give(folder, "stop", access)


@click.command()
@folder_argument
def pause(folder: Path | None) -> None:
    """Start no more faults in a run; those that are armed end as planned."""
    give(folder, "pause")


@click.command()
@folder_argument
def resume(folder: Path | None) -> None:
    """Go on with a paused run; what is left of it moves by the length of the pause."""
    give(folder, "resume")
