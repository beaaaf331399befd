"""Commands from another terminal: small files in the run folder, answered in kind.

Files, since they outlive a crash of either side: a command that nobody has answered is
still there for the controller that takes over.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from controller.run_commands import COMMANDS, Command
from nodeagent.model.errors import InvalidSpec, Unreachable

FOLDER = "control"
POLL_S = 0.2


def send(folder: Path, name: Command, timeout_s: float = 10.0) -> str:
    """Give a command to the controller of a run folder; its code. Raises Unreachable when
    nobody answers: the controller may be dead, and the next one will find the command."""
    box = folder / FOLDER
    box.mkdir(mode=0o700, exist_ok=True)
    key = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
    part = box / f".{key}.part"
    part.write_text(json.dumps({"command": name}), encoding="ascii")
    os.replace(part, box / f"{key}.json")
    reply = box / f"{key}.reply"
    give_up = time.monotonic() + timeout_s
    while time.monotonic() < give_up:
        if reply.exists():
            return str(json.loads(reply.read_text(encoding="ascii"))["code"])
        time.sleep(POLL_S)
    raise Unreachable(
        f"nobody answers in {folder}",
        "the command waits there for the next controller",
        "take the run over: faultctl run --resume FOLDER",
    )


def pending(folder: Path) -> Iterator[tuple[Path, Command]]:
    """Commands that have no answer yet, oldest first; garbage is answered and left out."""
    box = folder / FOLDER
    if not box.is_dir():
        return
    for path in sorted(box.glob("[0-9]*.json")):
        if path.with_suffix(".reply").exists():
            continue
        try:
            yield path, _command(path)
        except InvalidSpec:
            answer(path, "unknown-command")


def _command(path: Path) -> Command:
    try:
        name = json.loads(path.read_bytes()).get("command")
    except (ValueError, AttributeError, OSError) as exc:
        raise InvalidSpec(f"{path.name} is no command") from exc
    for known in COMMANDS:
        if name == known:
            return known
    raise InvalidSpec(f"{name!r} is no command")


def answer(path: Path, code: str) -> None:
    """Say what came of a command."""
    part = path.with_name(f".{path.stem}.reply.part")
    part.write_text(json.dumps({"code": code}), encoding="ascii")
    os.replace(part, path.with_suffix(".reply"))
