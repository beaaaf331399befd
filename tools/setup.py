"""Sets a fresh Debian or Ubuntu machine up for `make demo` and `make test`.

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "qemu-system-x86_64": "qemu-system-x86",
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "clang": "clang",
    "llvm-strip": "llvm",
    "bpftool": "bpftool",
}
CLUSTER_PACKAGES = {"buildah": "buildah", "gcc": "gcc", "ip": "iproute2", "resize2fs": "e2fsprogs"}
"""For `make test-cluster`, beside Go, which must be newer than Debian's."""
FILES = {"/usr/include/bpf/bpf_helpers.h": "libbpf-dev"}
MINIMUM = (3, 11)


def say(text: str) -> None:
    """A line of progress."""
    print(f"setup: {text}", flush=True)


def fail(what: str, why: str, hint: str) -> None:
    """Three lines and exit 1."""
    sys.exit(f"error: {what}\n  why:  {why}\n  hint: {hint}")


def venv(path: Path) -> None:
    """A virtual environment with the project and its development tools, as pinned."""
    if sys.version_info < MINIMUM:
        fail(
            "this Python is too old",
            f"{sys.version.split()[0]}, 3.11 is needed",
            "apt install python3.11",
        )
    if not (path / "bin" / "python").exists():
        say(f"virtual environment {path.name}")
        if importlib.util.find_spec("ensurepip") is None:  # Debian has it in a package of its own
            install(["python3-venv"])
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(path)], check=True)
    say("Python packages (as pinned in constraints.txt)")
    pip = [str(path / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    pip += ["--disable-pip-version-check", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, "-e", f"{ROOT}[dev,judge]"], check=True)


def missing(cluster: bool) -> list[str]:
    """Debian packages that this machine lacks."""
    tools = {**PACKAGES, **(CLUSTER_PACKAGES if cluster else {})}
    wanted = [p for tool, p in tools.items() if find(tool) is None]
    return wanted + [p for file, p in FILES.items() if not Path(file).exists()]


def find(tool: str) -> str | None:
    """A program, the sbin folders included."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    return shutil.which(tool, path=path) or versioned(tool)


def versioned(tool: str) -> str | None:
    """llvm-strip-14 stands for llvm-strip."""
    found = sorted(Path("/usr/bin").glob(f"{tool}-[0-9]*"))
    return str(found[-1]) if found else None


def install(packages: list[str]) -> None:
    """apt-get install, after it has been said."""
    say(f"installing Debian packages: {' '.join(packages)}")
    sudo = [] if os.geteuid() == 0 else ["sudo"]
    if sudo and shutil.which("sudo") is None:
        fail(
            "packages cannot be installed",
            "not root, and no sudo",
            f"as root: apt-get install {' '.join(packages)}",
        )
    if shutil.which("apt-get") is None:
        fail(
            "packages cannot be installed",
            "no apt-get here",
            f"install what holds: {' '.join(packages)}",
        )
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt = [*sudo, "apt-get", "-qq", "-o", "Dpkg::Use-Pty=0"]
    subprocess.run([*apt, "update"], check=True, env=env, stdout=subprocess.DEVNULL)
    subprocess.run(
        [*apt, "install", "-y", "--no-install-recommends", *packages],
        check=True,
        env=env,
        stdout=subprocess.DEVNULL,
    )


def packages(cluster: bool = False) -> None:
    """Install what is missing."""
    wanted = missing(cluster)
    if wanted:
        install(wanted)


def check_protos() -> None:
    """The generated stubs are those of faultd.proto."""
    names = ("faultd_pb2.py", "faultd_pb2.pyi", "faultd_pb2_grpc.py")
    with tempfile.TemporaryDirectory() as scratch:
        out = f"--python_out={scratch}", f"--pyi_out={scratch}", f"--grpc_python_out={scratch}"
        argv = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *out, "protos/faultd.proto"]
        subprocess.run(argv, check=True, cwd=ROOT)
        for name in names:
            made = (Path(scratch) / "protos" / name).read_bytes()
            if made != (ROOT / "protos" / name).read_bytes():
                fail(f"protos/{name} is not current", "faultd.proto has changed", "make protos")


def main() -> None:
    """Entry point."""
    verb, *rest = sys.argv[1:] or [""]
    try:
        if verb == "venv":
            venv(Path(rest[0]))
        elif verb == "packages":
            packages("cluster" in rest)
        elif verb == "check-protos":
            check_protos()
        else:
            fail(f"unknown verb {verb!r}", "", "venv, packages, check-protos")
    except subprocess.CalledProcessError as exc:
        fail(
            "a set-up step failed",
            f"{' '.join(map(str, exc.cmd))} ended with {exc.returncode}",
            "see above",
        )


if __name__ == "__main__":
    main()
