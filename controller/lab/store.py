"""Nodes of this user on disk: a folder each, with its sockets, logs, disks and pids."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import platformdirs

from controller.lab.supervise import start_time
from nodeagent.model.errors import InvalidSpec, Refused

SOCKET_LIMIT = 107  # bytes, sun_path of unix(7)


def nodes_dir() -> Path:
    """FAULTCTL_STATE, or the user's state folder by the XDG rules; private to the user."""
    named = os.environ.get("FAULTCTL_STATE")
    home = (Path(named) if named else platformdirs.user_state_path("faultctl")) / "lab"
    if len(os.fsencode(home)) + 40 > SOCKET_LIMIT:
        raise Refused(
            f"{home} is too long a path for Unix sockets", "", "set FAULTCTL_STATE to a short one"
        )
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    return home


@dataclass(frozen=True)
class Entry:
    """One node's folder and what its files say."""

    home: Path

    @property
    def name(self) -> str:
        return self.home.name

    def read(self, name: str) -> dict[str, Any]:
        """A JSON file of the folder; empty when it is not there (yet)."""
        try:
            data = json.loads((self.home / name).read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    @property
    def supervisor(self) -> int | None:
        """Pid of the living supervisor, or None."""
        pids = self.read("pids.json")
        try:
            return pids["supervisor"] if start_time(pids["supervisor"]) == pids["start"] else None
        except (KeyError, OSError, IndexError):
            return None

    @property
    def state(self) -> str:
        """`running`, or why it ended."""
        if self.supervisor is not None:
            return "running"
        return f"ended: {self.read('end.json').get('reason', 'its supervisor died')}"

    def said(self, *logs: str) -> str:
        """The last words of log files of the folder."""
        found = [self.home / name for name in logs]
        texts = [p.read_text(errors="replace").strip()[-500:] for p in found if p.exists()]
        return "\n".join(text for text in texts if text)

    def stop(self, deadline: float = 15.0) -> None:
        """End QEMU through its supervisor; already ended is fine."""
        pid = self.supervisor
        if pid is None:
            return
        pidfd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            end = time.monotonic() + deadline
            while self.supervisor is not None and time.monotonic() < end:
                time.sleep(0.02)
            if self.supervisor is not None:  # QEMU dies with it: PR_SET_PDEATHSIG
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            os.close(pidfd)

    def remove(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)


def entries() -> list[Entry]:
    home = nodes_dir()
    return [Entry(p) for p in sorted(home.iterdir()) if (p / "node.json").is_file()]


def find(name: str) -> Entry:
    """A node by name; raises InvalidSpec when there is none."""
    home = nodes_dir() / name
    if not (home / "node.json").is_file() or home.parent != nodes_dir():
        known = ", ".join(entry.name for entry in entries()) or "none"
        raise InvalidSpec(f"no lab node {name!r}", f"there are: {known}", "faultctl lab ls")
    return Entry(home)


@contextmanager
def locked() -> Iterator[Path]:
    """The folder of all nodes, for one process at a time."""
    home = nodes_dir()
    try:
        with filelock.FileLock(home / ".lock", timeout=60):
            yield home
    except filelock.Timeout as exc:
        raise Refused("the lab's state is locked", f"{home}/.lock is held for a minute") from exc


def create(name: str, description: dict[str, Any]) -> Entry:
    """A new node's folder; a dead namesake's is replaced, a living one's is a Refused."""
    with locked() as nodes:
        sweep()
        entry = Entry(nodes / name)
        if entry.home.exists():
            if entry.supervisor is not None or _being_made(entry.home):
                raise Refused(f"a lab node {name} runs already", "", f"faultctl lab down {name}")
            entry.remove()
        (entry.home / "disks").mkdir(parents=True, mode=0o700)
        (entry.home / "node.json").write_text(json.dumps(description))
    return entry


def sweep() -> None:
    """Remove what is left of nodes whose owner and supervisor were both killed."""
    for entry in entries():
        owned = entry.read("node.json").get("ttl") is None
        if owned and entry.supervisor is None and not _maker_lives(entry):
            entry.remove()


def _maker_lives(entry: Entry) -> bool:
    maker = entry.read("node.json").get("maker", {})
    try:
        return bool(start_time(maker["pid"]) == maker["start"])
    except (KeyError, OSError, IndexError):
        return False


def _being_made(home: Path) -> bool:
    """A maker that lives and has not started its supervisor yet holds the name too."""
    return (
        _maker_lives(Entry(home))
        and not (home / "end.json").exists()
        and not (home / "pids.json").exists()
    )
