"""`faultctl demo`: the main job, shown on a disposable node."""

from __future__ import annotations

import json

import click
from rich.markup import escape

from controller import render


@click.command()
@click.option("--json", "as_json", is_flag=True, help="print the checked claims as JSON")
@click.pass_context
def demo(ctx: click.Context, as_json: bool) -> None:
    """Show a latent sector under a real PostgreSQL, and the way back; exit 1 if a claim fails."""
    from controller.lab.demo import play

    console = render.err() if as_json else render.out()

    def tell(at: float, text: str, ok: bool | None) -> None:
        mark = {None: " ", True: "[green]✔[/]", False: "[bold red]✘[/]"}[ok]
        console.print(f"[dim]{at:6.1f}s[/] {mark} {escape(text)}")

    result = play(tell)
    failed = [claim for claim in result["claims"] if not claim["ok"]]
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        console.print(
            f"\n{len(result['claims']) - len(failed)} of {len(result['claims'])} claims hold, "
            f"in {result['seconds']:.0f} s"
        )
    if not result["ok"]:
        ctx.exit(1)
