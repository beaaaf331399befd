"""The agents of a cluster: which pod is a node's, and how it is reached, with mutual TLS.

From outside through the API server (port-forward), inside the cluster by the pod's address.
The client's certificate is the one on the command line, or the Secret that `deploy` made.
"""

from __future__ import annotations

import base64
import binascii
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.client import AgentAddress
from controller.kube.answers import ApiPath
from controller.kube.client import Cluster
from controller.kube.objects import condition
from controller.kube.select import AGENT_LABEL
from nodeagent.model.errors import Refused, Unreachable
from nodeagent.model.protected import AGENT_NAMESPACE

SECRET = "faultctl-client"  # noqa: S105 - a name
SERVER_NAME = "faultd"
"""In the certificates of all agents: they are reached by many addresses."""
PORT_NAME, PORT = "grpc", 7443
FILES = {"cert": "tls.crt", "key": "tls.key", "ca": "ca.crt"}

Forward = Callable[[Cluster, str, str, int], AbstractContextManager[tuple[str, int]]]
"""(cluster, namespace, pod, port) to a local host and port, open as long as the context."""


@dataclass(frozen=True)
class AgentPod:
    """A pod of the DaemonSet on one node."""

    node: str
    name: str
    ip: str
    port: int
    ready: bool

    @property
    def direct(self) -> str:
        """Its address in the cluster."""
        host = f"[{self.ip}]" if ":" in self.ip else self.ip
        return f"tcp://{host}:{self.port}"


@dataclass(frozen=True)
class Access:
    """How agents are reached. tls: cert, key and ca; without, they come from the Secret.

    patience: as in AgentAddress.
    """

    namespace: str = AGENT_NAMESPACE
    direct: bool = False
    tls: Mapping[str, Path] | None = None
    server_name: str = SERVER_NAME
    forward: Forward | None = None
    patience: float = 1.0


def agent_pods(items: list[dict[str, Any]]) -> dict[str, AgentPod]:
    """By node; pure. Of two on a node (one ends, the next begins) the one that is ready."""
    found: dict[str, AgentPod] = {}
    for one in items:
        node = one.get("spec", {}).get("nodeName", "")
        if not node or "deletionTimestamp" in one["metadata"]:
            continue
        ports = [
            port["containerPort"]
            for container in one["spec"].get("containers") or ()
            for port in container.get("ports") or ()
            if port.get("name") == PORT_NAME
        ]
        ip = one.get("status", {}).get("podIP", "")
        ready = condition(one, "Ready")
        new = AgentPod(node, one["metadata"]["name"], ip, ports[0] if ports else PORT, ready)
        if node not in found or (ready and not found[node].ready):
            found[node] = new
    return found


class Agents:
    """All agents of a cluster, listed once. Use it as a context manager."""

    def __init__(self, cluster: Cluster, access: Access) -> None:
        self._cluster, self.access = cluster, access
        self._lock = threading.Lock()
        self._pods: dict[str, AgentPod] | None = None
        self._home: tempfile.TemporaryDirectory[str] | None = None
        self._tls: Mapping[str, Path] | None = access.tls
        self._opened: set[str] = set()
        self._listed = 0.0

    def __enter__(self) -> Agents:
        return self

    def __exit__(self, *args: object) -> None:
        if self._home is not None:
            self._home.cleanup()

    def pods(self, *, fresh: bool = False) -> dict[str, AgentPod]:
        """By node; `fresh` asks the API server again. Raises Refused when there are none.

        One answer serves all who asked before the question: after a hiccup hundreds ask at once.
        """
        asked = time.monotonic()
        with self._lock:
            if not self._pods or (fresh and self._listed < asked):
                begun = time.monotonic()
                path = ApiPath("pods", self.access.namespace)
                items, _ = self._cluster.listed(path, "=".join(AGENT_LABEL))
                self._pods, self._listed = agent_pods(items), begun
        if not self._pods:
            raise Refused(
                "no agent runs in this cluster",
                f"no pod in namespace {self.access.namespace} has {'='.join(AGENT_LABEL)}",
                "install them: faultctl deploy install",
            )
        return self._pods

    @contextmanager
    def open(self, node: str) -> Iterator[AgentAddress]:
        """The way to a node's agent; see Reach."""
        pod = self._pod(node)
        tls = self._files()
        if self.access.direct:
            yield self._address(pod.direct, tls)
            return
        if self.access.forward is None:
            raise Refused("agents can't be reached through the API server here", "", "use --direct")
        way = self.access.forward(self._cluster, self.access.namespace, pod.name, pod.port)
        with way as (host, port):
            yield self._address(f"tcp://{host}:{port}", tls)

    def _address(self, url: str, tls: Mapping[str, Path]) -> AgentAddress:
        files = (tls["cert"], tls["key"], tls["ca"])
        return AgentAddress(url, *files, self.access.server_name, self.access.patience)

    def _pod(self, node: str) -> AgentPod:
        """The node's agent; looked up anew when it was restarted meanwhile."""
        again = node in self._opened  # the way was lost: it may be another pod by now
        self._opened.add(node)
        pod = self.pods(fresh=again).get(node)
        if not again and (pod is None or not pod.ready):
            pod = self.pods(fresh=True).get(node)
        if pod is None:
            raise Refused(
                f"no agent runs on node {node}",
                f"the agents in namespace {self.access.namespace} are on other nodes",
                "faultctl deploy status; does a taint keep it away?",
            )
        if not pod.ready or not pod.ip:
            raise Unreachable(
                f"the agent of node {node} is not ready",
                f"pod {self.access.namespace}/{pod.name}",
                f"kubectl -n {self.access.namespace} logs {pod.name}",
            )
        return pod

    def _files(self) -> Mapping[str, Path]:
        with self._lock:
            if self._tls is None:
                self._home, self._tls = self._from_secret()
            return self._tls

    def _from_secret(self) -> tuple[tempfile.TemporaryDirectory[str], Mapping[str, Path]]:
        secret = self._cluster.get(ApiPath("secrets", self.access.namespace, SECRET))
        hint = "give --tls-cert, --tls-key and --tls-ca, or see faultctl deploy certs"
        if secret is None:
            where = f"{self.access.namespace}/{SECRET}"
            raise Refused("no client certificate for the agents", f"no Secret {where}", hint)
        # A folder of its own that only this user can read, gone with this process.
        home = tempfile.TemporaryDirectory(prefix="faultctl-")
        found = {}
        for name, key in FILES.items():
            try:
                data = base64.b64decode(secret["data"][key], validate=True)
            except (KeyError, TypeError, binascii.Error) as exc:
                home.cleanup()
                raise Refused(f"Secret {SECRET} has no {key}", str(exc), hint) from exc
            found[name] = Path(home.name, key)
            handle = os.open(found[name], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
        return home, found
