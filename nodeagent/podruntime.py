"""The agent's runtime on the node's disk: what runs in the node's own mount namespace.

The image's /opt/faultctl works wherever it lies (daemonset/image/launch.c). A pod copies it
below the state folder, named by its content, so that a guardian of an earlier version goes on
running from its own copy until it ends.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from nodeagent.model.errors import Refused

SOURCE = Path("/opt/faultctl")
FOLDER = "runtime"


def install(source: Path, state_dir: Path) -> Path:
    """The runtime's folder in the state folder, copied when it is not there. Raises Refused.

    It appears by rename after a sync(2), so that it is whole or not there.
    """
    try:
        identity = (source / "ID").read_text(encoding="ascii").strip()
    except OSError as exc:
        raise Refused(
            "this is not the node image", f"{source / 'ID'}: {exc.strerror}", "use Dockerfile.node"
        ) from exc
    home = state_dir / FOLDER
    final = home / identity
    if not final.is_dir():
        try:
            home.mkdir(mode=0o700, exist_ok=True)
            part = home / f".{identity}.{os.getpid()}"
            shutil.copytree(source, part, symlinks=True)
            os.sync()
            part.rename(final)
        except OSError as exc:
            raise Refused(
                f"the agent's runtime cannot be copied to {home}",
                str(exc),
                "it needs about 150 MB there",
            ) from exc
    sweep(home, final)
    return final


def sweep(home: Path, keep: Path) -> None:
    """Remove other versions that no process runs from, and copies that were cut short."""
    busy = running_from(home)
    for folder in home.iterdir():
        if folder != keep and not any(Path(exe).is_relative_to(folder) for exe in busy.values()):
            shutil.rmtree(folder, ignore_errors=True)


def running_from(folder: Path) -> dict[int, str]:
    """Pid -> executable of the processes that run from a folder, by their names in /proc."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            exe = os.readlink(f"/proc/{name}/exe")
        except OSError:
            continue  # ended meanwhile, or a kernel thread
        if Path(exe).is_relative_to(folder):
            found[int(name)] = exe
    return found
