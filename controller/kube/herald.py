"""The herald of one announced group: says when its faults have ended, however they end.

A process of its own, started by `faultctl inject --announce`, that outlives it: a lease ends on
the node, which knows nothing of the API server. It holds nothing. When it dies, the condition
of a node stays until the next `revert --cluster` or `inject --announce` there.
"""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel

from controller.kube.agents import Access, Agents
from controller.kube.announce import announce
from controller.kube.client import Cluster
from controller.kube.group import Clients
from controller.kube.node_condition import SKEW, refresh
from controller.kube.portforward import forward
from controller.kube.targets import Item, of_group
from nodeagent.model.plan import FaultRequest

LOOK_S = 5.0


class Told(BaseModel):
    """What was announced, and how its agents are reached."""

    kind: str
    group: str
    until: datetime
    hit: list[tuple[str, str, FaultRequest]]
    """(node, pod, request) of each fault."""
    kubeconfig: Path | None
    context: str | None
    agent_namespace: str
    direct: bool
    tls: dict[str, Path] | None
    server_name: str

    @property
    def items(self) -> list[Item]:
        return [Item(node, pod, request) for node, pod, request in self.hit]


def start(told: Told) -> subprocess.Popen[bytes]:
    """A herald in a session of its own, without a terminal."""
    child = subprocess.Popen(
        [sys.executable, "-m", "controller.kube.herald"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert child.stdin is not None  # noqa: S101 - it was asked for
    with child.stdin as pipe:
        pipe.write(told.model_dump_json().encode())
    return child


def watch(cluster: Cluster, clients: Clients, told: Told, look_s: float = LOOK_S) -> None:
    """Until no fault of the group is active anywhere, or its hard end is past."""
    waiting = {item.node for item in told.items}
    while waiting:
        answered, failed = clients.everywhere(
            waiting, lambda _node, agent: [f.id for f in agent.faults(active_only=True)]
        )
        for failure in failed:
            clients.drop(failure.node)  # a restarted agent is another pod
        over = {
            node for node, ids in answered.items() if not any(of_group(i, told.group) for i in ids)
        }
        past = datetime.now(UTC) > told.until + SKEW
        over = set(waiting) if past else over
        if over and (not refresh(cluster, clients, over) or past):
            ended = [item for item in told.items if item.node in over]
            announce(cluster, ended, "FaultEnded", f"{told.kind} ({told.group})")
            waiting -= over
        if waiting:
            time.sleep(look_s)


def main() -> None:
    """Reads what was told from stdin."""
    told = Told.model_validate_json(sys.stdin.buffer.read())
    cluster = Cluster(told.kubeconfig, told.context)
    access = Access(told.agent_namespace, told.direct, told.tls, told.server_name, forward)
    with Agents(cluster, access) as agents, Clients(agents) as clients:
        watch(cluster, clients, told)


if __name__ == "__main__":
    main()
