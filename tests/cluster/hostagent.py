"""A real agent on this host's loopback, and the objects of a pod that it stands behind.

Only the kubelet in between is a stand-in (kubelet_kit.py).
"""

from __future__ import annotations

import base64
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from control import free_port
from kubeapi import Api

SYSTEM = "faultctl-system"
CERTS = {"tls.crt": "--tls-cert", "tls.key": "--tls-key", "ca.crt": "--tls-ca"}


def secret(api: Api, name: str) -> dict[str, bytes]:
    """The data of a Secret of ours."""
    found = api.json("get", "secret", "-n", SYSTEM, name)["data"]
    return {key: base64.b64decode(value) for key, value in found.items()}


def manifest(
    node: str, pod: str, *, kubelet_port: int = 10250, port: int = 7443
) -> tuple[dict[str, Any], ...]:
    """A node, its status, the agent's pod on it, and the pod's status."""
    meta = {"name": pod, "namespace": SYSTEM, "labels": {"app.kubernetes.io/name": "faultd"}}
    one = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}
    its = {"apiVersion": "v1", "kind": "Pod", "metadata": meta}
    ports = [{"name": "grpc", "containerPort": port}]
    spec = {"nodeName": node, "containers": [{"name": "faultd", "image": "none", "ports": ports}]}
    ready = {"type": "Ready", "status": "True"}
    endpoint = {"kubeletEndpoint": {"Port": kubelet_port}}
    address = [{"type": "InternalIP", "address": "127.0.0.1"}]
    return (
        one,
        {**one, "status": {"addresses": address, "daemonEndpoints": endpoint}},
        {**its, "spec": spec},
        {**its, "status": {"phase": "Running", "podIP": "127.0.0.1", "conditions": [ready]}},
    )


class Agent:
    """faultd on loopback; start() after kill() is a successor at another port.

    home: its certificates are in there, as `mount` puts them.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = 0
        self._child: subprocess.Popen[bytes] | None = None

    def mount(self, files: Mapping[str, bytes]) -> None:
        """Put a Secret's files there as a kubelet does: all change at once, by one rename."""
        new = self.home / f"..{secrets.token_hex(4)}"
        new.mkdir()
        for name, data in files.items():
            (new / name).write_bytes(data)
            if not (self.home / name).is_symlink():
                (self.home / name).symlink_to(Path("..data", name))
        link = self.home / "..data_tmp"
        link.symlink_to(new.name)
        link.rename(self.home / "..data")

    def start(self) -> None:
        self.port = free_port()
        log = self.home / f"log-{self.port}"
        argv = [sys.executable, "-m", "nodeagent.main", "--no-modprobe"]
        argv += ["--state-dir", str(self.home / "state")]
        argv += ["--listen", f"tcp://127.0.0.1:{self.port}"]
        for name, option in CERTS.items():
            argv += [option, str(self.home / name)]
        with log.open("wb") as sink:
            self._child = subprocess.Popen(argv, stdout=sink, stderr=sink)
        end = time.monotonic() + 60
        while b"ready on" not in log.read_bytes():
            assert self._child.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.05)

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self._child is not None
        self._child.send_signal(number)
        self._child.wait(60)
