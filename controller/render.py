"""What people and machines see: tables, JSON, YAML, errors with a hint."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from nodeagent.model.errors import FaultError

FORMATS = ("table", "json", "yaml")
PLAIN_WIDTH = 2000


def out() -> Console:
    """The console for results; plain lines, never wrapped, where there is no terminal."""
    wide = None if sys.stdout.isatty() else PLAIN_WIDTH
    return Console(highlight=False, soft_wrap=wide is not None, width=wide)


def err() -> Console:
    """The console for progress and errors."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def data(value: Any, form: str) -> None:
    """Print JSON or YAML."""
    if form == "json":
        print(json.dumps(value, indent=2, sort_keys=False))
    else:
        print(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), end="")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], empty: str = "") -> None:
    """Print a table, or a sentence when it has no rows."""
    listed = [list(row) for row in rows]
    if not listed:
        if empty:
            out().print(empty)
        return
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        grid.add_column(column, overflow="fold")
    for row in listed:
        grid.add_row(*(str(cell) for cell in row))
    out().print(grid)


def error(exc: FaultError) -> None:
    """Three lines: what, why, what to do."""
    console = err()
    console.print(f"[bold red]error:[/] {_plain(exc.what)}", markup=True)
    if exc.why:
        console.print(f"  why:  {exc.why}", markup=False)
    if exc.hint:
        console.print(f"  hint: {exc.hint}", markup=False)


def _plain(text: str) -> str:
    return text.replace("[", r"\[")


def duration_ns(value: int) -> str:
    """`4m59s`, `0.8s`: for people, rounded."""
    seconds = value / 1e9
    if seconds < 10:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
