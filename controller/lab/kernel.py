"""The `full` kernel: a prebuilt one that has what the flavour needs, else our own build."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

from controller.lab import cache, kernel_config, libs, proc, sources
from controller.lab.flavours import FULL_OPTIONS
from nodeagent.model.errors import Refused

FRAGMENT = Path(__file__).parent / "full.config"
SOURCE_PACKAGE = "linux-source-6.12"
SUITE = "trixie"
RECIPE = 1
BUILD_TIMEOUT = 3 * 3600.0  # seconds; 18 minutes were measured on two busy cores
BUILD_TOOLS = ("make", "gcc", "flex", "bison", "bc", "pahole", "perl", "tar", "xz", "apt-get")
HEADERS = {  # build-time headers that no program brings: package -> a file of it
    "libelf-dev": "/usr/include/libelf.h",
    "libssl-dev": "/usr/include/openssl/ssl.h",
}


def prebuilt_dir() -> Path | None:
    """FAULTCTL_LAB_KERNEL_DIR, or `shared/lab` beside the checkout."""
    named = os.environ.get("FAULTCTL_LAB_KERNEL_DIR")
    if named:
        return Path(named)
    top = libs.checkout()
    return None if top is None else top.parent / "shared" / "lab"


def prebuilt(progress: proc.Progress = proc.quiet) -> Path | None:
    """`vmlinuz-full-*` with a `config-full-*.gz` that has every option of the flavour."""
    home = prebuilt_dir()
    if home is None or not home.is_dir():
        return None
    for image in sorted(home.glob("vmlinuz-full-*")):
        config = image.with_name(f"config-{image.name.removeprefix('vmlinuz-')}.gz")
        try:
            text = gzip.decompress(config.read_bytes()).decode()
        except (OSError, ValueError, EOFError):
            progress(f"{image}: no readable {config.name} beside it, not used")
            continue
        missing = kernel_config.lacking(text, FULL_OPTIONS)
        if not missing:
            return image
        progress(f"{image} lacks {', '.join(missing)}, not used")
    return None


def ensure(progress: proc.Progress = proc.quiet) -> Path:
    """The kernel image of `full`: prebuilt, cached, or built now (long)."""
    return prebuilt(progress) or build(progress)


def build(progress: proc.Progress = proc.quiet) -> Path:
    """Build from Debian's linux-source package with our fragment, cached by its content."""
    recipe = {"recipe": RECIPE, "source": SOURCE_PACKAGE, "fragment": FRAGMENT.read_text()}
    key = f"full-{cache.digest(recipe)}"
    return cache.build_once("kernels", key, lambda out: _build(out, progress), progress) / "bzImage"


def _build(out: Path, progress: proc.Progress) -> None:
    proc.require(*BUILD_TOOLS)
    missing = [package for package, file in HEADERS.items() if not Path(file).exists()]
    if missing:
        raise Refused(
            "the kernel cannot be built on this host",
            f"headers of {', '.join(missing)} are not there",
            f"sudo apt-get install {' '.join(missing)}",
        )
    tree = _unpack(out, progress)
    jobs = f"-j{os.cpu_count() or 1}"
    progress("configuring the kernel")
    proc.run(["make", "x86_64_defconfig"], cwd=tree, timeout=600, progress=progress)
    shutil.copyfile(FRAGMENT, tree / "faultctl.config")
    merge = ["scripts/kconfig/merge_config.sh", "-m", ".config", "faultctl.config"]
    proc.run(["sh", *merge], cwd=tree, timeout=600)
    proc.run(["make", "olddefconfig"], cwd=tree, timeout=600, progress=progress)
    lacking = kernel_config.lacking((tree / ".config").read_text(), FULL_OPTIONS)
    if lacking:
        raise Refused("the kernel's configuration dropped options", ", ".join(lacking))
    progress("building the kernel (about 20 minutes on two cores)")
    proc.run(["make", jobs, "bzImage"], cwd=tree, timeout=BUILD_TIMEOUT, progress=progress)
    shutil.copyfile(tree / "arch/x86/boot/bzImage", out / "bzImage")
    shutil.copyfile(tree / ".config", out / "config")
    shutil.rmtree(out / "work")


def _unpack(out: Path, progress: proc.Progress) -> Path:
    """Fetch the source package through an apt of its own, so that the host's is left alone."""
    work = out / "work"
    for name in ("lists/partial", "archives/partial", "src"):
        (work / name).mkdir(parents=True)
    mirrors = sources.mirrors()
    if mirrors is None:
        raise Refused(
            "no Debian archive is known on this host",
            "the kernel's source comes from Debian",
            "set FAULTCTL_LAB_MIRROR to a Debian mirror near you",
        )
    (work / "sources.list").write_text("\n".join(mirrors.lines(SUITE)) + "\n")
    (work / "status").touch()
    options = {
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": work / "lists",
        "Dir::State::status": work / "status",
        "Dir::Cache": work,
        "Dir::Cache::archives": work / "archives",
        "APT::Architecture": "amd64",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
    }
    apt = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in options.items())]
    progress(f"fetching {SOURCE_PACKAGE}")
    proc.run([*apt, "update"], timeout=900, progress=progress)
    proc.run([*apt, "download", SOURCE_PACKAGE], timeout=1800, progress=progress, cwd=work)
    progress("unpacking it")
    package = next(work.glob("linux-source-*.deb"))
    proc.run(["dpkg-deb", "-x", str(package), str(work / "src")], timeout=600)
    archive = next((work / "src/usr/src").glob("linux-source-*.tar.xz"))
    proc.run(["tar", "-C", str(work / "src"), "-xf", str(archive)], timeout=1800)
    return next((work / "src").glob("linux-source-*/"))
