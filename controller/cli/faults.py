"""Verbs on faults that are there: ls, show, events, renew, revert, doctor; and faults, explain."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import click

from controller import render
from controller.cli.cluster_verb import cluster_verb
from controller.cli.common import client, fault_data, output_option, state_word, target_word
from controller.cli.kube import with_access
from controller.kube.kinds import cluster_kinds
from controller.options import schema_of
from nodeagent.faults import about_calls, kind_named, kinds
from nodeagent.model.errors import FaultError, InvalidSpec
from nodeagent.model.kind import FaultKind


@click.command()
@click.option("--all", "everything", is_flag=True, help="also faults that have ended")
@output_option
@cluster_verb
def ls(everything: bool, output: str) -> None:
    """List the faults of a node."""
    with client() as agent:
        found = agent.faults(active_only=not everything)
    if output != "table":
        render.data([fault_data(fault) for fault in found], output)
        return
    rows = [
        (
            fault.id,
            fault.kind,
            target_word(json.loads(fault.target)),
            state_word(fault),
            fault.mechanism,
            render.duration_ns(min(fault.lease_left_ns, fault.hard_end_left_ns))
            if fault.state == "armed"
            else "-",
            fault.error,
        )
        for fault in found
    ]
    render.table(("ID", "KIND", "TARGET", "STATE", "MECHANISM", "LEFT", "ERROR"), rows, "no faults")


@click.command()
@click.argument("fault_id")
@output_option
@cluster_verb
def show(fault_id: str, output: str) -> None:
    """Show one fault with its evidence."""
    with client() as agent:
        fault = agent.fault(fault_id)
    found = fault_data(fault, whole=True)
    if output != "table":
        render.data(found, output)
        return
    evidence = found["evidence"]
    console = render.out()
    console.print(f"{fault.id}: {state_word(fault)}", markup=False)
    console.print(f"  kind       {fault.kind} by {fault.mechanism}", markup=False)
    console.print(f"  target     {target_word(found['target'])}", markup=False)
    console.print(f"  owner      {fault.owner}, {fault.created}", markup=False)
    counted = ", ".join(f"{k} {v}" for k, v in evidence["counters"].items())
    console.print(
        f"  hits       {evidence['hits'] if evidence['counted'] else 'not counted'}"
        + (f" ({counted})" if counted else ""),
        markup=False,
    )
    if fault.error:
        console.print(f"  error      {fault.error}", markup=False)
    for line in evidence["statements"]:
        console.print(f"  note       {line}", markup=False)
    for line in evidence["kernel_log"]:
        console.print(f"  kernel     {line}", markup=False)
    render.table(
        ("DEVICE", "SECTOR", "OP", "ERRNO", "PROCESS"),
        [
            (
                record["device"],
                f"{record['sector']}+{record['sectors']}",
                " ".join((record["op"], *record["flags"])),
                str(record["status"]),
                f"{record['comm']} ({record['pid']})",
            )
            for record in evidence["records"][-20:]
        ],
    )


@click.command()
@click.argument("fault_id", required=False, default="")
@click.option("--follow", "-f", is_flag=True, help="wait for those to come")
@output_option
def events(fault_id: str, follow: bool, output: str) -> None:
    """Print the events of a node, or of one fault."""
    with client() as agent:
        for event in agent.watch(fault_id=fault_id, follow=follow):
            data = json.loads(event.data_json)
            if output == "table":
                text = " ".join(f"{k}={v}" for k, v in data.items() if k != "steps")
                line = f"{event.wall}  {event.fault_id or '-'}  {event.type}  {text}"
                print(render.printable(line), flush=True)
            else:
                found = {
                    "seq": event.seq,
                    "fault_id": event.fault_id,
                    "type": event.type,
                    "boottime_ns": event.boottime_ns,
                    "wall": event.wall,
                    "data": data,
                }
                print(json.dumps(found), flush=True)


@click.command()
@click.argument("fault_ids", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="every fault of the node")
@output_option
@cluster_verb
def revert(fault_ids: tuple[str, ...], everything: bool, output: str) -> None:
    """Take faults back; all are tried, and any failure shows in the exit code."""
    if bool(fault_ids) == everything:
        raise InvalidSpec("which faults?", "name their ids, or say --all")
    failed: list[FaultError] = []
    results: list[dict[str, Any]] = []
    with client() as agent:
        if everything:
            fault_ids = tuple(reversed([f.id for f in agent.faults(active_only=True)]))
        for fault_id in fault_ids:
            try:
                reply = agent.revert(fault_id)
                word = reply.fault.end_reason + (" before" if reply.already_ended else "")
                follows = _what_follows(json.loads(reply.fault.plan_json))
                results.append({"id": fault_id, "result": word, "error": None, "follows": follows})
            except FaultError as exc:
                failed.append(exc)
                results.append(
                    {"id": fault_id, "result": "error", "error": str(exc), "follows": []}
                )
    if output != "table":
        render.data(results, output)
    else:
        render.table(
            ("ID", "RESULT", "ERROR"),
            [(r["id"], r["result"], r["error"] or "") for r in results],
            "there was nothing to revert",
        )
        for item in results:
            for line in item["follows"]:
                render.out().print(f"{item['id']}: {line}", markup=False)
    if failed:
        raise failed[0]


def _what_follows(plan: dict[str, Any]) -> list[str]:
    """What a fault that loses data leaves behind, said again when it is taken back."""
    lines: list[str] = plan["collateral"] if "data-loss" in plan["guards"] else []
    return lines


@click.command()
@click.argument("fault_id")
@cluster_verb
def renew(fault_id: str) -> None:
    """Let a fault's lease start anew."""
    with client() as agent:
        fault = agent.renew(fault_id)
    left = render.duration_ns(min(fault.lease_left_ns, fault.hard_end_left_ns))
    render.out().print(f"{fault_id}: {left} left")


@click.command()
@click.option("--purge", is_flag=True, help="also remove what is ours and claimed by no fault")
@output_option
@click.pass_context
def doctor(ctx: click.Context, purge: bool, output: str) -> None:
    """Look for residue and trouble on a node; exit 1 if there is any."""
    with client() as agent:
        findings = agent.doctor(purge=purge)
    rows = [
        {"severity": f.severity, "what": f.what, "detail": f.detail, "removed": f.removed}
        for f in findings
    ]
    if output != "table":
        render.data(rows, output)
    else:
        render.table(
            ("", "FINDING", "DETAIL"),
            [
                (
                    "removed" if row["removed"] else str(row["severity"]),
                    str(row["what"]),
                    str(row["detail"]),
                )
                for row in rows
            ],
        )
    if any(row["severity"] in ("residue", "error") and not row["removed"] for row in rows):
        ctx.exit(1)


@click.command()
@click.option(
    "--targets",
    type=click.Path(path_type=Path),
    metavar="EXPERIMENT",
    help="list instead every pair of kind and target of this file that could be injected now",
)
@click.option("--presets", is_flag=True, help="also kinds under names of other tools (khaos:...)")
@output_option
@with_access
def faults(output: str, presets: bool, targets: Path | None, access: dict[str, Any]) -> None:
    """List the fault kinds, and what the node has for each: + it has, - it lacks."""
    if targets is not None:
        from controller.cli.schedule import show_targets

        show_targets(targets, (), output, access)
        return
    support: dict[str, dict[str, str]] = {}
    with client() as agent:
        try:
            reply, _ = agent.describe()
            support = {k.kind: {r.mechanism: r.missing for r in k.rungs} for k in reply.kinds}
        except FaultError as exc:
            render.err().print(f"(no agent was asked: {exc.what})", markup=False)
    if output != "table":
        render.data([_kind_data(kind, support) for kind in kinds().values()], output)
        return
    rows = []
    shown = [kind for kind in kinds().values() if presets or ":" not in kind.name]
    for kind in shown:
        words = []
        for rung in kind.ladder:
            missing = support.get(kind.name, {}).get(rung.name)
            mark = "" if missing is None else ("+" if not missing else "-")
            words.append(f"{mark}{rung.name}")
        rows.append((kind.name, kind.summary, ", ".join(kind.targets), " ".join(words)))
    render.table(("KIND", "WHAT", "TARGETS", "MECHANISMS"), rows)
    hidden = len(kinds()) - len(shown)
    if hidden:
        render.out().print(f"and {hidden} presets under names of other tools: --presets")


def _kind_data(kind: FaultKind, support: dict[str, dict[str, str]]) -> dict[str, Any]:
    return {
        "kind": kind.name,
        "summary": kind.summary,
        "targets": list(kind.targets),
        "mechanisms": [
            {
                "name": rung.name,
                "summary": rung.summary,
                "missing": support.get(kind.name, {}).get(rung.name),
            }
            for rung in kind.ladder
        ],
        "schema": schema_of(kind.spec),
    }


@click.command()
@click.argument("kind_name", metavar="KIND")
@click.option("--call", "calls", multiple=True, help="Say what is known of a system call, too.")
def explain(kind_name: str, calls: tuple[str, ...]) -> None:
    """Explain a fault kind: what it does, its mechanisms, its remedies, examples."""
    if kind_name in cluster_kinds():
        importlib.import_module("controller.cli.inject_cluster").explain(kind_name)
        return
    kind, about = kind_named(kind_name), about_calls(calls)
    console = render.out()
    console.print(f"[bold]{kind.name}[/]: {kind.summary}\n")
    console.print(kind.doc, markup=False)
    console.print("\n[bold]mechanisms, best first[/]")
    for rung in kind.ladder:
        console.print(f"  {rung.name}: {rung.summary}", markup=False)
    console.print("\n[bold]what no revert takes back[/]")
    for line in kind.collateral(kind.spec.model_construct()):
        console.print(f"  - {line}", markup=False)
    console.print("\n[bold]how an operator can end it[/]")
    for line in kind.remedies:
        console.print(f"  - {line}", markup=False)
    console.print("\n[bold]examples[/]")
    for line in kind.examples:
        console.print(f"  {line}", markup=False)
    for line in about:
        console.print(line, markup=False)
