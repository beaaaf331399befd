"""A disk for lab nodes with everything a Kubernetes node has: container runtime, CNI plugins,
kubelet, and the images already unpacked, so that an emulated node need not do it."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import time
from pathlib import Path

import components
import images

from controller.lab import cache, proc, sources
from controller.lab.image import make_ext4

RECIPE = 2
SUITE = "trixie"
PACKAGES = ("conntrack", "containerd", "containernetworking-plugins", "runc")
PROGRAMS = ("bin/containerd*", "bin/ctr", "sbin/runc", "sbin/conntrack", "lib/cni/*")
KEPT = tuple(f"usr/{name}" for name in PROGRAMS)
LIBRARIES = ("libseccomp.so*", "libnetfilter_conntrack.so*", "libnfnetlink.so*", "libmnl.so*")
SIZE = 4 << 30  # bytes; sparse
TIMEOUT = 900.0


def _runtime(progress: proc.Progress) -> Path:
    """Containerd, runc and the plugins, unpacked from Debian's packages."""

    def build(out: Path) -> None:
        proc.require("mmdebstrap")
        progress("unpacking containerd, runc and the CNI plugins")
        mirrors = sources.mirrors()
        argv = ["mmdebstrap", "--variant=extract", "--mode=root", f"--include={','.join(PACKAGES)}"]
        argv += [SUITE, str(out / "all"), *(mirrors.lines(SUITE) if mirrors else [])]
        proc.run(argv, timeout=TIMEOUT, progress=progress)
        libraries = [f"usr/lib/x86_64-linux-gnu/{name}" for name in LIBRARIES]
        for pattern in (*KEPT, *libraries):
            for path in (out / "all").glob(pattern):
                target = out / "tree" / path.relative_to(out / "all")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target, follow_symlinks=False)
        shutil.rmtree(out / "all")

    recipe = {"packages": list(PACKAGES), "kept": [*KEPT, *LIBRARIES], "suite": SUITE}
    return cache.build_once("container-runtime", cache.digest(recipe), build, progress) / "tree"


def _import(tree: Path, archives: list[Path], work: Path) -> None:
    """Let the node's own containerd, run here for a moment, unpack images below the tree."""
    socket = work / "c.sock"
    config = work / "config.toml"
    config.write_text(
        f'version = 2\nroot = "{tree}/var/containerd"\nstate = "{work}/state"\n'
        f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\n  address = "{socket}"\n'
    )
    log = (work / "containerd.log").open("ab")
    argv = ["setpriv", "--pdeathsig", "KILL", str(tree / "usr/bin/containerd"), "-c", str(config)]
    with log, subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as child:
        try:
            end = time.monotonic() + 60
            while not socket.exists():
                if child.poll() is not None or time.monotonic() > end:
                    raise RuntimeError((work / "containerd.log").read_text()[-2000:])
                time.sleep(0.1)
            ctr = [str(tree / "usr/bin/ctr"), "-a", str(socket), "-n", "k8s.io", "images"]
            for archive in archives:
                proc.run([*ctr, "import", "--local", str(archive)], timeout=TIMEOUT)
        finally:
            child.terminate()
            child.wait(30)


_made: list[Path] = []


def ensure(progress: proc.Progress = proc.quiet) -> Path:
    """The disk's image, built when the cache has none; once a process, whatever is edited."""
    if not _made:
        _made.append(_ensure(progress))
    return _made[0]


def _ensure(progress: proc.Progress) -> Path:
    programs = components.ensure(progress)
    runtime = _runtime(progress)
    archives = [images.agent(progress), images.database(progress)]
    archives += sorted(images.small(progress).glob("*.tar"))
    parts = [str(RECIPE), programs.name, runtime.parent.name, *(a.parent.name for a in archives)]
    name = hashlib.sha256(" ".join(parts).encode()).hexdigest()[:20]

    def build(out: Path) -> None:
        progress("packing the disk of a Kubernetes node")
        tree, work = out / "tree", out / "work"
        shutil.copytree(runtime, tree, symlinks=True)
        work.mkdir()
        for folder in ("bin", "var/containerd", "var/kubelet"):
            (tree / folder).mkdir(parents=True)
        shutil.copy2(programs / "components", tree / "bin/components")
        for component in ("kubelet", "kube-proxy", "kubectl"):
            (tree / "bin" / component).symlink_to("components")
        _import(tree, archives, work)
        make_ext4(tree, out / "node.ext4", label="kube")
        grow = ["resize2fs", str(out / "node.ext4"), f"{SIZE >> 10}k"]
        proc.run(["truncate", "-s", str(SIZE), str(out / "node.ext4")], timeout=60)
        proc.run(grow, timeout=TIMEOUT)
        # Nodes write to it and lose their power: without a journal they lose what was synced too.
        proc.run(["tune2fs", "-J", "size=32", str(out / "node.ext4")], timeout=TIMEOUT)
        shutil.rmtree(tree)
        shutil.rmtree(work)

    found = cache.build_once("kubernetes-nodes", name, build, progress)
    images.prune("kubernetes-nodes")
    return found / "node.ext4"


if __name__ == "__main__":
    print(ensure(print))
