"""A small client of QEMU's machine protocol (QMP): one command at a time."""

from __future__ import annotations

import json
import re
import socket
import time
from pathlib import Path
from typing import Any

from controller.lab.errors import NodeFailed

TIMEOUT = 30.0  # seconds for one answer; QEMU answers at once unless it is stuck
# "info usernet": TCP[HOST_FORWARD] fd, source address and port, guest address and port.
_FORWARD = re.compile(r"TCP\[HOST_FORWARD\]\s+\d+\s+\S+\s+(\d+)\s+\S+\s+(\d+)")


def parse_forwards(text: str) -> dict[int, int]:
    """Guest port -> host port, from the monitor's `info usernet` (pure)."""
    return {int(guest): int(host) for host, guest in _FORWARD.findall(text)}


def command(path: Path, name: str, **arguments: Any) -> Any:
    """Run one command on the socket at `path`; raises NodeFailed when QEMU says no."""
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(TIMEOUT)
            sock.connect(str(path))
            with sock.makefile("rb") as stream:
                _read(stream)  # the greeting
                _ask(sock, stream, "qmp_capabilities", {})
                return _ask(sock, stream, name, arguments)
    except (OSError, ValueError) as exc:
        raise NodeFailed(f"QEMU does not answer to {name}", str(exc)) from exc


def _ask(sock: socket.socket, stream: Any, name: str, arguments: dict[str, Any]) -> Any:
    request: dict[str, Any] = {"execute": name}
    if arguments:
        request["arguments"] = arguments
    sock.sendall(json.dumps(request).encode() + b"\n")
    while True:
        answer = _read(stream)
        if "error" in answer:
            raise NodeFailed(f"QEMU refuses {name}", str(answer["error"].get("desc")))
        if "return" in answer:
            return answer["return"]


def _read(stream: Any) -> dict[str, Any]:
    line = stream.readline()
    if not line:
        raise ConnectionResetError("QEMU closed its monitor")
    answer = json.loads(line)
    if not isinstance(answer, dict):
        raise TypeError(f"QEMU sent {line!r}")
    return answer


def forwards(path: Path, deadline: float) -> dict[int, int]:
    """Guest port -> host port of a running QEMU; waits until `deadline` for its socket."""
    while True:
        try:
            text = command(path, "human-monitor-command", **{"command-line": "info usernet"})
            return parse_forwards(str(text))
        except NodeFailed:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
