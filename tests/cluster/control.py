"""A control plane of real components as processes of this host, ended with their owner."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pki
from forward import Forward

ADMIN, LIMITED = "admin", "limited"
NODES = tuple(f"node-{letter}" for letter in "ab")
READY_S = 120.0  # seconds until /readyz; 3 s on an idle machine
ADVERTISED = "10.77.0.1"  # a loopback address is refused; see controller/lab/network.py


def free_port() -> int:
    """A TCP port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ControlPlane:
    """etcd, kube-apiserver and kube-controller-manager; with `scheduler` kube-scheduler too.

    netns: name of a network namespace (ip-netns(8)) that they run in; they then also listen on
    ADVERTISED, for the nodes in it, and `url` leads there from this host's loopback.
    """

    def __init__(
        self, home: Path, binaries: Path, *, netns: str | None = None, scheduler: bool = False
    ) -> None:
        self.home, self.binaries, self.netns = home, binaries, netns
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self.port = free_port()
        self._etcd, self._peer = free_port(), free_port()
        self.pki = pki.Pki(home / "pki", ("127.0.0.1", "localhost", ADVERTISED, "10.96.0.1"))
        self.pki.user(ADMIN, "system:masters")
        self.pki.user(LIMITED)
        self.pki.user("system:kube-controller-manager", "system:masters")
        self.pki.user("system:kube-scheduler", "system:masters")
        for name in NODES:
            self.pki.user(f"system:node:{name}", "system:nodes")
        self._scheduler = scheduler
        self._forward: Forward | None = None

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def inner_url(self) -> str:
        """The address for nodes in the network namespace."""
        return f"https://{ADVERTISED}:{self.port}"

    def kubeconfig(self, user: str = ADMIN, url: str | None = None, token: str = "") -> Path:
        """A kubeconfig file for a user of the cluster; `token` replaces the user's own."""
        data = base64.b64encode(self.pki.ca.read_bytes()).decode()
        cluster = {"server": url or self.url, "certificate-authority-data": data}
        secret = token or self.pki.users[user].token
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": secret}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
        }
        name = f"{user.replace(':', '-')}-{len(list(self.home.glob('*.kubeconfig')))}.kubeconfig"
        path = self.home / name
        path.touch(mode=0o600)
        path.write_text(json.dumps(config))
        return path

    def start(self) -> None:
        """Start everything and wait until the API server is ready."""
        etcd = f"http://127.0.0.1:{self._etcd}"
        peer = f"http://127.0.0.1:{self._peer}"
        self._spawn(
            "etcd",
            [
                *("--data-dir", str(self.home / "etcd"), "--name", "test", "--unsafe-no-fsync"),
                *("--listen-client-urls", etcd, "--advertise-client-urls", etcd),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"test={peer}", "--log-level", "warn"),
            ],
        )
        self._spawn("kube-apiserver", self._apiserver(etcd))
        if self.netns:
            self._forward = Forward(f"/run/netns/{self.netns}", self.port)
        self.wait_ready()
        self._spawn("kube-controller-manager", self._manager())
        if self._scheduler:
            self._spawn("kube-scheduler", self._client("system:kube-scheduler"))

    def _apiserver(self, etcd: str) -> list[str]:
        p = self.pki
        listen = "0.0.0.0" if self.netns else "127.0.0.1"  # noqa: S104 - of the namespace
        return [
            *(f"--etcd-servers={etcd}", f"--secure-port={self.port}", f"--bind-address={listen}"),
            *(f"--advertise-address={ADVERTISED}", "--endpoint-reconciler-type=none"),
            *(f"--tls-cert-file={p.cert}", f"--tls-private-key-file={p.key}"),
            *(f"--client-ca-file={p.ca}", f"--token-auth-file={p.tokens}"),
            *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
            *("--allow-privileged=true", "--service-cluster-ip-range=10.96.0.0/16"),
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={p.accounts_public}",
            f"--service-account-signing-key-file={p.accounts}",
            f"--kubelet-client-certificate={p.kubelet_cert}",
            f"--kubelet-client-key={p.kubelet_key}",
            "--kubelet-preferred-address-types=InternalIP",
        ]

    def _client(self, user: str) -> list[str]:
        config = self.kubeconfig(user)
        return [
            *(f"--kubeconfig={config}", "--leader-elect=false", "--bind-address=127.0.0.1"),
            f"--secure-port={free_port()}",
        ]

    def _manager(self) -> list[str]:
        return [
            *self._client("system:kube-controller-manager"),
            *(f"--service-account-private-key-file={self.pki.accounts}",),
            *(f"--root-ca-file={self.pki.ca}", "--node-monitor-grace-period=60s"),
        ]

    def _spawn(self, name: str, arguments: Sequence[str]) -> None:
        log = (self.home / f"{name}.log").open("ab")
        inside = ["ip", "netns", "exec", self.netns] if self.netns else []
        # Whatever ends the tests ends these too; both programs exec, so that the pid stays.
        argv = [*inside, "setpriv", "--pdeathsig", "KILL", str(self.binaries / name), *arguments]
        with log:
            self._children[name] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.home
            )

    def log(self, name: str, lines: int = 15) -> str:
        """The last lines of what a component said."""
        text = (self.home / f"{name}.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def wait_ready(self, deadline_s: float = READY_S) -> None:
        """Raises RuntimeError with the log when the API server is not ready in time."""
        end = time.monotonic() + deadline_s
        while True:
            for name, child in self._children.items():
                if child.poll() is not None:
                    raise RuntimeError(f"{name} ended with {child.returncode}: {self.log(name)}")
            done = self.kubectl("get", "--raw", "/readyz", check=False)
            if done.returncode == 0:
                return
            if time.monotonic() > end:
                said = self.log("kube-apiserver")
                raise RuntimeError(f"the API server is not ready: {done.stderr}\n{said}")
            time.sleep(0.2)

    def kubectl(
        self, *arguments: str, check: bool = True, stdin: str | None = None, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """kubectl as the administrator."""
        if not hasattr(self, "_admin"):
            self._admin = self.kubeconfig()
        argv = [str(self.binaries / "kubectl"), f"--kubeconfig={self._admin}", *arguments]
        env = {**os.environ, "HOME": str(self.home), "KUBECONFIG": ""}
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, timeout=timeout, env=env, check=False
        )
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr or done.stdout}")
        return done

    def json(self, *arguments: str) -> Any:
        """What kubectl prints as JSON."""
        return json.loads(self.kubectl(*arguments, "-o", "json").stdout)

    def kill(self, name: str) -> None:
        """End one component at once."""
        child = self._children.pop(name)
        child.kill()
        child.wait()

    def close(self) -> None:
        """End all, the last started first."""
        for name in reversed(list(self._children)):
            self.kill(name)
        if self._forward is not None:
            self._forward.close()
