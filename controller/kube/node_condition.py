"""The condition FaultInjected of a node: True while faults that were announced are armed there.

Its message is the list of announced groups, so that whoever takes one away knows the others.
Which of them are still armed is asked of the node's agent: it alone knows. Groups that were not
announced are never in it, and do not keep it True.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from controller.kube.answers import ApiPath
from controller.kube.client import STRATEGIC, Cluster
from controller.kube.group import Clients
from controller.kube.targets import of_group
from nodeagent.model.errors import Conflict, FaultError

TYPE = "FaultInjected"
ARMED, NONE = "FaultArmed", "NoFault"
"""Reasons of True and False."""
STAMP = "%Y-%m-%dT%H:%M:%SZ"
SKEW = timedelta(minutes=1)
"""A group is over so long after its hard end when its agent does not answer: clocks differ."""
TRIES = 6
"""The kubelet writes to the same object."""
MAX_THREADS = 16
MAX_NAMED = 5
_SAID = re.compile(
    r"([a-z0-9-]+) \(([a-z0-9-]+)\) until (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) at most", re.ASCII
)


@dataclass(frozen=True)
class Said:
    """One group in the message; `until` is its hard end."""

    kind: str
    group: str
    until: datetime

    def text(self) -> str:
        """As `groups_of` reads it."""
        return f"{self.kind} ({self.group}) until {self.until.astimezone(UTC):{STAMP}} at most"


def _condition(node: Mapping[str, Any]) -> dict[str, Any]:
    found = node.get("status", {}).get("conditions") or ()
    return next((one for one in found if one.get("type") == TYPE), {})


def groups_of(node: Mapping[str, Any]) -> tuple[Said, ...]:
    """The groups that a node's condition names; none when it is not True."""
    condition = _condition(node)
    if condition.get("status") != "True":
        return ()
    found = _SAID.findall(condition.get("message", ""))
    return tuple(
        Said(kind, group, datetime.strptime(until, STAMP).replace(tzinfo=UTC))
        for kind, group, until in found
    )


def left(said: Iterable[Said], active: Collection[str] | None, now: datetime) -> tuple[Said, ...]:
    """Those of which a fault is among the `active` ids; None: the agent did not answer."""
    if active is None:
        return tuple(one for one in said if now < one.until + SKEW)
    return tuple(one for one in said if any(of_group(i, one.group) for i in active))


def change(node: Mapping[str, Any], said: tuple[Said, ...], now: datetime) -> dict[str, Any] | None:
    """The patch of a node's status that makes its condition say this; None when it does.

    It holds only for the node as it was read (resourceVersion).
    """
    before = _condition(node)
    status = "True" if said else "False"
    message = "; ".join(one.text() for one in said)
    if before.get("status", "False") == status and before.get("message", "") == message:
        return None
    stamp = f"{now.astimezone(UTC):{STAMP}}"
    same = before.get("status") == status
    condition = {
        "type": TYPE,
        "status": status,
        "reason": ARMED if said else NONE,
        "message": message,
        "lastHeartbeatTime": stamp,
        "lastTransitionTime": before.get("lastTransitionTime", stamp) if same else stamp,
    }
    version = node["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version}, "status": {"conditions": [condition]}}


def refresh(
    cluster: Cluster, clients: Clients, nodes: Iterable[str], add: Said | None = None
) -> list[str]:
    """Make the conditions of nodes true, `add` being armed there; a line for each that failed."""
    names = sorted(set(nodes))
    answered, _ = clients.everywhere(names, lambda _node, agent: _active(agent))

    def one(name: str) -> str:
        active = answered.get(name)

        def now_said(said: tuple[Said, ...], now: datetime) -> tuple[Said, ...]:
            others = [x for x in said if add is None or x.group != add.group]
            return (*left(others, active, now), *((add,) if add else ()))

        try:
            _write(cluster, name, now_said)
        except FaultError as exc:
            return f"{exc}; {exc.hint}" if exc.hint else str(exc)
        return ""

    with ThreadPoolExecutor(MAX_THREADS) as pool:
        errors = list(pool.map(one, names))
    return [_line(error, names, errors) for error in dict.fromkeys(errors) if error]


def _line(error: str, names: list[str], errors: list[str]) -> str:
    """One line for all nodes that say the same: hundreds lack the same right."""
    mine = [name for name, found in zip(names, errors, strict=True) if found == error]
    more = f" and {len(mine) - MAX_NAMED} more" if len(mine) > MAX_NAMED else ""
    return f"no condition {TYPE} on {', '.join(mine[:MAX_NAMED])}{more}: {error}"


def settle(cluster: Cluster, clients: Clients, nodes: Collection[str]) -> list[str]:
    """As `refresh` after faults have ended, and only where the condition is True: of all others,
    and where nodes may not be read, nothing was announced that we could know of."""
    try:
        found, _ = cluster.listed(ApiPath("nodes"))
    except FaultError:
        return []
    said = [one["metadata"]["name"] for one in found if groups_of(one)]
    return refresh(cluster, clients, set(said) & set(nodes))


def forget(cluster: Cluster) -> list[str]:
    """Take the condition off all nodes, whatever it says: when the agents have gone, nobody can
    put it right. A line for each node where that failed."""
    try:
        found, _ = cluster.listed(ApiPath("nodes"))
    except FaultError as exc:
        return [f"no condition {TYPE} was looked for: {exc}"]
    body = {"status": {"conditions": [{"type": TYPE, "$patch": "delete"}]}}
    names = [one["metadata"]["name"] for one in found if _condition(one)]
    lines = []
    for name in names:
        try:
            cluster.patch(ApiPath("nodes", name=name, subresource="status"), body, STRATEGIC)
        except FaultError as exc:
            lines.append(f"node {name} keeps the condition {TYPE}: {exc}")
    return lines


def _active(agent: Any) -> set[str]:
    return {fault.id for fault in agent.faults(active_only=True)}


def _write(
    cluster: Cluster,
    name: str,
    now_said: Callable[[tuple[Said, ...], datetime], tuple[Said, ...]],
) -> None:
    """Read, change, write; anew when somebody else wrote meanwhile. Raises FaultError."""
    for attempt in range(TRIES):
        node = cluster.get(ApiPath("nodes", name=name))
        if node is None:
            return  # it was removed: so is its condition
        now = datetime.now(UTC)
        body = change(node, now_said(groups_of(node), now), now)
        if body is None:
            return
        try:
            cluster.patch(ApiPath("nodes", name=name, subresource="status"), body, STRATEGIC)
        except Conflict:
            if attempt == TRIES - 1:
                raise
        else:
            return
