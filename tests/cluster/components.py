"""The Kubernetes components of the tests: one multi-call program, built once from Go modules.

    components.ensure()      # folder with kube-apiserver, kubelet, kubectl, etcd, ... in it

The build takes some minutes on two cores; it is cached by the content of tests/cluster/kube.
`python tests/cluster/components.py` builds it beforehand.
"""

from __future__ import annotations

import re
from pathlib import Path

from controller.lab import cache, proc
from nodeagent.model.errors import Refused

HERE = Path(__file__).parent / "kube"
NAMES = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
)
BUILD_TIMEOUT = 3600.0  # seconds; about 6 minutes were measured on two cores beside other work
SOURCES = ("go.mod", "go.sum", "main.go")


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


def ensure(progress: proc.Progress = proc.quiet) -> Path:
    """The folder with all components, built when the cache has none."""
    recipe = {name: (HERE / name).read_text() for name in SOURCES}
    key = f"{version()}-{cache.digest({**recipe, 'flags': _flags(version())})}"

    def build(out: Path) -> None:
        if proc.find("go") is None:
            raise Refused(
                "the test cluster needs Go", "its components are built", "install Go 1.26 or newer"
            )
        progress(f"building Kubernetes {version()} and etcd (some minutes)")
        argv = ["nice", "go", "build", "-trimpath", f"-ldflags={_flags(version())}"]
        env = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}
        target = out / "components"
        proc.run(
            [*argv, "-o", str(target), "."],
            timeout=BUILD_TIMEOUT,
            progress=progress,
            env=env,
            cwd=HERE,
        )
        for name in NAMES:
            (out / name).symlink_to(target.name)

    return cache.build_once("kubernetes", key, build, progress)


if __name__ == "__main__":
    print(ensure(print))
