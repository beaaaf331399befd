"""The initial RAM disk of a node: a cached base and, behind it, the code under test."""

from __future__ import annotations

from pathlib import Path

import controller
import nodeagent
import protos
from controller.lab import cpio, pyc
from controller.lab.image import Image

GUEST = Path(__file__).parent / "guest"
CODE = "opt/faultctl/code"
_WRAPPER = (
    "#!/bin/sh\nexport PYTHONPATH=/opt/faultctl/code:/opt/faultctl/lib\n"
    'exec /usr/bin/python3 -m {module} "$@"\n'
)


FOLDERS = ("proc", "sys", "dev", "newroot", "lower", "layer", f"rootfs/{CODE}")


def base(image: Image, *, modules: bool) -> list[cpio.Entry]:
    """Static busybox, the modules that a boot needs, and what uses them."""
    entries = [cpio.directory(path) for path in FOLDERS]
    entries.append(cpio.file("bin/busybox", image.busybox.read_bytes(), 0o755))
    entries.append(cpio.file("init", (GUEST / "init.sh").read_bytes(), 0o755))
    for table in sorted(GUEST.glob("fstab.*")):
        entries.append(cpio.file(f"etc/{table.name}", table.read_bytes()))
    if modules and image.modules:
        home = f"lib/modules/{image.release}"
        entries += [cpio.file(f"{home}/{path.name}", path.read_bytes()) for path in image.modules]
        entries.append(cpio.file(f"{home}/modules.dep", image.modules_dep.encode()))
        names = " ".join(path.stem for path in image.modules)
        entries.append(cpio.file("modules.list", f"{names}\n".encode()))
    return entries


def code_sources() -> dict[str, Path]:
    """Files of the code under test by guest path: packages and compiled BPF objects."""
    found: dict[str, Path] = {}
    for package in (controller, nodeagent, protos):
        top = Path(next(iter(package.__path__)))
        for path in sorted(top.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
                found[f"/{CODE}/{top.name}/{path.relative_to(top)}"] = path
    return found


def code(image: Image, python: str) -> list[cpio.Entry]:
    """The code under test with byte code for the guest's Python, as archive entries."""
    sources = code_sources()
    entries = [cpio.file(path.lstrip("/"), source.read_bytes()) for path, source in sources.items()]
    modules = {path: source for path, source in sources.items() if path.endswith(".py")}
    for path, data in pyc.compile_all(image, python, modules).items():
        entries.append(cpio.file(pyc.pyc_path(path, python).lstrip("/"), data))
    return entries


def service(image: Image, python: str) -> list[cpio.Entry]:
    """The guest service and commands in the guest's PATH."""
    sources = {
        f"/opt/faultctl/guest/{path.name}": path
        for path in sorted(GUEST.iterdir())
        if path.suffix in (".py", ".sh")
    }
    entries = [cpio.file(p.lstrip("/"), s.read_bytes()) for p, s in sources.items()]
    modules = {path: source for path, source in sources.items() if path.endswith(".py")}
    for path, data in pyc.compile_all(image, python, modules).items():
        entries.append(cpio.file(pyc.pyc_path(path, python).lstrip("/"), data))
    for name, module in (("faultctl", "controller.cli.main"), ("faultd", "nodeagent.main")):
        text = _WRAPPER.format(module=module)
        entries.append(cpio.file(f"usr/local/bin/{name}", text.encode(), 0o755))
    return entries


def build(image: Image, python: str, *, modules: bool) -> bytes:
    """The whole initrd; `modules` is False for a kernel that is not the image's own."""
    payload = [*code(image, python), *service(image, python)]
    second = [cpio.Entry(f"rootfs/{e.path}", e.mode, e.data) for e in payload]
    return cpio.archive(base(image, modules=modules)) + cpio.archive(second)
