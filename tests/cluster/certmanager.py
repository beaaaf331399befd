"""cert-manager for tests: its CRDs, and its controllers as a process of this host.

    certmanager.ensure()     # folder with the program and `crds/`, built once from Go modules

Its webhook is not there: what it would refuse or fill in is not seen here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from gobuild import ENV, SOURCES, Module

from controller.lab import proc

HERE = Path(__file__).parent / "certmanager"
MODULE, PROGRAM = "github.com/cert-manager/cert-manager", "cert-manager"
LIST_TIMEOUT = 120.0  # seconds


def version() -> str:
    """The release of cert-manager that go.mod asks for."""
    found = re.search(rf"{re.escape(MODULE)} (v[0-9.]+)", (HERE / "go.mod").read_text())
    if found is None:
        raise ValueError(f"go.mod does not require {MODULE}")
    return found[1]


def _take_crds(out: Path) -> None:
    argv = ["go", "list", "-m", "-f", "{{.Dir}}", MODULE]
    source = Path(proc.run(argv, timeout=LIST_TIMEOUT, env=ENV, cwd=out).strip())
    (out / "crds").mkdir()
    for path in (source / "deploy" / "crds").glob("cert-manager.io_*.yaml"):
        shutil.copyfile(path, out / "crds" / path.name)


def ensure(progress: proc.Progress = proc.quiet) -> Path:
    """The folder with the controllers and the CRDs, built when the cache has none."""
    release = version()
    sources = [HERE / name for name in SOURCES]
    what = f"cert-manager {release} (some minutes)"
    module = Module("cert-manager", release, PROGRAM, sources, what, "-s -w", _take_crds)
    return module.ensure(progress)


class CertManager:
    """The controllers, at work in one namespace until close()."""

    def __init__(self, kubeconfig: Path, namespace: str, log: Path) -> None:
        self.log = log
        # Whatever ends the tests ends it too.
        argv = ["setpriv", "--pdeathsig", "KILL", str(ensure() / PROGRAM)]
        argv += [f"--kubeconfig={kubeconfig}", f"--namespace={namespace}"]
        with log.open("ab") as sink:
            self._child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, cwd=log.parent
            )

    def said(self, lines: int = 15) -> str:
        """Whether it still runs, and its last lines."""
        text = self.log.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join([f"cert-manager: exit status {self._child.poll()}", *text])

    def close(self) -> None:
        self._child.terminate()
        try:
            self._child.wait(20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
