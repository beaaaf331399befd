"""`faultctl exposure`: which running workloads a fault can still hit."""

from __future__ import annotations

import click

from controller import render
from controller.cli.cluster_verb import cluster_verb
from controller.cli.common import EXIT_EXPOSED, client, output_option


@click.command()
@click.argument("fault_id")
@output_option
@cluster_verb
def exposure(fault_id: str, output: str) -> None:
    """List the running workloads that a fault can still hit.

    With --cluster FAULT_ID may be a group's, and the pods are named.

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
    if found is not None and not found.nobody:
        click.get_current_context().exit(EXIT_EXPOSED)
