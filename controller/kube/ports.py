"""A node of a run whose agent is a pod of a cluster."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol

from controller.client import AgentAddress, AgentClient
from controller.experiment_pods import agent_url
from controller.run_ports import AgentPort
from nodeagent.model.errors import Refused, Unreachable

RETIRED_S = 150.0
"""A way that was given up stays open so long: longer than any call that may still be under way
on it, since one that is cut off tells nothing of what it did."""
MAX_RETIRED = 16
PATIENCE_S = 30.0
"""An answer that did not come in time is no reason to give up a way that is younger than this."""


class Reach(Protocol):
    """controller.kube.agents.Agents."""

    def open(self, node: str) -> AbstractContextManager[AgentAddress]:
        """The way to a node's agent. Raises Refused where there is none, Unreachable."""


class ClusterPort(AgentPort):
    """A node's agent through its cluster.

    The way is opened when it is first needed, and looked for anew when the agent did not answer:
    restarted, it may be another pod. A node that has no agent now is one that does not answer.
    """

    def __init__(self, node: str, reach: Reach) -> None:
        self.url = agent_url(node)
        self._node, self._reach = node, reach
        self._opening = threading.Lock()
        self._guard = threading.Lock()
        self._way: tuple[AgentClient, ExitStack] | None = None
        self._since = 0.0
        self._retired: list[tuple[float, ExitStack]] = []
        self._closed = False

    @property
    def client(self) -> AgentClient:
        """The client of the agent's pod of now. Raises Unreachable."""
        with self._opening:
            with self._guard:
                if self._way is not None:
                    return self._way[0]
            way = self._opened()
            with self._guard:
                self._way, self._since = way, time.monotonic()
                closed = self._closed
            if closed:
                self.close()
            return way[0]

    def _opened(self) -> tuple[AgentClient, ExitStack]:
        self._clear(time.monotonic() - RETIRED_S)
        try:
            with ExitStack() as opening:
                address = opening.enter_context(self._reach.open(self._node))
                client = opening.enter_context(AgentClient(address, lost=self._lost))
                return client, opening.pop_all()
        except Refused as exc:
            raise Unreachable(exc.what, exc.why, exc.hint) from exc

    def _lost(self, client: AgentClient, certain: bool) -> None:
        """A client had no answer: the next call opens another way."""
        now = time.monotonic()
        with self._guard:
            patient = not certain and now - self._since < PATIENCE_S
            if self._way is not None and self._way[0] is client and not patient:
                self._retired.append((now, self._way[1]))
                self._way = None

    def _clear(self, until: float) -> None:
        with self._guard:
            kept = [one for one in self._retired if one[0] > until][-MAX_RETIRED:]
            old = [one for one in self._retired if one not in kept]
            self._retired = kept
        for _, stack in old:
            stack.close()

    def close(self) -> None:
        """Done with it, and with all that were given up."""
        with self._guard:
            self._closed = True
            way, self._way = self._way, None
        if way is not None:
            way[1].close()
        self._clear(float("inf"))
