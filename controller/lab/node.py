"""A lab node: one virtual machine from its start to its end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from controller.lab import agent, boots, code, guestio, network, proc, qmp, store
from controller.lab.accel import Accel
from controller.lab.channel import Channel, Hello
from controller.lab.config import AGENT_PORT, NodeConfig
from controller.lab.console import Console
from controller.lab.errors import NoAnswer, NodeFailed
from controller.lab.pace import Pace

BOOT_TIMEOUT = {"kvm": 40.0, "tcg": 180.0}  # seconds, before the guest's speed is known


@dataclass
class _Session:
    """What changes while a node lives."""

    channel: Channel
    console: Console
    hello: Hello | None = None
    ports: Mapping[int, int] | None = None
    may_panic: bool = False


class Node:
    """A running node. Use it as a context manager, or call close().

    Every wait has a deadline; `timeout` arguments are seconds on a fast native
    machine and are stretched by the guest's measured speed (see pace.py).
    NodeFailed, with the console's last lines, is raised when the node is lost.
    """

    def __init__(self, config: NodeConfig, entry: store.Entry, accel: Accel, port: int = 0):
        self.config = config
        self.accel = accel
        self.entry = entry
        self.pace = Pace()
        self._port = port
        self._supervisor: subprocess.Popen[bytes] | None = None  # when we have started it
        self._session = self._new_session()

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def home(self) -> Path:
        """Its folder on the host: console.log, qemu.log, disks/NAME.raw."""
        return self.entry.home

    @property
    def kernel(self) -> str:
        """The running kernel's release."""
        return self._hello().kernel

    @property
    def boot_id(self) -> str:
        return self._hello().boot_id

    @property
    def console(self) -> Console:
        return self._session.console

    @property
    def address(self) -> str | None:
        """On the network that it shares with other nodes."""
        found = self.entry.read("node.json").get("address")
        return None if found is None else str(found).split("/")[0]

    def _hello(self) -> Hello:
        if self._session.hello is None:
            raise NodeFailed(f"node {self.name} has not booted")
        return self._session.hello

    def _new_session(self) -> _Session:
        channel = Channel(self.home / f"p{self._port}.sock", self._health)
        return _Session(channel, Console(self.home / "console.log"))

    def _health(self) -> None:
        """Raise when the node can never answer: kernel panic, or no QEMU any more."""
        console = self._session.console
        console.poll()
        if console.panic is not None and not self._session.may_panic:
            raise self._failed("kernel panic", console.panic)
        if self._supervisor is not None and self._supervisor.poll() is None:
            return
        if self.entry.supervisor is None:
            raise self._failed(self.entry.state, self.entry.said("qemu.log", "supervisor.log"))

    def _failed(self, why: str, more: str = "") -> NodeFailed:
        tail = self._session.console.tail()
        return NodeFailed(
            f"node {self.name}: {why}",
            f"{more}\nlast lines of its console:\n{tail}" if tail else more,
            f"whole console: {self.home / 'console.log'}",
        )

    @contextmanager
    def _told(self) -> Iterator[Channel]:
        """The channel; a deadline that passes on it is told with the console's last lines."""
        try:
            yield self._session.channel
        except NoAnswer as exc:
            raise self._failed(exc.what, exc.why) from exc

    def attach(self, timeout: float) -> None:
        """Open the result channel, waiting for the boot when it is under way."""
        deadline = time.monotonic() + timeout
        try:
            self._session.hello = self._session.channel.open(deadline)
        except NoAnswer as exc:
            raise self._failed(f"no sign of life within {timeout:.0f} s", str(exc)) from exc
        self.pace.measured(self._session.hello.loop_ns)
        if self._session.hello.problem:
            raise self._failed(self._session.hello.problem)

    def port(self, guest_port: int = AGENT_PORT) -> int:
        """The loopback port on this host that leads to a forwarded guest port."""
        if self._session.ports is None:
            deadline = time.monotonic() + 10
            self._session.ports = qmp.forwards(self.home / "qmp.sock", deadline)
        try:
            return self._session.ports[guest_port]
        except KeyError:
            raise NodeFailed(f"port {guest_port} of {self.name} is not forwarded") from None

    def run(
        self,
        argv: guestio.Argv,
        *,
        timeout: float = 30.0,
        check: bool = True,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> guestio.Result:
        """Run a command in the guest to its end (a string is a shell command).

        Raises CommandFailed unless it ends with 0 (or check=False), OSError
        when it cannot be executed, NodeFailed when the node is lost.
        """
        seconds = self.pace.stretch(timeout)
        with self._told() as channel:
            process = guestio.start(channel, argv, timeout=seconds, env=env, cwd=cwd)
            deadline = time.monotonic() + seconds + guestio.GRACE
            process.write(stdin or b"", eof=True, deadline=deadline)
            result = process.wait(deadline)
        return result.check() if check else result

    def sh(self, script: str, *, timeout: float = 30.0) -> str:
        """Standard output of a shell script that must succeed."""
        return self.run(script, timeout=timeout).out

    def popen(
        self,
        argv: guestio.Argv,
        *,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        tty: tuple[int, int] | None = None,
    ) -> guestio.Process:
        """Start a command and go on; it ends with this session at the latest."""
        seconds = None if timeout is None else self.pace.stretch(timeout)
        with self._told() as channel:
            return guestio.start(channel, argv, timeout=seconds, env=env, tty=tty)

    def spawn(
        self, argv: guestio.Argv, log: str, env: Mapping[str, str] | None = None
    ) -> guestio.Detached:
        """Start a command that outlives this session; its output goes to a guest file."""
        with self._told() as channel:
            return guestio.spawn(channel, argv, log, env, self.deadline(30))

    def ended(self, child: guestio.Detached) -> guestio.Result | None:
        """None while a spawned command runs."""
        with self._told() as channel:
            return guestio.ended(channel, child, self.deadline(30))

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        with self._told() as channel:
            guestio.put(channel, path, data, mode, self.deadline(60))

    def get(self, path: str) -> bytes:
        with self._told() as channel:
            return guestio.get(channel, path, self.deadline(60))

    def push_code(self) -> None:
        """Replace the code under test in the guest by this checkout's (no reboot)."""
        archive = code.tarball(self.config.flavour)
        script = "cd /opt/faultctl && rm -rf code && mkdir code && tar -xf -"
        self.run(script, stdin=archive, timeout=60)

    def start_agent(self, **options: Any) -> agent.AgentAccess:
        """Start faultd in the guest and wait until it answers: see agent.start()."""
        return agent.start(self, **options)

    def deadline(self, timeout: float) -> float:
        """time.monotonic() at which a wait of `timeout` native seconds is over here."""
        return time.monotonic() + self.pace.stretch(timeout)

    def power_on(self) -> None:
        """Start QEMU as launch.json says and wait until the guest answers (again, after kill());
        see boots.tried()."""
        boots.tried(self._switch_on, self._spoiled, self.kill, self.name)

    def _spoiled(self) -> bool:
        return self.accel.name == "tcg" and self.console.stale_breakpoint

    def _switch_on(self) -> None:
        self.console.restart()
        self._session = _Session(self._new_session().channel, self.console)
        (self.home / "end.json").unlink(missing_ok=True)
        (self.home / "pids.json").unlink(missing_ok=True)
        argv = [sys.executable, "-E", "-s", "-S", str(Path(__file__).with_name("supervise.py"))]
        log = self.home / "supervisor.log"
        self._supervisor = proc.detach([*argv, str(self.home)], log)
        slow = 5.0 if self.config.clock == "icount" else 1.0
        self.attach(self.pace.busy() * slow * BOOT_TIMEOUT[self.accel.name])

    def reset(self) -> None:
        """Press the reset button: the guest boots again on the same disks, uncleanly."""
        self.console.restart()
        qmp.command(self.home / "qmp.sock", "system_reset")
        self._booted("did not come back from a reset")

    def await_boot(self) -> None:
        """The guest goes down and boots again by itself, by a panic perhaps: wait for that."""
        self._session.may_panic = True
        try:
            self._booted("did not boot again")
        finally:
            self._session.may_panic = False
        self.console.restart()

    def _booted(self, else_what: str) -> None:
        deadline = time.monotonic() + self.pace.busy() * BOOT_TIMEOUT[self.accel.name]
        try:
            self._session.hello = self._session.channel.open(deadline, not_boot=self.boot_id)
        except NoAnswer as exc:
            raise self._failed(else_what, str(exc)) from exc

    def kill(self) -> None:
        """Cut the power. power_on() boots again on the same disks."""
        self._session.channel.close()
        self.entry.stop()

    def detach(self) -> None:
        """End this session only; the node runs on."""
        self._session.channel.close()

    def close(self) -> None:
        """End the session; a node that belongs to this process ends with it."""
        self.detach()
        if self.entry.read("launch.json").get("owner"):
            self.down()

    def down(self) -> None:
        """End the node and remove everything of it, unless FAULTCTL_LAB_KEEP is set."""
        self.entry.stop()
        if not os.environ.get("FAULTCTL_LAB_KEEP"):
            self.entry.remove()
        if self.config.network is not None:
            network.leave(self.config.network, self.name)

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
