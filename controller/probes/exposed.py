"""The exposure of an armed fault, asked of the agents that have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from controller.probes.outcome import Outcome, failed, passed, unknown
from controller.probes.spec import ExposureProbe
from nodeagent.model.errors import UnknownFault
from nodeagent.model.exposure import Exposure

MAX_NAMED = 16
_NEAR = ("file", "device", "scope", "netns", "node")
"""All but those that have only something else of a file's volume open."""


class ExposureAgent(Protocol):
    """What is needed of controller.client.AgentClient."""

    def exposure(self, fault_id: str, timeout: float) -> Exposure | None: ...


Clients = Callable[[str], ExposureAgent]
Placed = Callable[[str], list[tuple[str, str]]]
"""Name of a fault in the experiment -> (node, id) of each of its slots; no node for one that
waits for the pod that it will hit next."""


def measure(spec: ExposureProbe, clients: Clients, placed: Placed) -> Outcome:
    """Healthy when nobody can be hit; before a fault is there, and after, that is nobody.

    Raises what the clients raise, but for a fault that its node has never heard of.
    """
    users: list[str] = []
    doubts: list[str] = []
    for node, fault in placed(spec.fault or ""):
        if not node:
            doubts.append("it waits for the next pod of its workload")
            continue
        found = _asked(clients(node), fault, spec.timeout.total_seconds())
        if found is None:
            continue
        wide = spec.reach == "volume"
        near = [w for w in found.workloads if wide or w.how in _NEAR]
        users += [f"{w.comm} ({w.pid}, {w.how})" for w in near]
        if not found.known or not found.complete:
            doubts.append(f"{node}: {found.note or 'not all processes were looked at'}")
    data = {"workloads": users[:MAX_NAMED], "count": len(users)}
    if users:
        return failed(f"can still hit {', '.join(users[:4])}", **data)
    if doubts:
        return unknown("; ".join(doubts), **data)
    return passed(**data)


def _asked(client: ExposureAgent, fault: str, timeout: float) -> Exposure | None:
    try:
        return client.exposure(fault, timeout)
    except UnknownFault:
        return None
