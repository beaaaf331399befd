"""The read-only root image of a Debian release, and what is taken out of it for booting.

A raw ext4 file: QEMU needs no decoding, all nodes share it in the host's page
cache, and the guest lays a tmpfs over it. Root makes it straight from a folder;
other users get one from mmdebstrap's user namespace by way of a tar archive.
"""

from __future__ import annotations

import json
import lzma
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from controller.lab import bzimage, cache, proc, sources
from controller.lab.flavours import PACKAGES, Flavour
from nodeagent.model.errors import Refused

RECIPE = 3  # raise it when this file makes a different image from the same inputs
BUILD_TIMEOUT = 1800.0  # seconds, for each step
# Before the root is there nothing can be loaded from it; the rest may be built in.
BOOT_MODULES = ("virtio_pci", "virtio_blk", "virtio_console", "ext4", "overlay", "virtio_net")
LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*")
# Enough of the guest's Python to compile sources for it on the host.
PYTHON_LIBS = ("ld-linux-x86-64.so*", "libc.so*", "libm.so*", "libz.so*", "libexpat.so*")


@dataclass(frozen=True)
class Image:
    """Paths of one built image; `modules` are in loading order."""

    home: Path

    @property
    def root(self) -> Path:
        return self.home / "root.ext4"

    @property
    def vmlinuz(self) -> Path:
        return self.home / "vmlinuz"

    @property
    def busybox(self) -> Path:
        return self.home / "busybox"

    @property
    def release(self) -> str:
        """The kernel's release, as uname(2) will say it."""
        return bzimage.release(self.vmlinuz.read_bytes())

    @property
    def modules(self) -> list[Path]:
        order = json.loads((self.home / "modules.json").read_text())
        return [self.home / "modules" / name for name in order]

    @property
    def modules_dep(self) -> str:
        """modules.dep(5) of a flat folder of these modules, each after all before it."""
        names = [path.name for path in self.modules]
        lines = [f"{name}: {' '.join(reversed(names[:i]))}" for i, name in enumerate(names)]
        return "\n".join(lines) + "\n"

    @property
    def python(self) -> Path:
        return self.home / "python"


def recipe(flavour: Flavour) -> dict[str, object]:
    """Everything that decides the image's content, mirrors and dates apart."""
    return {
        "recipe": RECIPE,
        "suite": flavour.suite,
        "kernel": flavour.kernel_package,
        "packages": [*PACKAGES, *flavour.more],
        "left_out": list(LEFT_OUT),
        "boot_modules": list(BOOT_MODULES),
        "python": flavour.python,
    }


def ensure(flavour: Flavour, progress: proc.Progress = proc.quiet) -> Image:
    """The flavour's root image, built when the cache has none (about a minute)."""
    key = f"{flavour.suite}-{cache.digest(recipe(flavour))}"
    return Image(
        cache.build_once("images", key, lambda out: _build(flavour, out, progress), progress)
    )


def _build(flavour: Flavour, out: Path, progress: proc.Progress) -> None:
    proc.require("mmdebstrap", "mke2fs")
    root = out / "tree"
    progress(f"building the root image of {flavour.suite} (downloads about 200 MB)")
    if os.geteuid() == 0:
        _debootstrap(flavour, root, "root", progress)
        _pack(flavour, root, out, progress)
        shutil.rmtree(root)
    else:
        _build_unprivileged(flavour, out, progress)
    progress(f"root image of {flavour.suite} is ready")


def _build_unprivileged(flavour: Flavour, out: Path, progress: proc.Progress) -> None:
    """A second copy of this module runs under fakeroot, so that owners are kept."""
    proc.require("fakeroot", "newuidmap", "tar")
    tar = out / "tree.tar"
    _debootstrap(flavour, tar, "unshare", progress)
    script = (
        "import sys; from pathlib import Path; from controller.lab import image;"
        "image.pack_tar(sys.argv[1], Path(sys.argv[2]))"
    )
    argv = ["fakeroot", sys.executable, "-c", script, flavour.name, str(out)]
    proc.run(argv, timeout=BUILD_TIMEOUT, progress=progress, env=_import_path())
    tar.unlink()


def _import_path() -> dict[str, str]:
    """So that a child imports what we import, from where we do."""
    here = str(Path(__file__).parents[2])
    return {"PYTHONPATH": os.pathsep.join([here, *filter(None, sys.path)])}


def pack_tar(name: str, out: Path) -> None:
    """Under fakeroot: unpack tree.tar and make the image from it."""
    from controller.lab.flavours import flavour

    root = out / "tree"
    root.mkdir()
    argv = ["tar", "-C", str(root), "--exclude=./dev/*", "-xf", str(out / "tree.tar")]
    proc.run(argv, timeout=BUILD_TIMEOUT)
    _pack(flavour(name), root, out, proc.quiet)
    proc.run(["chmod", "-R", "u+rwX", str(root)], timeout=BUILD_TIMEOUT)
    shutil.rmtree(root)


def _debootstrap(flavour: Flavour, target: Path, mode: str, progress: proc.Progress) -> None:
    mirrors = sources.mirrors()
    argv = ["mmdebstrap", "--variant=minbase", f"--mode={mode}"]
    argv += [f"--include={','.join([flavour.kernel_package, *PACKAGES, *flavour.more])}"]
    argv += [f"--dpkgopt=path-exclude={glob}" for glob in LEFT_OUT]
    argv += ['--aptopt=APT::Install-Recommends "false"', '--aptopt=Acquire::Retries "3"']
    argv += [flavour.suite, str(target)]
    argv += mirrors.lines(flavour.suite) if mirrors else []
    # INITRD=No: the kernel's hook would spend its time on an initrd that nobody boots.
    env = {"INITRD": "No", "DEBIAN_FRONTEND": "noninteractive"}
    proc.run(argv, timeout=BUILD_TIMEOUT, progress=progress, env=env)


def _pack(flavour: Flavour, root: Path, out: Path, progress: proc.Progress) -> None:
    kernels = sorted((root / "boot").glob("vmlinuz-*"))
    if len(kernels) != 1:
        raise Refused("the root image has not one kernel", f"found {len(kernels)} in /boot")
    release = kernels[0].name.removeprefix("vmlinuz-")
    shutil.copyfile(kernels[0], out / "vmlinuz")
    shutil.copyfile(root / "boot" / f"config-{release}", out / "config")
    shutil.copy(root / "usr/bin/busybox", out / "busybox")
    _take_modules(root / "usr/lib/modules" / release, out)
    _take_python(flavour, root, out / "python")
    shutil.rmtree(root / "boot")
    (root / "boot").mkdir()
    for name in ("lib", "code", "guest"):
        (root / "opt/faultctl" / name).mkdir(parents=True, exist_ok=True)
    progress("writing the ext4 image")
    make_ext4(root, out / "root.ext4", label="lab-root")


def _take_modules(tree: Path, out: Path) -> None:
    (out / "modules").mkdir()
    order: list[str] = []
    for path in load_order((tree / "modules.dep").read_text(), BOOT_MODULES):
        data = (tree / path).read_bytes()
        name = Path(path).name.removesuffix(".xz")
        (out / "modules" / name).write_bytes(
            lzma.decompress(data) if path.endswith(".xz") else data
        )
        order.append(name)
    (out / "modules.json").write_text(json.dumps(order))


def load_order(modules_dep: str, wanted: tuple[str, ...]) -> list[str]:
    """Paths of the wanted modules and what they need, needed ones first (pure).

    modules.dep(5): `PATH: DEP DEP ...`. A wanted name that is not there is
    built into the kernel (or the boot will say that it is missing).
    """
    needs: dict[str, list[str]] = {}
    for line in modules_dep.splitlines():
        path, _, rest = line.partition(":")
        needs[path] = rest.split()
    by_name = {Path(path).name.split(".")[0].replace("-", "_"): path for path in needs}
    order: list[str] = []

    def add(path: str) -> None:
        for need in needs.get(path, []):
            add(need)
        if path not in order:
            order.append(path)

    for name in wanted:
        if name in by_name:
            add(by_name[name])
    return order


def _take_python(flavour: Flavour, root: Path, out: Path) -> None:
    """The guest's interpreter and its standard library, to make .pyc files with."""
    name = f"python{flavour.python}"
    (out / "bin").mkdir(parents=True)
    shutil.copy(root / "usr/bin" / name, out / "bin" / name)
    skip = shutil.ignore_patterns("test", "tests", "idlelib", "tkinter", "__pycache__", "lib2to3")
    shutil.copytree(root / "usr/lib" / name, out / "lib" / name, symlinks=True, ignore=skip)
    (out / "so").mkdir()
    for pattern in PYTHON_LIBS:
        for path in (root / "usr/lib/x86_64-linux-gnu").glob(pattern):
            shutil.copy(path, out / "so" / path.name)


def make_ext4(tree: Path, target: Path, *, label: str) -> None:
    """A read-only ext4 file of a folder's content, with a little room for metadata.

    No journal and no reserved blocks: nobody ever writes to it.
    """
    used = files = 0
    for folder, dirs, names in os.walk(tree):
        files += len(dirs) + len(names)
        used += (
            sum((os.lstat(os.path.join(folder, name)).st_size + 4095) & ~4095 for name in names)
            + 4096
        )
    size = (used + files * 320 + (16 << 20)) * 104 // 100
    argv = ["mke2fs", "-q", "-t", "ext4", "-L", label, "-m", "0", "-b", "4096"]
    argv += ["-O", "^has_journal,^resize_inode", "-N", str(files + 1000)]
    argv += ["-d", str(tree), str(target), f"{size >> 10}k"]
    proc.run(argv, timeout=BUILD_TIMEOUT)
