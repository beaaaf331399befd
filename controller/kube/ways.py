"""The way from a command line to a cluster and its agents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller.client import AgentAddress
from nodeagent.model.errors import InvalidSpec
from nodeagent.model.protected import AGENT_NAMESPACE


@dataclass(frozen=True)
class Reached:
    """A cluster that is open, and the clients of its agents."""

    cluster: Any
    agents: Any
    clients: Any
    agent_namespace: str = AGENT_NAMESPACE

    def nodes(self) -> list[str]:
        """Nodes that have an agent."""
        return sorted(self.agents.pods())


@dataclass(frozen=True)
class Ways:
    """How agents are reached: by address, or as pods of a cluster that is opened when it is needed.

    default: an agent's address, and TLS files for all that have none of their own.
    """

    default: AgentAddress = field(default_factory=AgentAddress)
    kubeconfig: Path | None = None
    context: str | None = None
    agent_namespace: str = AGENT_NAMESPACE
    direct: bool = False
    policy: Path | None = None
    """Who may do what to the cluster's own objects, of which no agent keeps watch."""

    @contextmanager
    def cluster(self) -> Iterator[Reached]:
        """The cluster and its agents. Raises InvalidSpec, Unreachable or Refused."""
        # Imported late: no other verb has to wait for the kubernetes package.
        from controller.kube.agents import SERVER_NAME, Access, Agents
        from controller.kube.client import Cluster
        from controller.kube.group import Clients
        from controller.kube.portforward import forward

        named = self.default
        tls = {"cert": named.cert, "key": named.key, "ca": named.ca}
        given = {name: path for name, path in tls.items() if path is not None}
        if given and len(given) != len(tls):
            raise InvalidSpec("mutual TLS takes --tls-cert, --tls-key and --tls-ca together")
        access = Access(
            namespace=self.agent_namespace,
            direct=self.direct,
            tls=given or None,
            server_name=named.server_name or SERVER_NAME,
            forward=forward,
            patience=named.patience,
        )
        cluster = Cluster(self.kubeconfig, self.context)
        with Agents(cluster, access) as agents, Clients(agents) as clients:
            yield Reached(cluster, agents, clients, self.agent_namespace)
