"""`ls`, `show`, `revert`, `renew` and `exposure` over all agents of a cluster (--cluster)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from controller import render
from controller.cli.announced import settled
from controller.cli.common import EXIT_EXPOSED, fault_data, state_word, target_word
from controller.cli.inject_cluster import entry_data
from controller.cli.kube import reached, unreachable
from controller.client import AgentClient
from controller.kube import act
from controller.kube.answers import ApiPath
from controller.kube.exposed import Exposed, pod_of
from controller.kube.group import Failure, Outcome, find_group, renew_group, revert_group
from controller.kube.keeper import open_cluster
from controller.kube.ledger import Entry, own_ledger
from controller.kube.objects import pod_from
from controller.kube.targets import of_group
from controller.kube.ways import Reached
from nodeagent.model.errors import FaultError, InvalidSpec, Refused, UnknownFault
from protos import faultd_pb2 as pb


def ls(access: Mapping[str, Any], everything: bool, output: str) -> None:
    """Faults of all nodes, and on the cluster's objects; nodes that do not answer are named,
    and show in the exit code."""
    own = [one for one in own_ledger().all() if everything or one.state != "ended"]
    with reached(access) as there:
        done, failed = there.clients.everywhere(
            _nodes(there, bool(own)), lambda node, agent: agent.faults(active_only=not everything)
        )
    found = [(node, fault) for node, faults in sorted(done.items()) for fault in faults]
    if output != "table":
        rows = [{"node": node, **fault_data(fault)} for node, fault in found]
        render.data([*rows, *({"node": None, **entry_data(one)} for one in own)], output)
    else:
        cells = [
            (node, f.id, f.kind, target_word(json.loads(f.target)), state_word(f), f.mechanism,
             _left(f))
            for node, f in found
        ]  # fmt: skip
        cells += [
            ("-", one.id, one.kind, _what(one), one.end_reason or one.state, "API server",
             f"{entry_data(one)['left_s']}s" if one.state == "armed" else "-")
            for one in own
        ]  # fmt: skip
        render.table(("NODE", "ID", "KIND", "TARGET", "STATE", "MECHANISM", "LEFT"), cells,
                     "no faults")  # fmt: skip
    if failed:
        raise unreachable(failed)


def _nodes(there: Reached, own: bool) -> list[str]:
    """Nodes that have an agent. None is no error where there is something to say without them:
    faults on objects need no agent."""
    try:
        return there.nodes()
    except Refused as exc:
        if not own:
            raise
        render.err().print(f"warning: no agent was asked: {exc}", markup=False)
        return []


def _what(entry: Entry) -> str:
    places = [one.shown for one in entry.places]
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return places[0] + more if places else "-"


def _left(fault: pb.Fault) -> str:
    if fault.state != "armed":
        return "-"
    return render.duration_ns(min(fault.lease_left_ns, fault.hard_end_left_ns))


def revert(
    access: Mapping[str, Any], fault_ids: tuple[str, ...], everything: bool, output: str
) -> None:
    """Take groups, or single faults, back on all nodes; all are tried."""
    if bool(fault_ids) == everything:
        raise InvalidSpec("which faults?", "name their ids, or say --all")
    rows, failed = _own(access, fault_ids, everything)
    known = {row["id"] for row in rows} | {one.fault for one in failed}
    fault_ids = tuple(i for i in fault_ids if i not in known)
    outcome, ids = Outcome(), {}
    if fault_ids or everything:
        with reached(access) as there:
            ids = _ids(there, fault_ids, bool(known))
            outcome = revert_group(there.clients, ids)
            settled(there, set(ids.values()))
    outcome.failed += failed
    rows += [
        {"node": ids[i], "id": i, "result": fault.end_reason, "error": None}
        for i, fault in outcome.done.items()
    ]
    rows += [
        {"node": one.node, "id": one.fault, "result": "error", "error": str(one.error)}
        for one in outcome.failed
    ]
    if output != "table":
        render.data(rows, output)
    else:
        cells = [(r["node"] or "", r["id"] or "", r["result"] or "", r["error"] or "")
                 for r in rows]  # fmt: skip
        render.table(("NODE", "ID", "RESULT", "ERROR"), cells, "there was nothing to revert")
    if outcome.failed:
        raise outcome.failed[0].error


def _own(
    access: Mapping[str, Any], fault_ids: tuple[str, ...], everything: bool
) -> tuple[list[dict[str, Any]], list[Failure]]:
    """Reverts those that are on objects of the cluster; all are tried."""
    rows: list[dict[str, Any]] = []
    failed = []
    for entry in own_ledger().all():
        if entry.id in fault_ids or (everything and entry.state != "ended"):
            named = {"kubeconfig": access["kubeconfig"] or entry.kubeconfig,
                     "context": access["context"] or entry.context}  # fmt: skip
            try:
                cluster = open_cluster(entry.model_copy(update=named))
                done = act.revert(cluster, own_ledger(), entry.id, "reverted")
            except FaultError as exc:
                failed.append(Failure("", entry.id, exc))
                continue
            rows.append({"node": None, "id": done.id, "result": done.end_reason,
                         "error": "; ".join(done.events) or None})  # fmt: skip
    return rows, failed


def _ids(there: Reached, groups: tuple[str, ...], own: bool) -> dict[str, str]:
    """{id: node} of the active faults. Raises UnknownFault: that is never success.

    A node that does not answer may hold some: the error says so, after the others' revert.
    """
    nodes = _nodes(there, own and not groups)
    done, failed = there.clients.everywhere(
        nodes, lambda node, agent: agent.faults(active_only=not groups)
    )
    found = {fault.id: node for node, faults in done.items() for fault in faults}
    if groups:
        members = {group: [i for i in found if of_group(i, group)] for group in groups}
        for group, ids in members.items():
            if not ids and not failed:
                raise UnknownFault(
                    f"no node has a fault or group {group}", "", "see: faultctl ls --cluster --all"
                )
        found = {i: found[i] for ids in members.values() for i in ids}
    if failed:
        revert_group(there.clients, found)
        settled(there, set(found.values()))
        raise unreachable(failed)
    return found


def renew(access: Mapping[str, Any], fault_id: str) -> None:
    """Let the leases of a group start anew."""
    own = own_ledger().find(fault_id)
    if own is not None and own.state == "armed":
        own = own_ledger().renew(fault_id)
        render.out().print(f"{fault_id}: {entry_data(own)['left_s']}s left")
        return
    with reached(access) as there:
        members, failed = find_group(there.clients, there.nodes(), fault_id)
        active = {i: node for i, (node, fault) in members.items() if fault.state == "armed"}
        if not active and not failed:
            raise UnknownFault(f"no node has an armed fault of {fault_id}")
        outcome = renew_group(there.clients, active)
    for fault in outcome.done.values():
        render.out().print(f"{fault.id}: {_left(fault)} left")
    if outcome.failed or failed:
        raise unreachable(failed) if failed else outcome.failed[0].error


def show(access: Mapping[str, Any], fault_id: str, output: str) -> None:
    """All faults of a group with their evidence, as data; a line each on a terminal."""
    own = own_ledger().find(fault_id)
    if own is not None:
        render.data(entry_data(own), "yaml" if output == "table" else output)
        return
    with reached(access) as there:
        members, failed = find_group(there.clients, there.nodes(), fault_id)
    if not members:
        raise unreachable(failed) if failed else UnknownFault(f"no node has {fault_id}")
    rows = [{"node": n, **fault_data(f, whole=True)} for _, (n, f) in sorted(members.items())]
    if output != "table":
        render.data(rows, output)
        return
    render.table(
        ("ID", "NODE", "TARGET", "STATE", "HITS"),
        [
            (row["id"], row["node"], target_word(row["target"]), row["end_reason"] or row["state"],
             str(row["evidence"]["hits"]) if row["evidence"]["counted"] else "not counted")
            for row in rows
        ],
    )  # fmt: skip


def exposure(access: Mapping[str, Any], fault_id: str, output: str) -> None:
    """Who a group can still hit on any node, pod by pod. Exits with 1 if somebody, or if that is
    not known of a node."""

    def ask(node: str, agent: AgentClient) -> list[Exposed]:
        return [
            Exposed(
                node=node,
                fault=one.id,
                namespace=json.loads(one.target).get("pod", "").partition("/")[0],
                found=None if one.state == "ended" else agent.exposure(one.id),
            )
            for one in agent.faults()
            if of_group(one.id, fault_id)
        ]

    with reached(access) as there:
        done, failed = there.clients.everywhere(there.nodes(), ask)
        found = [one for _, faults in sorted(done.items()) for one in faults]
        if not found:
            raise unreachable(failed) if failed else UnknownFault(f"no node has {fault_id}")
        spaces = sorted({one.namespace for one in found if one.namespace})
        listed = [there.cluster.listed(ApiPath("pods", space))[0] for space in spaces]
        pods = [pod_from(one) for items in listed for one in items]
    rows = [
        {"node": one.node, "id": one.fault, "pod": pod_of(w, pods) or None, **w.model_dump()}
        for one in found
        for w in one.workloads
    ]
    unknown = [one.fault for one in found if not one.nobody and not one.workloads]
    armed = [one.fault for one in found if one.found is not None]
    _show_exposure(armed, unknown, rows, output)
    if failed:
        raise unreachable(failed)
    if rows or unknown:
        click.get_current_context().exit(EXIT_EXPOSED)


def _show_exposure(
    armed: list[str], unknown: list[str], rows: list[dict[str, Any]], output: str
) -> None:
    if output != "table":
        render.data({"armed": armed, "unknown": unknown, "workloads": rows}, output)
        return
    keys = ("node", "id", "pod", "pid", "comm", "how")
    cells = [tuple(str(row[key] or "-") for key in keys) for row in rows]
    blind = f"not known of {', '.join(unknown)}" if unknown else ""
    render.table(("NODE", "ID", "POD", "PID", "PROCESS", "HOW"), cells, blind or "nobody")
    if cells and blind:
        click.echo(blind)
