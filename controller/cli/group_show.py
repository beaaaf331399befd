"""Groups of faults on a terminal: what would be hit, what is armed, and holding it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from controller import render
from controller.cli.announced import Announced
from controller.cli.common import fault_data, state_word, target_word
from controller.kube.group import Clients, Outcome, Planned, renew_group, revert_group
from controller.kube.resolve import Resolved
from nodeagent.model.plan import Lease

MAX_LEFT_OUT = 10


def chosen_data(group: str, found: Resolved) -> dict[str, Any]:
    """The choice as data."""
    return {
        "group": group,
        "matching": found.matching,
        "picked": found.how_many,
        "seed": found.seed,
        "left_out": [{"pod": one.pod, "reason": one.reason} for one in found.left_out],
        "notes": list(found.notes),
    }


def selection(group: str, found: Resolved) -> None:
    """What was chosen of what, before anything is touched."""
    console = render.out()
    words = f"{len(found.items)} faults; {found.matching} could be hit"
    if found.how_many not in ("", "all"):
        words += f", picked {found.how_many} (seed {found.seed}, shares are rounded up)"
    console.print(f"{group}: {words}", markup=False)
    for one in found.left_out[:MAX_LEFT_OUT]:
        console.print(f"  left out {one.pod}: {one.reason}", markup=False)
    if len(found.left_out) > MAX_LEFT_OUT:
        console.print(f"  and {len(found.left_out) - MAX_LEFT_OUT} more are left out")
    for note in found.notes:
        console.print(f"  {note}", markup=False)


def plan(group: str, found: Resolved, planned: Sequence[Planned], form: str) -> None:
    """Every fault that would be armed; nothing was touched."""
    if form != "table":
        faults = [
            {"node": one.item.node, "pod": one.item.pod, "digest": one.digest,
             "plan": one.plan.model_dump(mode="json")}
            for one in planned
        ]  # fmt: skip
        render.data({**chosen_data(group, found), "faults": faults}, form)
        return
    selection(group, found)
    rows = [
        (one.plan.id, one.item.node, one.item.pod or "-", target_word(one.plan.target),
         one.plan.mechanism, len(one.plan.steps))
        for one in planned
    ]  # fmt: skip
    render.table(("ID", "NODE", "POD", "TARGET", "MECHANISM", "STEPS"), [
        tuple(map(str, row)) for row in rows
    ])  # fmt: skip
    console = render.out()
    for title, lines in (
        ("what no revert takes back", {x for one in planned for x in one.plan.collateral}),
        ("notes", {x for one in planned for x in one.plan.notes}),
    ):
        if lines:
            console.print(f"{title}:")
        for line in sorted(lines)[:MAX_LEFT_OUT]:
            console.print(f"  - {line}", markup=False)
    console.print("(nothing was touched)")


def armed(
    group: str, found: Resolved, planned: Sequence[Planned], outcome: Outcome, form: str
) -> None:
    """What was done, and how to take it back."""
    nodes = {one.item.request.id: one.item for one in planned}
    if form != "table":
        faults = [
            {"node": item.node, "pod": item.pod, **fault_data(outcome.done[i], whole=True)}
            for i, item in nodes.items()
        ]
        render.data({**chosen_data(group, found), "faults": faults}, form)
        return
    rows = [
        (i, item.node, item.pod or "-", state_word(outcome.done[i]), outcome.done[i].mechanism)
        for i, item in nodes.items()
    ]
    render.table(("ID", "NODE", "POD", "STATE", "MECHANISM"), rows)
    left = min(min(f.lease_left_ns, f.hard_end_left_ns) for f in outcome.done.values())
    render.out().print(
        f"ends by itself in {render.duration_ns(left)}; "
        f"take it back: faultctl revert --cluster {group}"
    )


def hold(clients: Clients, found: Resolved, lease: Lease) -> None:
    """Renew all leases at a third of their length until Ctrl-C, then revert all."""
    ids = {item.request.id: item.node for item in found.items}
    stop = threading.Event()
    try:
        while ids and not stop.wait(lease.duration.total_seconds() / 3):
            outcome = renew_group(clients, ids)
            for failure in outcome.failed:
                render.err().print(
                    f"{failure.fault or failure.node}: {failure.error}", markup=False
                )
                if failure.error.code != "unreachable":
                    ids.pop(failure.fault, None)  # it has ended
    except KeyboardInterrupt:
        finish(clients, ids)


def follow(
    there: Any, wanted: Any, found: Resolved, lease: Lease, moves: bool, said: Announced
) -> None:  # fmt: skip
    """Hit what takes the place of the pods that were hit, until Ctrl-C; then revert all."""
    from controller.kube.pursuit import Pursuit

    # The far ends of a network fault stay those that were resolved.
    spec = dict(found.items[0].request.spec)
    wanted = replace(wanted, base={**wanted.base, "spec": spec})
    pursuit = Pursuit(there.cluster, there.clients, wanted, lease, _say, moves, said)
    try:
        pursuit.begin(found)
        pursuit.run()
    except KeyboardInterrupt:
        finish(there.clients, pursuit.ids)
    except BaseException:
        finish(there.clients, pursuit.ids)
        raise


def _say(line: str) -> None:
    print(render.printable(line), flush=True)


def finish(clients: Clients, ids: dict[str, str]) -> None:
    """Revert all and say how it went. Raises the first error."""
    outcome = revert_group(clients, ids)
    for fault in outcome.done.values():
        render.out().print(f"{fault.id}: {state_word(fault)}")
    if outcome.failed:
        raise outcome.failed[0].error
