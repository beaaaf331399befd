"""Taking everything of ours off a node, from a pod that has none of the node's folders."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from nodeagent.model.errors import Refused
from nodeagent.podnode import check_pod, in_node
from nodeagent.podruntime import FOLDER, running_from
from nodeagent.statedir import JOURNAL_NAME

NODE_ROOT = "/proc/1/root"
RUN_DIR = Path("/run/faultctl")
CLEAN_DEADLINE_S = 120.0
LOG = logging.getLogger("nodeagent.podclean")


def unended(journal: Path) -> list[str]:
    """Faults that have not ended, by any version's journal; why it cannot be read is a reason too.

    Not through /proc/1/root: sqlite resolves that link, and then looks into this container.
    """
    if not journal.exists():
        return []
    try:
        db = sqlite3.connect(journal, timeout=10)
        rows = db.execute("SELECT id, state FROM faults WHERE state != 'ended'").fetchall()
        db.close()
    except sqlite3.Error as exc:
        return [f"{journal} cannot be read: {exc}"]
    return [f"fault {fault} is {state}" for fault, state in rows]


def still_there(state_dir: Path) -> list[str]:
    """Why a state folder of the node cannot be removed yet. Raises Refused."""
    running = running_from(state_dir / FOLDER)
    found = [f"process {pid} ({exe})" for pid, exe in running.items()]
    return found + in_node(partial(unended, state_dir / JOURNAL_NAME))


def wait_until_unused(state_dir: Path) -> None:
    """Raises Refused when faults or processes of ours are still there after the deadline."""
    end = time.monotonic() + CLEAN_DEADLINE_S
    while left := still_there(state_dir):
        if time.monotonic() > end:
            raise Refused(f"{state_dir} is still needed", "; ".join(left), "revert the faults")
        time.sleep(0.5)


def remove(folders: Sequence[Path]) -> list[str]:
    """Remove folders, and name them. A mount point of this container's could not be removed from
    within it: this is for `in_node`. Raises OSError."""
    there = [folder for folder in folders if os.path.lexists(folder)]
    for folder in there:
        shutil.rmtree(folder)
    return [str(folder) for folder in there]


def clean(state_dir: Path) -> int:
    """Clean the node and stay until SIGTERM; a failure ends the pod, which is started again."""
    check_pod()
    wait_until_unused(state_dir)
    gone = in_node(partial(remove, (state_dir, RUN_DIR)))
    LOG.info("clean: %s", ", ".join(gone) or "nothing was there")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    return 0


def cleaned(state_dir: Path) -> int:
    """0 when nothing of ours is on the node's disk."""
    left = [path for path in (state_dir, RUN_DIR) if Path(f"{NODE_ROOT}{path}").exists()]
    print(", ".join(map(str, left)) or "clean")
    return 1 if left else 0
