"""Collects the runtime of the node image: run in Dockerfile.node's build stage.

    runtime.py OUT --packages FOLDER --launcher PROGRAM --library NAME

OUT gets Python, its packages, the tools and every shared library that they need, with their
own loader, so that a copy of it works on a node whatever is installed there (launch.c).
Its id, in OUT/ID, is made of its content.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import os
import py_compile
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

TOOLS = ("stress-ng", "dmsetup")
MODULES = ("faultctl", "faultd", "faultd-pod")
UNUSED = ("test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "pydoc_data")
UNUSED_FILES = ("*.pyc", "__pycache__", "*.a", "*.pyi", "_tkinter*", "_test*", "config-*")


def is_elf(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def needed(path: Path) -> Iterator[Path]:
    """Shared libraries of a program or library, by ldd(1)."""
    done = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        words = line.split()
        if "not" in words and "found" in words:
            raise SystemExit(f"{path} needs {words[0]}, which is not here")
        yield from (Path(word) for word in words if word.startswith("/"))


def library(name: str) -> Path:
    """A shared library by its name, as ldconfig(8) knows it."""
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        if line.split() and line.split()[0] == name:
            return Path(line.split()[-1])
    raise SystemExit(f"{name} is not installed")


def copy_python(out: Path, packages: Path) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    ignore = shutil.ignore_patterns(*UNUSED, *UNUSED_FILES)
    shutil.copytree(sysconfig.get_path("stdlib"), out / "lib" / version, ignore=ignore)
    home = out / "lib" / "python3" / "dist-packages"
    shutil.copytree(packages, home, ignore=shutil.ignore_patterns(*UNUSED_FILES, "tests"))
    shutil.rmtree(home / "bin", ignore_errors=True)
    shutil.copy(Path(sys.executable).resolve(), out / "libexec" / "python3")


def copy_programs(out: Path, launcher: Path) -> None:
    shutil.copy(launcher, out / "bin" / "launch")
    for tool in TOOLS:
        found = shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
        if found is None:
            raise SystemExit(f"{tool} is not installed")
        shutil.copy(Path(found).resolve(), out / "libexec" / tool)
    for name in ("python3", *TOOLS, *MODULES):
        (out / "bin" / name).symlink_to("launch")
        (out / "ld" / name).symlink_to("../lib/ld.so")


def copy_libraries(out: Path, loaded: list[str]) -> None:
    """What programs are linked with, and what is `loaded` by its name."""
    own = {path.name for path in (out / "lib").rglob("*.so*")}
    found = {name: library(name) for name in loaded}
    for path in (*filter(is_elf, out.rglob("*")), *found.values()):
        found.update({lib.name: lib for lib in needed(path) if lib.name not in own})
    for name, path in sorted(found.items()):
        target = "ld.so" if name.startswith("ld-linux") else name
        shutil.copy(path.resolve(), out / "lib" / target)


def compile_python(out: Path) -> None:
    """Byte code that is never checked against its source: the copies never change."""
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(
        out / "lib", quiet=2, stripdir=str(out), invalidation_mode=mode, workers=0, maxlevels=20
    )


def identity(out: Path) -> str:
    """Twenty hex digits of the names, modes and contents of all files."""
    digest = hashlib.sha256()
    for path in sorted(out.rglob("*")):
        info = path.lstat()
        digest.update(f"{path.relative_to(out)} {info.st_mode:o}\n".encode())
        if path.is_symlink():
            digest.update(os.readlink(path).encode())
        elif path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:20]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--launcher", type=Path, required=True)
    parser.add_argument("--library", action="append", default=[])
    args = parser.parse_args()
    for folder in ("bin", "ld", "lib", "libexec"):
        (args.out / folder).mkdir(parents=True)
    copy_python(args.out, args.packages)
    copy_programs(args.out, args.launcher)
    copy_libraries(args.out, args.library)
    for path in filter(is_elf, args.out.rglob("*")):
        subprocess.run(["strip", "--strip-unneeded", str(path)], check=False, capture_output=True)
    compile_python(args.out)
    (args.out / "ID").write_text(identity(args.out) + "\n")


if __name__ == "__main__":
    main()
