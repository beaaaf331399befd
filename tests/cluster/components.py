"""The Kubernetes components of the tests: one multi-call program, built once from Go modules.

    components.ensure()      # folder with kube-apiserver, kubelet, kubectl, etcd, ... in it

The build takes some minutes on two cores; it is cached by the content of tests/cluster/kube.
`python tests/cluster/components.py` builds it beforehand, and cert-manager's controllers.
"""

from __future__ import annotations

import re
from pathlib import Path

from gobuild import SOURCES, Module

from controller.lab import proc

HERE = Path(__file__).parent / "kube"
PROGRAM = "components"
NAMES = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
)


def version() -> str:
    """The release of Kubernetes that go.mod asks for, as `v1.36.3`."""
    found = re.search(r"k8s\.io/kubernetes (v[0-9.]+)", (HERE / "go.mod").read_text())
    if found is None:
        raise ValueError("go.mod does not require k8s.io/kubernetes")
    return found[1]


def _flags(release: str) -> str:
    major, minor = release.removeprefix("v").split(".")[:2]
    said = {"gitVersion": release, "gitMajor": major, "gitMinor": minor}
    said["gitTreeState"] = "clean"
    flags = ["-s", "-w"]
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
        flags += [f"-X {package}.{name}={value}" for name, value in said.items()]
    return " ".join(flags)


def _name_all(out: Path) -> None:
    for name in NAMES:
        (out / name).symlink_to(PROGRAM)


def ensure(progress: proc.Progress = proc.quiet) -> Path:
    """The folder with all components, built when the cache has none."""
    release = version()
    sources = [HERE / name for name in SOURCES]
    what = f"Kubernetes {release} and etcd (some minutes)"
    module = Module("kubernetes", release, PROGRAM, sources, what, _flags(release), _name_all)
    return module.ensure(progress)


if __name__ == "__main__":
    import certmanager

    print(ensure(print))
    print(certmanager.ensure(print))
