"""Ports that are taken: sockets bound in a net namespace, held by a process of ours.

The sockets are made here and given to a child that waits for the end of a pipe of this
process, so that they go with the fault, with the agent, and with the child when an operator
ends it: nobody else has them.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Runtime
from nodeagent.backends.netlink_ifb import gone
from nodeagent.bind.lifelines import socket_inodes
from nodeagent.clock import boottime_ns
from nodeagent.crashpoint import crashpoint
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.evidence import NodeEvent, ProcessEvent
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.port import PortHolder
from nodeagent.netns import within

NAME = "faultctl-port"
"""What ss(8) and ps(1) show."""
WAIT = f"echo {NAME} > /proc/self/comm; read -r line"
BACKLOG = 4096
ENDED_S = 5.0
LISTEN = "0A"
"""TCP_LISTEN in /proc/net/tcp (include/net/tcp_states.h)."""


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backend of this module."""
    return {PortHolder: PortBackend(runtime.on_event)}


@dataclass(frozen=True)
class Row:
    """One line of /proc/net/tcp, tcp6, udp or udp6 (proc_pid_net(5))."""

    port: int
    state: str
    waiting: int
    """Of a listening socket: connections that nobody has accepted."""
    inode: int


def parse_row(line: str) -> Row:
    """Raises ValueError, IndexError."""
    words = line.split()
    return Row(
        port=int(words[1].rpartition(":")[2], 16),
        state=words[3],
        waiting=int(words[4].partition(":")[2], 16),
        inode=int(words[9]),
    )


def rows(protocol: str) -> list[Row]:
    """Sockets of this thread's net namespace."""
    found = []
    for name in (protocol, f"{protocol}6"):
        with suppress(OSError):  # a kernel without IPv6
            text = Path(f"/proc/thread-self/net/{name}").read_text("ascii")
            found += [parse_row(line) for line in text.splitlines()[1:]]
    return found


class PortBackend:
    """Bind, hand over, and end the child."""

    def __init__(self, on_event: Callable[[str, NodeEvent], None] | None = None) -> None:
        self._on_event = on_event
        self._held: dict[tuple[str, str], subprocess.Popen[bytes]] = {}

    def observe(self, fault_id: str, step: PortHolder, peers: Sequence[Peer]) -> Prior:
        """Refuses ports that are in use, with who has them. Raises Refused."""
        found = within(step.netns, lambda: rows(step.protocol))
        if found is None:
            raise gone(step.netns)
        wanted = set(step.numbers())
        for row in found:
            if row.port in wanted and (step.protocol == "udp" or row.state == LISTEN):
                raise Refused(
                    f"port {row.port}/{step.protocol} is in use", f"{holder(row.inode)} has it",
                    "stop it first, inject, and let it start again",
                )  # fmt: skip
        return {}

    def status(self, step: PortHolder, prior: Prior, peers: Sequence[Peer]) -> Status:
        """OURS while the child lives; of one that somebody has ended nothing is kept."""
        key = (step.fault, step.protocol)
        child = self._held.get(key)
        if child is not None and child.poll() is None:
            return Status.OURS
        if child is not None:  # nobody undoes what is not there
            del self._held[key]
            _let_go(child)
        return Status.PRIOR

    def apply(
        self, fault_id: str, step: PortHolder, prior: Prior, peers: Sequence[Peer]
    ) -> Outcome:
        """Bind all, or none. Raises BackendError."""
        key = (step.fault, step.protocol)
        if self.status(step, prior, peers) is Status.OURS:
            return {"pid": self._held[key].pid}
        with ExitStack() as stack:
            made = within(step.netns, lambda: _bind_all(step, stack))
            if made is None:
                raise gone(step.netns)
            crashpoint("port:bound")
            self._held[key] = child = _hand_over([found.fileno() for found in made])
            crashpoint("port:held")
        watch = threading.Thread(
            target=self._watch, args=(fault_id, key, child), name="port", daemon=True
        )
        watch.start()
        return {"pid": child.pid}

    def _watch(self, fault_id: str, key: tuple[str, str], child: subprocess.Popen[bytes]) -> None:
        """Tell when somebody else has ended the child; `undo` forgets it before it ends it."""
        child.wait()
        if self._held.get(key) is child and self._on_event is not None:
            event = ProcessEvent(boottime_ns=boottime_ns(), pid=child.pid, what="ended")
            self._on_event(fault_id, event)

    def undo(self, fault_id: str, step: PortHolder, prior: Prior, peers: Sequence[Peer]) -> None:
        """The ports are free when this returns."""
        child = self._held.pop((step.fault, step.protocol), None)
        if child is None:
            return
        child.kill()
        child.wait(ENDED_S)
        _let_go(child)

    def measure(self, fault_id: str, step: PortHolder, prior: Prior) -> dict[str, Any]:
        """Whether they are held, by whom, and how many clients wait."""
        child = self._held.get((step.fault, step.protocol))
        found = within(step.netns, lambda: rows(step.protocol))
        if child is None or found is None:
            return {}
        held = child.poll() is None
        wanted = set(step.numbers())
        waiting = sum(row.waiting for row in found if row.state == LISTEN and row.port in wanted)
        return {"held": held, "pid": child.pid, "waiting": waiting if held else 0}


# --- sockets ------------------------------------------------------------------------


def _bind_all(step: PortHolder, stack: ExitStack) -> list[socket.socket]:
    return [
        stack.enter_context(closing(_bound(step, family, address, port)))
        for port in step.numbers()
        for family, address in _ends(step)
    ]


def _ends(step: PortHolder) -> list[tuple[int, str]]:
    if step.address is not None:
        return [(socket.AF_INET6 if ":" in step.address else socket.AF_INET, step.address)]
    ends = [(int(socket.AF_INET), "0.0.0.0")]  # noqa: S104 - all of the target's, as asked
    if Path("/proc/net/if_inet6").exists():
        ends.append((socket.AF_INET6, "::"))
    return ends


def _bound(step: PortHolder, family: int, address: str, port: int) -> socket.socket:
    """A socket that nobody can share the port with. Raises BackendError.

    While it listens SO_REUSEADDR opens the port to no other socket (inet_csk_bind_conflict), and
    lets it past what a server that has just ended has left in TIME-WAIT.
    """
    tcp = step.protocol == "tcp"
    found = socket.socket(family, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM)
    try:
        if family == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if tcp and step.listen:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((address, port))
        if tcp and step.listen:
            found.listen(BACKLOG)
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError as exc:
        found.close()
        why = exc.strerror or str(exc)
        if exc.errno == errno.EADDRINUSE:
            taken = (r for r in rows(step.protocol) if r.port == port)
            why = next((f"{holder(r.inode)} has it" for r in taken), "it is in use")
        raise BackendError(f"port {port}/{step.protocol} cannot be taken", why) from exc
    return found


def _hand_over(sockets: Sequence[int]) -> subprocess.Popen[bytes]:
    """A process that has the sockets and waits for the end of its input, which is our end too."""
    return subprocess.Popen(
        [NAME, "-c", WAIT],
        executable="/bin/sh",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=sockets,
        cwd="/",
        start_new_session=True,
    )


def _let_go(child: subprocess.Popen[bytes]) -> None:
    """Our end of the pipe that it waited for."""
    if child.stdin is not None:
        child.stdin.close()


def holder(inode: int) -> str:
    """`nginx (pid 4242)`, or what can be said of a socket whose process is not seen."""
    if inode == 0:
        return "a connection that has just ended (TIME-WAIT)"
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if inode in socket_inodes(Path("/proc") / pid):
            try:
                name = Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
            except OSError:
                break
            return f"{name} (pid {pid})"
    return "a process that is not visible from here"
