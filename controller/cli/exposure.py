"""`faultctl exposure`: which running workloads a fault can still hit."""

from __future__ import annotations

import click

from controller import render
from controller.cli.common import client, output_option

EXIT_EXPOSED = 1


@click.command()
@click.argument("fault_id")
@output_option
@click.pass_context
def exposure(ctx: click.Context, fault_id: str, output: str) -> None:
    """List the running workloads that a fault can still hit.

    Exit 0 if there are none: it has ended, or was routed around. Exit 1 if there are, or if that
    cannot be told.
    """
    with client() as agent:
        found = agent.exposure(fault_id)
    if output != "table":
        data = {"armed": found is not None}
        render.data(data | ({} if found is None else found.model_dump(mode="json")), output)
    elif found is None:
        click.echo(f"{fault_id} has ended: it can hit nobody")
    else:
        rows = [(str(w.pid), w.comm, w.how, w.cgroup) for w in found.workloads]
        render.table(("PID", "PROCESS", "HOW", "CGROUP"), rows, found.note or "nobody")
        if not found.complete:
            click.echo("not all processes were looked at")
    if found is not None and (found.workloads or not found.known or not found.complete):
        ctx.exit(EXIT_EXPOSED)
