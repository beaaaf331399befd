"""What a test does with a cluster's API."""

from __future__ import annotations

import json
import secrets
import subprocess
from pathlib import Path
from typing import Any

from control import ControlPlane


class Api:
    """One cluster's API as its administrator."""

    def __init__(self, kubeconfig: Path, binaries: Path, plane: ControlPlane | None) -> None:
        self.kubeconfig, self.binaries, self.plane = kubeconfig, binaries, plane
        self._namespaces: list[str] = []
        self.made: set[str] = set()
        """Namespaces of tests, gone by now or about to be: pods that no kubelet ends hold them."""

    def kubectl(
        self, *arguments: str, check: bool = True, stdin: str | None = None, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Raises RuntimeError with what kubectl said when it fails."""
        done = subprocess.run(
            [str(self.binaries / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr or done.stdout}")
        return done

    def json(self, *arguments: str) -> Any:
        """What `kubectl ... -o json` prints."""
        return json.loads(self.kubectl(*arguments, "-o", "json").stdout)

    def apply(self, *objects: dict[str, Any], subresource: str = "") -> None:
        """Server-side apply of objects as data; subresource `status` writes their status."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        extra = [f"--subresource={subresource}"] if subresource else []
        self.kubectl("apply", "--server-side", "--force-conflicts", *extra, "-f", "-", stdin=text)

    def namespace(self, prefix: str = "test") -> str:
        """A new namespace with its default service account."""
        name = f"{prefix}-{secrets.token_hex(3)}"
        self.kubectl("create", "namespace", name)
        self._namespaces.append(name)
        self.made.add(name)
        self.kubectl("wait", "--for=create", "-n", name, "serviceaccount/default", timeout=90)
        return name

    def sweep(self) -> None:
        """Delete the namespaces of a test."""
        while self._namespaces:
            self.kubectl("delete", "namespace", self._namespaces.pop(), "--wait=false")
