"""Starts the node agent inside a lab node and says how to reach it from this host."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from controller.lab import certs
from controller.lab.config import AGENT_PORT
from controller.lab.errors import NodeFailed
from controller.lab.guestio import Detached

if TYPE_CHECKING:
    from controller.lab.node import Node

TLS = "/run/faultctl/tls"
SOCKET = "/run/faultctl/faultd.sock"
LOG = "/run/faultctl/faultd.log"
FAULTD = ("/usr/bin/python3", "-m", "nodeagent.main")
READY = " ready on "  # what faultd prints when it answers


@dataclass(frozen=True)
class AgentAccess:
    """A running agent: its address from this host, the client's PEM files, its process."""

    url: str
    ca: Path
    cert: Path
    key: Path
    child: Detached


def default_arguments() -> list[str]:
    """Both listeners, and the certificates that start() has put into the guest."""
    argv = ["--listen", f"unix://{SOCKET}", "--listen", f"tcp://0.0.0.0:{AGENT_PORT}"]
    argv += ["--tls-cert", f"{TLS}/server.pem", "--tls-key", f"{TLS}/server-key.pem"]
    return [*argv, "--tls-ca", f"{TLS}/ca.pem"]


def start(
    node: Node,
    *,
    command: Sequence[str] = FAULTD,
    arguments: Sequence[str] | None = None,
    extra: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    ready: str = READY,
    timeout: float = 30.0,
) -> AgentAccess:
    """Start `command arguments extra` and wait until its log has a line with `ready`.

    Raises NodeFailed with the log when it ends, or is not ready within
    `timeout` native seconds.
    """
    home = node.home / "tls"
    names = (node.address,) if node.address else ()
    files = certs.write_all(home, node.name, names)
    node.run(["mkdir", "-p", "-m", "700", "/run/faultctl", TLS])
    for path in (files.ca, files.server_cert, files.server_key):
        node.put(f"{TLS}/{path.name}", path.read_bytes(), 0o600)
    node.run(["rm", "-f", LOG])
    argv = [*command, *(default_arguments() if arguments is None else arguments), *extra]
    child = node.spawn(argv, LOG, env)
    _wait_ready(node, child, shlex.join(argv), ready, timeout)
    url = f"tcp://127.0.0.1:{node.port(AGENT_PORT)}"
    return AgentAccess(url, files.ca, files.client_cert, files.client_key, child)


def _wait_ready(node: Node, child: Detached, what: str, ready: str, timeout: float) -> None:
    deadline = node.deadline(timeout)
    while True:
        log = node.get(LOG).decode(errors="replace")
        if ready in log:
            return
        end = node.ended(child)
        if end is not None:
            raise NodeFailed(f"in {node.name}, `{what}` {end.how}", log[-3000:])
        if time.monotonic() > deadline:
            raise NodeFailed(f"in {node.name}, `{what}` is not ready in time", log[-3000:])
        time.sleep(0.3)
