"""`faultctl inject` of faults on a cluster's own objects: pod-kill, node-drain, k8s-patch, ..."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from controller import render
from controller.cli.inject_kube import kube_options
from controller.kube import act, drift, keeper
from controller.kube.admission import check_policy
from controller.kube.asked import asked
from controller.kube.client import Cluster
from controller.kube.collect import Chosen, choose
from controller.kube.discover import Query
from controller.kube.kinds import ClusterKind, cluster_kinds, lines_of
from controller.kube.ledger import Entry, Ledger, own_ledger
from controller.kube.patches import shown
from controller.kube.select import Ask
from controller.kube.targets import group_id
from controller.options import checked, model_options, option_name, spec_from
from nodeagent.model.errors import FaultError, InvalidSpec
from nodeagent.model.plan import Lease
from nodeagent.model.policy import NODE

NOT_HERE = (
    "container",
    "to_pods",
    "to_zone",
    "to_namespace",
    "follow",
    "direct",
    "agent_namespace",
    "announce",
)
OF_PODS = ("pod", "selector", "field_selector", "owner", "zone_cap")
OF_MANY = ("pick", "everything", "pick_seed", "on_node", "node_selector", "zone")
NOT_ON = {"pods": (), "nodes": OF_PODS, "object": (*OF_PODS, *OF_MANY)}
"""What would narrow the choice, or seem to, and has no meaning for what a kind acts on."""


def cluster_command(kind: ClusterKind, common: list[click.Parameter]) -> click.Command:
    """The click command of a kind."""

    def callback(**values: Any) -> None:
        run(kind, values)

    mine = [option for option in kube_options() if option.name not in NOT_HERE]
    common = [option for option in common if option.name != "mechanism"]
    return click.Command(
        kind.name,
        callback=callback,
        params=[*model_options(kind.spec), *mine, *common],
        help=f"{kind.summary[0].upper()}{kind.summary[1:]}.\n\n{kind.doc}",
        short_help=kind.summary,
        epilog=f"Example: {kind.example}",
    )


def explain(name: str) -> None:
    """As `faultctl explain` of other kinds."""
    kind, console = cluster_kinds()[name], render.out()
    word = "pods" if kind.on == "pods" else "objects"
    console.print(f"[bold]{kind.name}[/]: {kind.summary}\n")
    console.print(kind.doc, markup=False)
    console.print(f"\nacts on: {kind.on} of a cluster, through its API server", markup=False)
    for title, lines in (
        ("what no revert takes back", kind.collateral),
        ("how an operator can end it", kind.remedies),
        ("example", (kind.example,)),
        ("in an experiment", (f"on a target with {word}: see docs/kubernetes.md",)),
    ):
        console.print(f"\n[bold]{title}[/]")
        for line in lines:
            console.print(f"  - {line}", markup=False)


def run(kind: ClusterKind, values: Mapping[str, Any]) -> None:
    """Choose, journal, do; then hold, or leave it to the keeper until the lease ends."""
    given = {"duration": values["lease"], "hard_end": values["hard_end"]}
    lease = Lease.model_validate(
        checked(Lease, {name: value for name, value in given.items() if value is not None})
    )
    spec = kind.spec.model_validate(spec_from(kind.spec, values))
    cluster = Cluster(values["kubeconfig"], values["context"])
    query, ask = _asked(kind, cluster, values)
    found = choose(cluster, kind, spec, query, ask, tuple(values["i_know"]))
    entry = _entry(kind, values, cluster, lease, found)
    spaces = [place.namespace or NODE for place in entry.places]
    check_policy(cluster, values["policy"], [(kind.name, n, lease.hard_end) for n in spaces])
    if values["plan_only"]:
        _show_plan(kind, entry, found, values["output"])
        return
    book = own_ledger()
    act.arm(cluster, book, entry, lambda: keeper.start(book, entry))
    _show(entry, found, values["output"])
    if values["hold"] and entry.state == "armed":
        _hold(cluster, book, entry, lease)


def _asked(kind: ClusterKind, cluster: Cluster, values: Mapping[str, Any]) -> tuple[Query, Ask]:
    query, ask = asked(cluster.namespace, values)
    stray = [name for name in NOT_ON[kind.on] if values[name]]
    if stray:
        said = "--all" if stray[0] == "everything" else option_name(stray[0])
        what = "pods" if stray[0] in OF_PODS else "a choice among many"
        raise InvalidSpec(f"{kind.name} does not take {what}: {said}", f"it acts on: {kind.on}")
    return query, ask


def _entry(
    kind: ClusterKind, values: Mapping[str, Any], cluster: Cluster, lease: Lease, found: Chosen
) -> Entry:
    now = time.time()
    named: Path | None = values["kubeconfig"]
    return Entry(
        id=values["fault_id"] or group_id(kind.name, secrets.token_hex(3)),
        kind=kind.name,
        server=cluster.server,
        kubeconfig=str(named.resolve()) if named else None,
        context=values["context"],
        created=now,
        lease_s=lease.duration.total_seconds(),
        until=now + lease.duration.total_seconds(),
        hard_end=now + lease.hard_end.total_seconds(),
        patched=found.work.patched,
        removed=found.work.removed,
    )


def entry_data(entry: Entry) -> dict[str, Any]:
    """A fault as plain data."""
    return {
        "id": entry.id,
        "kind": entry.kind,
        "state": entry.state,
        "end_reason": entry.end_reason or None,
        "server": entry.server,
        "changes": [
            {"object": one.place.shown, "field": c.pointer, "change": shown(c)}
            for one in entry.patched for c in one.changes
        ],
        "removed": [one.place.shown for one in entry.removed],
        "left_s": round(max(0.0, entry.end - time.time()), 1),
        "events": entry.events,
    }  # fmt: skip


def _show_plan(kind: ClusterKind, entry: Entry, found: Chosen, form: str) -> None:
    if form != "table":
        render.data({**entry_data(entry), "collateral": list(kind.collateral)}, form)
        return
    console = render.out()
    for line in (*found.lines, *lines_of(found.work)):
        console.print(f"  {line}", markup=False)
    console.print("what no revert takes back:")
    for line in kind.collateral:
        console.print(f"  - {line}", markup=False)
    console.print("(nothing was touched)")


def _show(entry: Entry, found: Chosen, form: str) -> None:
    if form != "table":
        render.data(entry_data(entry), form)
        return
    console = render.out()
    console.print(f"{entry.id}: {entry.end_reason or entry.state}", markup=False)
    for line in (*found.lines, *lines_of(found.work)):
        console.print(f"  {line}", markup=False)
    if entry.state == "armed":
        left = render.duration_ns(int((entry.end - time.time()) * 1e9))
        console.print(
            f"  ends by itself in {left}; take it back: faultctl revert --cluster {entry.id}",
            markup=False,
        )


def _hold(cluster: Cluster, book: Ledger, entry: Entry, lease: Lease) -> None:
    """Renew the lease until Ctrl-C or the hard end; then put everything back. When this process
    dies, the keeper does, with the lease."""
    stop = threading.Event()
    said: set[str] = set()
    pause = min(2.0, lease.duration.total_seconds() / 3)
    try:
        while time.time() < entry.hard_end and book.renew(entry.id).state != "ended":
            for line in _looked(cluster, entry):
                if line not in said:
                    said.add(line)
                    print(render.printable(line), flush=True)
            stop.wait(min(pause, max(0.0, entry.hard_end - time.time())))
    except KeyboardInterrupt:
        ended = act.revert(cluster, book, entry.id, "reverted")
    else:
        ended = act.revert(cluster, book, entry.id, "expired")
    for line in (f"{entry.id}: {ended.end_reason}", *ended.events):
        print(render.printable(line), flush=True)


def _looked(cluster: Cluster, entry: Entry) -> list[str]:
    """What became of the changes; an API server that does not answer ends no fault."""
    try:
        return drift.lost(cluster, entry)
    except FaultError as exc:
        return [f"could not look: {exc}"]
