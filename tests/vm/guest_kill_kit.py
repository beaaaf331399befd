"""Runs inside a lab node as root: agents and guardians that are forked instead of started.

Starting a Python process with our modules takes seconds under emulation. So one process
imports them once and forks: an agent is a child that builds nodeagent.agent.Agent, a
guardian is a child of a helper that runs nodeagent.guardian.main() with the arguments and
descriptors that the agent's own ward would have started it with. Neither parent ever opens
the journal: SQLite must not be carried over a fork.
"""

from __future__ import annotations

import array
import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from nodeagent import agent as agent_module
from nodeagent import crashpoint, guardian, ward
from nodeagent.agent import Agent, AgentConfig
from nodeagent.backends import Runtime, load_backends
from nodeagent.facts import load_modules, read_facts
from nodeagent.faults import kinds
from nodeagent.model.facts import Facts
from nodeagent.statedir import DEFAULT_STATE_DIR as STATE

PATIENCE_S = 120.0
ZYGOTE = "/run/kill-zygote"
guardian_at = 0
"""Crash point of guardians that are started from now on."""
with_bpf = True
"""Whether agents from now on know that BPF objects are there: loading one takes seconds here."""
_libc = ctypes.CDLL(None, use_errno=True)


def log(*words: object) -> None:
    print(f"{time.monotonic():.2f}", *words, file=sys.stderr, flush=True)


def set_comm(name: str) -> None:
    """PR_SET_NAME: what the fingerprint knows our processes by."""
    _libc.prctl(15, name.encode(), 0, 0, 0)


# --- guardians --------------------------------------------------------------------


def start_zygote() -> int:
    """The helper that forks guardians, reaped by nobody; its pid. Call it before anything else."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    Path(ZYGOTE).unlink(missing_ok=True)
    listener.bind(ZYGOTE)
    listener.listen(8)
    pid = os.fork()
    if pid:
        listener.close()
        return pid
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    while True:
        connection, _ = listener.accept()
        data, fds, _, _ = socket.recv_fds(connection, 65536, 8)
        child = os.fork()
        if child == 0:
            listener.close()
            _become_guardian(json.loads(data), fds, connection)
        for fd in fds:
            os.close(fd)
        connection.send(str(child).encode())
        connection.close()


def _become_guardian(order: dict[str, Any], fds: list[int], connection: socket.socket) -> None:
    code = 70
    try:
        connection.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        set_comm("faultd-guardian")
        os.setsid()
        stdout = fds.pop()
        os.dup2(stdout, 1)
        os.dup2(stdout, 2)
        numbers = dict(zip(order["fds"], map(str, fds), strict=True))
        words = order["argv"]  # an epoch may look like a descriptor
        sys.argv = [
            numbers[word] if before in ("--pidfd", "--wake", "--ready") else word
            for before, word in zip(["", *words], words, strict=False)
        ]
        crashpoint.arm(order["at"])
        guardian.main()
        code = 0
    except BaseException:  # noqa: BLE001 - it must never run on into its parent's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


class ForkedPopen:
    """As much of subprocess.Popen as the ward needs."""

    def __init__(self, argv: Sequence[str], *, stdout: Any, pass_fds: Sequence[int], **_: Any):
        where = stdout if isinstance(stdout, int) else stdout.fileno()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asker:
            asker.connect(ZYGOTE)
            order = {"argv": argv[2:], "fds": [str(n) for n in pass_fds], "at": guardian_at}
            rights = array.array("i", [*pass_fds, where])
            asker.sendmsg(
                [json.dumps(order).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
            )
            self.pid = int(asker.recv(32))
        self._pidfd = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        return -1 if select.select([self._pidfd], [], [], 0)[0] else None

    def wait(self) -> int:
        select.select([self._pidfd], [], [])
        return -1

    def kill(self) -> None:
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


class _Subprocess:
    Popen = ForkedPopen
    DEVNULL = subprocess.DEVNULL


# --- agents -----------------------------------------------------------------------


class Child:
    """A forked process that tells its parent things, one JSON value a line."""

    def __init__(self, life: Callable[[Callable[..., None]], None]) -> None:
        read, write = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            os.close(read)
            _live(life, write)
        os.close(write)
        self.pidfd = os.pidfd_open(self.pid)
        self._read = read
        self._buffer = b""
        self.heard: list[dict[str, Any]] = []
        self.status: int | None = None
        self.died_ns = 0

    def hear(self, word: str, patience: float = PATIENCE_S) -> dict[str, Any] | None:
        """Wait until it says so; None when it died before."""
        end = time.monotonic() + patience
        while True:
            for said in self.heard:
                if said["say"] == word:
                    return said
            if self.status is not None:
                return None
            left = end - time.monotonic()
            ready, _, _ = select.select([self._read], [], [], max(0.0, left))
            if not ready:
                raise TimeoutError(f"child {self.pid} does not say {word!r}: {self.heard}")
            data = os.read(self._read, 65536)
            if not data:
                self.join(patience)
                return None
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            self.heard += [json.loads(line) for line in lines]

    def join(self, patience: float = PATIENCE_S) -> int:
        """Wait for its end; the wait status, and died_ns is when (CLOCK_BOOTTIME)."""
        if self.status is None:
            if not select.select([self.pidfd], [], [], patience)[0]:
                raise TimeoutError(f"child {self.pid} does not end: {self.heard}")
            self.died_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            self.status = os.waitpid(self.pid, 0)[1]
            os.close(self.pidfd)
            os.close(self._read)
        return self.status

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.status is not None and os.WTERMSIG(self.status) == signal.SIGKILL

    def kill(self, signum: int = signal.SIGKILL) -> None:
        signal.pidfd_send_signal(self.pidfd, signum)


def _live(life: Callable[[Callable[..., None]], None], write: int) -> None:
    def say(word: str, **more: Any) -> None:
        os.write(write, json.dumps({"say": word, **more}).encode() + b"\n")

    code = 70
    try:
        life(say)
        code = 0
    except BaseException as exc:  # noqa: BLE001 - as above
        traceback.print_exc()
        say("failed", error=f"{type(exc).__name__}: {exc}")
    finally:
        sys.stderr.flush()
        os._exit(code)


Script = Callable[[Agent, Callable[..., None]], None]


def agent(script: Script, start_at: int = 0, start_log: str = "") -> Child:
    """Fork an agent: it starts (which recovers), says so, runs the script, and closes.

    start_at: crash point of its start.
    """

    def life(say: Callable[..., None]) -> None:
        set_comm("faultd")
        crashpoint.arm(start_at, start_log)
        made = Agent(AgentConfig(STATE, modprobe=False))
        failed = made.start()
        crashpoint.arm(0)
        say("started", guardian=made.ward.pid, failed=failed, epoch=made.epoch)
        script(made, say)
        left = made.close()
        say("closed", failed=left)

    return Child(life)


def _complete(model: type[BaseModel]) -> None:
    """Models are built with their first use: here, and not in every child."""
    for child in model.__subclasses__():
        if child.__module__.startswith("nodeagent") and not child.__pydantic_complete__:
            child.model_rebuild()
        _complete(child)


def prepare() -> None:
    """Once, before the first agent: modules, facts (they do not change in a boot), the zygote."""
    kinds()
    load_backends(Runtime(STATE, "kill"))
    _complete(BaseModel)
    # Locking a forked process in memory would copy all of its parent's first.
    guardian.MCL_CURRENT_FUTURE = 0
    gc.freeze()
    gc.disable()
    start_zygote()
    load_modules()
    ward.subprocess = _Subprocess  # type: ignore[assignment]
    probe = Child(lambda say: say("facts", json=read_facts("kill").model_dump_json()))
    facts = probe.hear("facts")
    assert facts is not None
    probe.join()
    known = Facts.model_validate_json(facts["json"])
    plain = known.model_copy(update={"bpf_objects": ()})
    agent_module.read_facts = lambda node_id, notes=(): (known if with_bpf else plain).model_copy(
        update={"node_id": node_id}
    )


def wait_end(pidfd: int, patience: float = PATIENCE_S) -> bool:
    """Whether a process ends in time; closes its descriptor."""
    ended = bool(select.select([pidfd], [], [], patience)[0])
    os.close(pidfd)
    return ended
