"""What people and machines see: tables, JSON, YAML, errors with a hint."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nodeagent.model.errors import FaultError

FORMATS = ("table", "json", "yaml")
PLAIN_WIDTH = 2000


_CONTROLS = {n: f"\\x{n:02x}" for n in (*range(32), *range(127, 160))} | {9: "\\t", 10: "\\n"}
_BUT_LINES = {n: text for n, text in _CONTROLS.items() if n not in (9, 10)}
BETWEEN_REASONS = "\n        "
"""Between the reasons of a list, and nowhere else: what a node says is shown in one line."""
_POINTED = re.compile(r"([^\n]*)\n  ([^\n]*)\n  ( *\^)")


def printable(text: object) -> str:
    """Text of others in one line: a terminal is not driven by the name of a file."""
    return str(text).translate(_CONTROLS)


class _Console(Console):
    """Shows control characters instead of sending them, line ends and tabs apart."""

    def print(self, *objects: Any, **more: Any) -> None:
        """As rich's, with text made printable."""
        shown = [o.translate(_BUT_LINES) if isinstance(o, str) else o for o in objects]
        super().print(*shown, **more)


def out() -> Console:
    """The console for results; plain lines, never wrapped, where there is no terminal."""
    wide = None if sys.stdout.isatty() else PLAIN_WIDTH
    return _Console(highlight=False, soft_wrap=wide is not None, width=wide)


def err() -> Console:
    """The console for progress and errors."""
    return _Console(stderr=True, highlight=False, soft_wrap=True)


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
        grid.add_row(*(Text(printable(cell)) for cell in row))
    out().print(grid)


def why_lines(why: str) -> list[str]:
    """A reason in one line, a list of reasons in one line each; with a caret below what was
    written where it ends in such a pair."""
    pointed = _POINTED.fullmatch(why)
    return list(pointed.groups()) if pointed else why.split(BETWEEN_REASONS)


def error(exc: FaultError) -> None:
    """Three lines: what, why, what to do."""
    console = err()
    console.print(Text.assemble(("error:", "bold red"), " ", printable(exc.what)))
    if exc.why:
        reason, *pointed = why_lines(exc.why)
        console.print(f"  why:  {printable(reason)}", markup=False)
        for line in pointed:
            console.print(f"        {printable(line)}", markup=False)
    if exc.hint:
        console.print(f"  hint: {printable(exc.hint)}", markup=False)


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
