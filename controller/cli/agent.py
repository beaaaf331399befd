"""`faultctl agent`: start, stop and look at the agent of this host, with or without systemd."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import click

from controller import render
from controller.cli.common import client, output_option
from controller.client import AgentAddress
from nodeagent.model.errors import InvalidSpec, Refused, Unreachable

START_DEADLINE_S = 90.0
STOP_DEADLINE_S = 60.0
LOG = Path("/var/log/faultd.log")


@click.group()
def agent() -> None:
    """Run the agent of this host."""


def _socket_path() -> Path:
    address: AgentAddress = click.get_current_context().find_root().obj
    if not address.url.startswith("unix://"):
        raise InvalidSpec("this verb is for the agent of this host", "--agent is not a unix:// URL")
    return Path(address.url.removeprefix("unix://"))


def agent_pid(path: Path) -> int | None:
    """The pid of the process that listens on a Unix socket (SO_PEERCRED, unix(7)), if any."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return None
        found = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", found)[0]
    return pid


@agent.command()
@click.option("--state-dir", type=click.Path(path_type=Path), help="directory of the journal")
@click.option("--log", type=click.Path(path_type=Path), default=LOG, show_default=True)
@click.argument("faultd_args", nargs=-1)
def start(state_dir: Path | None, log: Path, faultd_args: tuple[str, ...]) -> None:
    """Start faultd in the background and wait until it answers."""
    path = _socket_path()
    if agent_pid(path) is not None:
        render.out().print(f"an agent answers on {path} already")
        return
    if os.geteuid() != 0:
        raise Refused("faultd needs root", f"this is uid {os.geteuid()}", "use sudo")
    faultd = shutil.which("faultd")
    command = [faultd] if faultd else [sys.executable, "-m", "nodeagent.main"]
    command += ["--listen", f"unix://{path}", *faultd_args]
    if state_dir is not None:
        command += ["--state-dir", str(state_dir)]
    with log.open("ab") as sink:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True
        )
    _wait_ready(path, child, log)
    render.out().print(f"faultd runs, pid {child.pid}, on {path}; its log is {log}")


def _wait_ready(path: Path, child: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while agent_pid(path) is None:
        code = child.poll()
        if code is not None:
            lines = log.read_text(errors="replace").strip().splitlines()[-3:]
            raise Refused(f"faultd ended with status {code}", " / ".join(lines), f"see {log}")
        if time.monotonic() > deadline:
            child.terminate()
            raise Unreachable("faultd does not answer", f"after {START_DEADLINE_S:.0f}s", f"{log}")
        time.sleep(0.05)


@agent.command()
def stop() -> None:
    """Stop faultd; it reverts everything before it ends."""
    path = _socket_path()
    pid = agent_pid(path)
    if pid is None:
        render.out().print(f"no agent answers on {path}")
        return
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)

        if not select.select([pidfd], [], [], STOP_DEADLINE_S)[0]:
            raise Refused(
                f"faultd (pid {pid}) has not ended", f"after {STOP_DEADLINE_S:.0f}s", "see its log"
            )
    finally:
        os.close(pidfd)
    render.out().print("faultd has ended")


@agent.command()
@output_option
@click.pass_context
def status(ctx: click.Context, output: str) -> None:
    """Show what the agent says of its node; exit 4 if none answers."""
    with client() as found:
        reply, facts = found.describe()
    data = {
        "agent_version": reply.agent_version,
        "api_version": reply.api_version,
        "guardian": reply.guardian,
        "epoch": reply.epoch,
        "facts": facts.model_dump(mode="json"),
    }
    if output != "table":
        render.data(data, output)
        return
    rows = [("agent", reply.agent_version), ("guardian", reply.guardian)]
    rows += [(name, _cell(value)) for name, value in facts.model_dump(mode="json").items()]
    render.table(("FACT", "VALUE"), rows)


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {'.'.join(map(str, v))}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)
