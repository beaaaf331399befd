"""`faultctl demo`: the main job, shown on a disposable node."""

from __future__ import annotations

import io
import json

import click
from rich.console import Console
from rich.markup import escape

from controller import render

RECORD_WIDTH = 130


@click.command()
@click.option("--json", "as_json", is_flag=True, help="print the checked claims as JSON")
@click.option("--record", type=click.Path(dir_okay=False), help="also write a picture (SVG)")
@click.pass_context
def demo(ctx: click.Context, as_json: bool, record: str | None) -> None:
    """Show a latent sector under a real PostgreSQL, and the way back; exit 1 if a claim fails."""
    from controller.lab.demo import play

    console = render.err() if as_json else render.out()
    picture = Console(record=True, width=RECORD_WIDTH, file=io.StringIO(), highlight=False)

    def tell(at: float, text: str, ok: bool | None) -> None:
        mark = {None: " ", True: "[green]✔[/]", False: "[bold red]✘[/]"}[ok]
        for where in (console, picture):
            where.print(f"[dim]{at:6.1f}s[/] {mark} {escape(text)}")

    result = play(tell)
    failed = [claim for claim in result["claims"] if not claim["ok"]]
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        console.print(
            f"\n{len(result['claims']) - len(failed)} of {len(result['claims'])} claims hold, "
            f"in {result['seconds']:.0f} s"
        )
    if record is not None:
        picture.save_svg(record, title="faultctl demo")
    if not result["ok"]:
        ctx.exit(1)
