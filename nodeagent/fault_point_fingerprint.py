"""The part of a node's fingerprint that has the kernel's fault points, their marks and tracers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

DEBUG = Path("/sys/kernel/debug")
FLAGS = ("make-it-fail", "fail-nth")


def fault_points() -> dict[str, Any]:
    """`knobs`: path and value; `marked`: tasks and block devices; `traced`: processes by name."""
    knobs = {
        str(path.relative_to(DEBUG)): text
        for path in sorted(DEBUG.glob("fail*/**/*"))
        if path.is_file() and (text := _text(path)) is not None
    }
    devices = Path("/sys/class/block").glob("*/make-it-fail")
    return {
        "knobs": knobs,
        "marked": sorted([*_marked_tasks(), *(str(p) for p in devices if _text(p) == "1")]),
        "traced": sorted(_traced()),
    }


def _text(path: Path) -> str | None:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return None


def _marked_tasks() -> Iterator[str]:
    for task in Path("/proc").glob("[0-9]*/task/[0-9]*"):
        for flag in FLAGS:
            if _text(task / flag) not in (None, "0"):
                yield f"{flag} {_text(task / 'comm')}"


def _traced() -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*"):
        lines = (_text(process / "status") or "").splitlines()
        if any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in lines):
            yield _text(process / "comm") or ""
