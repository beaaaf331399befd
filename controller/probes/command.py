"""Probes that run a program: here, or on a node through its agent."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Protocol

from controller.probes.outcome import Outcome, failed, passed, timed_out, unknown
from controller.probes.spec import ExecProbe, ExposureProbe, ProcessProbe, ReadProbe, TcpProbe
from nodeagent.model.errors import FaultError
from nodeagent.model.exposure import Exposure
from nodeagent.model.units import format_duration

MAX_OUTPUT = 4096
"""Bytes of output that a node's agent gives back; the same here."""
RPC_SLACK_S = 5.0
POLL_S = 0.1
"""How soon it is seen that a child has ended whose outputs somebody else keeps open."""


class ProbeAgent(Protocol):
    """What is needed of controller.client.AgentClient."""

    def probe(self, probe: dict[str, Any], timeout: float) -> Iterator[Any]: ...

    def exposure(self, fault_id: str, timeout: float) -> Exposure | None: ...


Agents = Callable[[str], ProbeAgent]
"""The client of a node by its name. Raises FaultError classes."""


@dataclass(frozen=True)
class NodeOutcome(Outcome):
    """An outcome that a node measured, with its clock."""

    node_ns: int | None = None
    duration_ns: int | None = None


INSIDE = (
    'p=$(pgrep -o -x -- "$1") || { echo "no process $1 to go into" >&2; exit 125; }; '
    'shift; exec nsenter -a -t "$p" -- "$@"'
)
CANNOT = 125
"""Exit status of `INSIDE` when there is no process; nsenter's own failure is 1."""

PROCESSES = (
    'grep -hsF "($1) " /proc/[0-9]*/stat | '
    r"sed -nE 's/^([0-9]+) \(.*\) (.) (([-0-9]+ ){18})([0-9]+) .*/\1 \2 \5/p'"
)
"""Prints pid, state and start time (fields 1, 3, 22 of /proc/PID/stat, proc(5))."""

USERS = (
    '[ "$(id -u)" = 0 ] || { echo "only root sees the files of all processes" >&2; exit 125; }; '
    '{ ls -l /proc/[0-9]*/fd; grep -sF -- " $1" /proc/[0-9]*/maps; } 2>/dev/null | '
    'P="$1" awk \'BEGIN{p=" " ENVIRON["P"]} '
    '/^\\/proc\\/[0-9]+\\/(fd|maps):/{split($0,a,"/"); n=a[3]} '
    '{i=index($0,p); if(i){c=substr($0,i+length(p),1); if(c==""||c=="/"||c==" ") u[n]=1}} '
    'END{for(n in u){f="/proc/" n "/comm"; m=""; getline m < f; close(f); print n " " m}}\' | sort'
)
"""Prints pid and name of each process with an open or mapped file at or below $1."""


def run(command: tuple[str, ...], timeout: timedelta, node: str | None, agents: Agents) -> Outcome:
    """Exit status 0 is a pass; `data` has exit, stdout and stderr, cut at MAX_OUTPUT."""
    if node is not None:
        data = {"type": "exec", "command": list(command), "timeout": format_duration(timeout)}
        return on_node(node, data, timeout, agents)
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as exc:
        return unknown(f"{command[0]} cannot be run: {exc.strerror}")
    with child:
        heads = captured(child, timeout.total_seconds())
        if heads is None:
            os.killpg(child.pid, signal.SIGKILL)
            return timed_out()
    texts = {key: head.decode(errors="replace") for key, head in heads.items()}
    lines = (texts["stderr"] or texts["stdout"]).strip().splitlines()
    found = {"exit": child.returncode, **texts}
    if child.returncode:
        why = f"exit status {child.returncode}" + (f": {lines[-1]}" if lines else "")
        return failed(why, **found)
    return passed(**found)


def captured(child: subprocess.Popen[bytes], timeout: float) -> dict[str, bytes] | None:
    """The first MAX_OUTPUT bytes of each of a child's outputs when it has ended, None if it has
    not in time. All is read, and what is too much is thrown away: a program that talks without
    end costs no memory. What the child left behind with its outputs open is not waited for."""
    heads = {"stdout": b"", "stderr": b""}
    deadline = time.monotonic() + timeout
    with selectors.DefaultSelector() as open_ones:
        for name in heads:
            open_ones.register(getattr(child, name), selectors.EVENT_READ, name)
        while open_ones.get_map():
            ended = child.poll() is not None
            left = deadline - time.monotonic()
            if left <= 0 and not ended:
                return None
            ready = open_ones.select(0 if ended else min(left, POLL_S))
            if ended and not ready:
                return heads
            for key, _ in ready:
                piece = os.read(key.fd, 65536)
                if not piece:
                    open_ones.unregister(key.fileobj)
                heads[key.data] += piece[: MAX_OUTPUT - len(heads[key.data])]
            if time.monotonic() > deadline + POLL_S:
                return heads if ended else None
    try:
        child.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    return heads


def on_node(node: str, probe: dict[str, Any], timeout: timedelta, agents: Agents) -> Outcome:
    """One sample of a node's own probe; an agent that does not answer measures nothing."""
    try:
        samples = list(agents(node).probe(probe, timeout.total_seconds() + RPC_SLACK_S))
    except FaultError as exc:
        return unknown(f"node {node}: {exc}")
    if not samples:
        return unknown(f"node {node} gave no sample")
    sample = samples[-1]
    if sample.verdict not in ("pass", "fail"):
        return unknown(sample.reason or "not measured")
    data = json.loads(sample.data_json or "{}")
    return NodeOutcome(sample.verdict, sample.reason, data, sample.boottime_ns, sample.duration_ns)


def measure_exec(spec: ExecProbe, agents: Agents) -> Outcome:
    """The program's exit status, and its output if that is asked for."""
    command = spec.command
    if spec.inside is not None:
        command = ("/bin/sh", "-c", INSIDE, "sh", spec.inside, *command)
    found = run(command, spec.timeout, spec.node, agents)
    if spec.inside is not None and found.data.get("exit") == CANNOT:
        return replace(found, verdict="unknown")
    said = str(found.data.get("stdout", ""))
    if found.verdict == "pass" and spec.output is not None and spec.output not in said:
        text = f"the output does not contain {spec.output!r}"
        return replace(found, verdict="fail", reason=text)
    return found


def measure_read(spec: ReadProbe, agents: Agents) -> Outcome:
    """Reads on the node, past the page cache."""
    data: dict[str, Any] = {
        "type": "read",
        "path": spec.path,
        "timeout": format_duration(spec.timeout),
        "offset": f"{spec.offset}B",
        "block": f"{spec.block}B",
    }
    if spec.length is not None:
        data["length"] = f"{spec.length}B"
    return on_node(spec.node, data, spec.timeout, agents)


def measure_tcp(spec: TcpProbe, node: str, agents: Agents) -> Outcome:
    """Connects from a node."""
    timeout = format_duration(spec.timeout)
    data = {"type": "tcp", "host": spec.host, "port": spec.port, "timeout": timeout}
    return on_node(node, data, spec.timeout, agents)


_PROCESS = re.compile(r"(\d+) (\S) (\d+)")


def measure_process(spec: ProcessProbe, agents: Agents) -> Outcome:
    """Counts the processes of a name that are no zombies."""
    command = ("/bin/sh", "-c", PROCESSES, "sh", spec.name)
    found = run(command, spec.timeout, spec.node, agents)
    if found.verdict != "pass":
        return replace(found, verdict="unknown", reason=f"not counted: {found.reason}")
    text = str(found.data.get("stdout", ""))
    rows = [m.groups() for line in text.splitlines() if (m := _PROCESS.fullmatch(line))]
    alive = sorted((int(pid), int(start)) for pid, state, start in rows if state not in "ZX")
    cut = len(text) >= MAX_OUTPUT
    identity = ",".join(f"{pid}@{start}" for pid, start in alive)
    data: dict[str, Any] = {"count": len(alive), "identity": None if cut else identity}
    if alive:
        data["oldest"] = min(start for _, start in alive)
    if len(alive) < spec.at_least and not cut:
        reason = f"{len(alive)} processes {spec.name}, {spec.at_least} are needed"
        return replace(found, verdict="fail", reason=reason, data=data)
    if spec.at_most is not None and len(alive) > spec.at_most:
        reason = f"{len(alive)} processes {spec.name}, {spec.at_most} are allowed"
        return replace(found, verdict="fail", reason=reason, data=data)
    if cut:
        return replace(found, verdict="unknown", reason="too many to list", data=data)
    return replace(found, data=data)


def measure_exposure(spec: ExposureProbe, agents: Agents) -> Outcome:
    """Who could still be hit: processes that have files there open."""
    command = ("/bin/sh", "-c", USERS, "sh", (spec.path or "/").rstrip("/") or "/")
    found = run(command, spec.timeout, spec.node, agents)
    if found.verdict != "pass":
        return replace(found, verdict="unknown", reason=f"not measured: {found.reason}")
    users = [line for line in str(found.data.get("stdout", "")).splitlines() if line.strip()]
    data = {"workloads": users[:16], "count": len(users)}
    if users:
        return replace(found, verdict="fail", reason=f"in use by {', '.join(users[:4])}", data=data)
    return replace(found, data=data)
