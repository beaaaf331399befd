"""Container images for the test cluster, built without a daemon and cached by their inputs.

    images.agent()      # archive of the image that Dockerfile.node builds
    images.small()      # archives of `pause` and `busybox`, made here: no registry is at hand
    images.database()   # archive of `postgres`: PostgreSQL as Debian packages it

buildah works with chroot isolation and the vfs driver, so that it needs neither a container
runtime nor overlayfs. The base image is made of Debian packages and has the name of the real one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from controller.lab import cache, image, proc, sources
from controller.lab.flavours import FLAVOURS

ROOT = Path(__file__).resolve().parents[2]
SUITE = "trixie"
BASE = f"docker.io/library/debian:{SUITE}-slim"
AGENT, PAUSE, BUSYBOX, POSTGRES = (
    f"localhost/faultctl/{name}:test" for name in ("node", "pause", "busybox", "postgres")
)
INPUTS = (
    ".dockerignore",
    "Dockerfile.node",
    "bpf",
    "constraints.txt",
    "controller",
    "daemonset/image",
    "nodeagent",
    "protos",
    "pyproject.toml",
)
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
BUILD_TIMEOUT = 2400.0  # seconds; 2 minutes on two idle cores
PAUSE_SOURCE = b"#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"
proc.PACKAGE_OF.setdefault("buildah", "buildah")


def _buildah(*arguments: str, progress: proc.Progress = proc.quiet) -> str:
    store = cache.cache_dir() / "buildah"
    argv = ["buildah", "--root", str(store / "root"), "--runroot", str(store / "run")]
    env = {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
    return proc.run([*argv, *arguments], timeout=BUILD_TIMEOUT, progress=progress, env=env)


def _has(name: str) -> bool:
    return name in _buildah("images", "--format", "{{.Name}}:{{.Tag}}").split()


def _from_tree(tree: Path, name: str, *config: str) -> None:
    """Commit a folder or tar archive as an image."""
    container = _buildah("from", "scratch").strip()
    _buildah("add", "-q", container, str(tree), "/")
    if config:
        _buildah("config", *config, container)
    _buildah("commit", "-q", "--rm", "--timestamp", "0", container, name)


def _base(progress: proc.Progress) -> None:
    if _has(BASE):
        return
    _debian(BASE, (), progress)


def _debian(name: str, packages: tuple[str, ...], progress: proc.Progress) -> None:
    """An image of Debian's minimal base and some packages."""
    progress(f"making {name} from Debian packages")
    proc.require("mmdebstrap", "buildah")
    work = cache.cache_dir() / "buildah" / f"{name.replace('/', '-')}.tar"
    work.parent.mkdir(parents=True, exist_ok=True)
    mirrors = sources.mirrors()
    argv = ["mmdebstrap", "--variant=minbase", "--mode=root"]
    argv += [f"--include={package}" for package in packages]
    argv += [f"--dpkgopt=path-exclude={glob}" for glob in image.LEFT_OUT]
    argv += [SUITE, str(work), *(mirrors.lines(SUITE) if mirrors else [])]
    proc.run(argv, timeout=BUILD_TIMEOUT, progress=progress)
    _from_tree(work, name)
    work.unlink()


def _files() -> Iterator[Path]:
    for name in INPUTS:
        path = ROOT / name
        inner = path.rglob("*") if path.is_dir() else [path]
        yield from sorted(p for p in inner if p.is_file() and "__pycache__" not in p.parts)


def key() -> str:
    """Names the content of everything that the agent's image is made of."""
    digest = hashlib.sha256()
    for path in _files():
        digest.update(f"{path.relative_to(ROOT)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:20]


def prune(kind: str, keep: int = 4) -> None:
    """Remove all but the newest builds of a kind: each edit of the agent makes another one."""
    built = [path for path in (cache.cache_dir() / kind).glob("[!.]*") if path.is_dir()]
    for path in sorted(built, key=lambda p: p.stat().st_mtime)[:-keep]:
        shutil.rmtree(path, ignore_errors=True)


def agent(progress: proc.Progress = proc.quiet) -> Path:
    """The docker-archive of the agent's image."""

    def build(out: Path) -> None:
        proc.require("buildah")
        (cache.cache_dir() / "buildah").mkdir(parents=True, exist_ok=True)
        _base(progress)
        progress("building Dockerfile.node")
        argv = ["bud", "--pull-never", "--layers", "--timestamp", "0", "--format", "docker"]
        argv += ["-f", str(ROOT / "Dockerfile.node"), "-t", AGENT]
        if CA_BUNDLE.exists():  # packages may come through a proxy that only this host trusts
            argv += ["-v", f"{CA_BUNDLE}:/host-ca.crt:ro", "--build-arg", "PIP_CERT=/host-ca.crt"]
        _buildah(*argv, str(ROOT), progress=progress)
        _buildah("push", "-q", AGENT, f"docker-archive:{out / 'agent.tar'}:{AGENT}")

    found = cache.build_once("agent-images", key(), build, progress)
    prune("agent-images")
    return found / "agent.tar"


def small(progress: proc.Progress = proc.quiet) -> Path:
    """A folder with the archives of the images that hold one static program each."""

    def build(out: Path) -> None:
        proc.require("buildah", "gcc")
        (cache.cache_dir() / "buildah").mkdir(parents=True, exist_ok=True)
        tree = out / "pause"
        tree.mkdir()
        argv = ["gcc", "-x", "c", "-", "-static", "-s", "-o", str(tree / "pause")]
        proc.run(argv, timeout=60, stdin=PAUSE_SOURCE)
        _from_tree(tree, PAUSE, "--entrypoint", '["/pause"]')
        tools = out / "busybox"
        (tools / "bin").mkdir(parents=True)
        (tools / "tmp").mkdir()
        shutil.copy(image.ensure(FLAVOURS["debian-13"], progress).busybox, tools / "bin/busybox")
        names = proc.run([str(tools / "bin/busybox"), "--list"], timeout=30).split()
        for name in names:
            if name != "busybox":
                os.symlink("busybox", tools / "bin" / name)
        _from_tree(tools, BUSYBOX, "--env", "PATH=/bin", "--cmd", '["sh"]')
        for name, folder in ((PAUSE, tree), (BUSYBOX, tools)):
            _buildah("push", "-q", name, f"docker-archive:{out / folder.name}.tar:{name}")
            shutil.rmtree(folder)

    recipe = {"pause": PAUSE_SOURCE.decode(), "busybox": 1}
    return cache.build_once("small-images", cache.digest(recipe), build, progress)


def database(progress: proc.Progress = proc.quiet) -> Path:
    """The docker-archive of PostgreSQL's image."""
    packages = ("postgresql",)

    def build(out: Path) -> None:
        _debian(POSTGRES, packages, progress)
        _buildah("push", "-q", POSTGRES, f"docker-archive:{out / 'postgres.tar'}:{POSTGRES}")

    recipe = {"suite": SUITE, "packages": list(packages), "left out": list(image.LEFT_OUT)}
    found = cache.build_once("database-images", cache.digest(recipe), build, progress)
    return found / "postgres.tar"
