"""Where built things lie, and how exactly one process builds each of them once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import filelock
import platformdirs

from controller.lab.proc import Progress
from nodeagent.model.errors import Refused

BUILD_DEADLINE = 3 * 3600.0  # seconds; a kernel on two slow cores is the longest build


def cache_dir() -> Path:
    """FAULTCTL_CACHE, or the user's cache folder by the XDG rules."""
    named = os.environ.get("FAULTCTL_CACHE")
    return Path(named) if named else platformdirs.user_cache_path("faultctl")


def digest(recipe: Mapping[str, Any]) -> str:
    """Twenty hex digits that name a recipe: same content, same name, in any key order."""
    text = json.dumps(recipe, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def build_once(kind: str, key: str, build: Callable[[Path], None], progress: Progress) -> Path:
    """Folder `kind/key` in the cache, made by `build(empty folder)` when it is not there.

    Whoever comes second waits for the first. The folder appears by rename, so
    that it is whole or not there; what a killed builder left is swept away.
    """
    home = cache_dir() / kind
    final = home / key
    if final.is_dir():
        return final
    home.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(home / f".{key}.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        progress(f"another process is building {kind}/{key}, waiting for it")
        try:
            lock.acquire(timeout=BUILD_DEADLINE)
        except filelock.Timeout as exc:
            raise Refused(f"{kind}/{key} is locked", "another build holds it") from exc
    try:
        if not final.is_dir():
            _sweep(home)
            _build(home / f".{key}.part", final, build)
    finally:
        lock.release()
    return final


def _sweep(home: Path) -> None:
    """Remove what killed builders of other recipes have left: it can be gigabytes."""
    for part in home.glob(".*.part"):
        lock = filelock.FileLock(home / f"{part.stem}.lock")
        with contextlib.suppress(filelock.Timeout), lock.acquire(timeout=0):
            shutil.rmtree(part, ignore_errors=True)


def _build(part: Path, final: Path, build: Callable[[Path], None]) -> None:
    if part.exists():  # the lock is ours, so its builder is dead
        shutil.rmtree(part)
    part.mkdir()
    try:
        build(part)
        part.rename(final)
    finally:
        if part.exists():
            shutil.rmtree(part)


def publish(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file so that readers see the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.touch(mode=mode)
    part.write_bytes(data)
    part.replace(path)
