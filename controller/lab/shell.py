"""An interactive shell in a node, on this terminal."""

from __future__ import annotations

import os
import select
import shutil
import sys
import termios
import threading
import time
import tty

from controller.lab.errors import NodeFailed
from controller.lab.guestio import Process
from controller.lab.node import Node

YEAR = 365 * 86400.0  # a person's shell has no deadline of its own; the node's end ends it


def interactive(node: Node) -> int:
    """Run a login shell until it ends; returns its exit status."""
    size = shutil.get_terminal_size()
    env = {"TERM": os.environ.get("TERM", "vt100"), "PS1": f"root@{node.name}:\\w# "}
    process = node.popen(["/bin/bash", "-i"], env=env, tty=(size.lines, size.columns))
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    stop = threading.Event()
    try:
        tty.setraw(stdin)
        threading.Thread(target=_keys, args=(process, stdin, stop), daemon=True).start()
        while process.read(time.monotonic() + YEAR, _show):
            pass
    finally:
        stop.set()
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
    return process.result().code or 0


def _keys(process: Process, stdin: int, stop: threading.Event) -> None:
    while not stop.is_set():
        if not select.select([stdin], [], [], 0.2)[0]:
            continue
        data = os.read(stdin, 4096)
        try:
            process.write(data, eof=not data, deadline=time.monotonic() + 30)
        except NodeFailed:
            return
        if not data:
            return


def _show(_stream: str, data: bytes) -> None:
    os.write(sys.stdout.fileno(), data)
