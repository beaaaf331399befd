"""The Python packages that the code under test needs in a guest, as a disk image."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
import tomllib
from pathlib import Path

from controller.lab import cache, proc, pyc
from controller.lab.flavours import Flavour
from controller.lab.image import Image, make_ext4

RECIPE = 2
PIP_TIMEOUT = 900.0  # seconds
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64")


def checkout() -> Path | None:
    """The source checkout that this code runs from, if it does."""
    top = Path(__file__).resolve().parents[2]
    return top if (top / "pyproject.toml").is_file() else None


def requirements() -> list[str]:
    """What faultctl needs at run time, its extra `reflection` included."""
    top = checkout()
    if top is not None:
        project = tomllib.loads((top / "pyproject.toml").read_text())["project"]
        extra = project.get("optional-dependencies", {}).get("reflection", [])
        return sorted([*project["dependencies"], *extra])
    wanted = importlib.metadata.requires("faultctl") or []
    return sorted(
        text.split(";")[0].strip() for text in wanted if "extra" not in text or "reflection" in text
    )


def constraints() -> str:
    """Pinned versions: the checkout's constraints.txt, else those installed here."""
    top = checkout()
    if top is not None and (top / "constraints.txt").is_file():
        return (top / "constraints.txt").read_text()
    pins = {f"{d.name}=={d.version}" for d in importlib.metadata.distributions()}
    return "\n".join(sorted(pin for pin in pins if not pin.startswith("faultctl=")))


def ensure(flavour: Flavour, image: Image, progress: proc.Progress = proc.quiet) -> Path:
    """Path of the ext4 image for `/opt/faultctl/lib`, built when the cache has none."""
    recipe = {
        "recipe": RECIPE,
        "python": flavour.python,
        "wanted": requirements(),
        "pins": constraints(),
    }
    key = f"py{flavour.python}-{cache.digest(recipe)}"

    def build(out: Path) -> None:
        _build(flavour, image, out, progress)

    return cache.build_once("libs", key, build, progress) / "lib.ext4"


def _build(flavour: Flavour, image: Image, out: Path, progress: proc.Progress) -> None:
    progress(f"collecting Python {flavour.python} packages for the guest")
    tree = out / "tree"
    pins = out / "constraints.txt"
    pins.write_text(constraints())
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-input"]
    argv.append("--disable-pip-version-check")
    argv += ["--target", str(tree), "--only-binary=:all:", "-c", str(pins)]
    argv += ["--python-version", flavour.python, "--implementation", "cp"]
    for platform in PLATFORMS:
        argv += ["--platform", platform]
    proc.run([*argv, *requirements()], timeout=PIP_TIMEOUT, progress=progress)
    shutil.rmtree(tree / "bin", ignore_errors=True)
    sources = {f"/opt/faultctl/lib/{path.relative_to(tree)}": path for path in tree.rglob("*.py")}
    for shown, data in pyc.compile_all(image, flavour.python, sources).items():
        target = tree / Path(pyc.pyc_path(shown, flavour.python)).relative_to("/opt/faultctl/lib")
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(data)
    make_ext4(tree, out / "lib.ext4", label="lab-lib")
    shutil.rmtree(tree)
