"""`faultctl fidelity KIND`: ours beside the kernel's own reference, in a disposable node."""

from __future__ import annotations

from typing import Any

import click

from controller import render
from controller.cli.common import output_option
from nodeagent.model.errors import InvalidSpec


@click.command()
@click.argument("kind", metavar="KIND")
@click.option("--flavour", default="full", show_default=True, help="lab flavour to measure in")
@output_option
@click.pass_context
def fidelity(ctx: click.Context, kind: str, flavour: str, output: str) -> None:
    """Compare a kind with the kernel's own reference; exit 1 if a difference is unexplained."""
    from controller.lab.fidelity import REFERENCE, measure

    if kind != "latent-sector":
        raise InvalidSpec(f"there is no reference for {kind!r}", "known: latent-sector")
    rows = measure(flavour, lambda text: render.err().print(text, markup=False))
    mechanisms = sorted({name for row in rows for name in row.ours})
    data: list[dict[str, Any]] = []
    unexplained = False
    for row in rows:
        cells = {}
        for name in mechanisms:
            same, why = row.verdict(name)
            unexplained |= "unexplained" in why
            cell = row.ours[name]
            cells[name] = {
                "result": cell.result,
                "log": list(cell.log),
                "counters": cell.note,
                "same": same,
                "why": why,
            }
        reference = {
            "result": row.reference.result,
            "log": list(row.reference.log),
            "counters": row.reference.note,
        }
        data.append({"read": row.name, REFERENCE: reference, "ours": cells})
    if output != "table":
        render.data(data, output)
    else:
        _table(data, mechanisms, REFERENCE)
    if unexplained:
        ctx.exit(1)


def _table(data: list[dict[str, Any]], mechanisms: list[str], reference: str) -> None:
    """The table, its reasons as footnotes: they are the same for many rows."""
    notes: dict[str, str] = {}
    rows = []
    for item in data:
        cells = item["ours"]
        row = [item["read"], item[reference]["result"]]
        for name in mechanisms:
            row.append(f"{'=' if cells[name]['same'] else '~'} {cells[name]['result']}")
        marks = []
        for name in mechanisms:
            for why in filter(None, cells[name]["why"].split("; ")):
                notes.setdefault(why, chr(ord("a") + len(notes)))
                marks.append(notes[why])
        rows.append([*row, " ".join(dict.fromkeys(marks))])
    render.table(("READ", reference, *mechanisms, "WHY"), rows)
    console = render.out()
    console.print("\n= the same result and kernel log lines, ~ not the same:")
    for why, mark in notes.items():
        console.print(f"  {mark}  {why}", markup=False)
