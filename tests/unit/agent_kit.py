"""A real agent and its real server on the small kernel; only the guardian's process is left out."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import core_kit
import grpc
import pytest
from core_kit import FakeKernel

from controller.client import AgentAddress, AgentClient
from nodeagent import agent as agent_module
from nodeagent import doctor
from nodeagent.agent import Agent, AgentConfig
from nodeagent.listen import TlsFiles
from nodeagent.transport import build_server


class NoWard:
    """Stands where the guardian's process is looked after; test_guardian.py has the real one."""

    def __init__(
        self, state_dir: Path, epoch: int, on_loss: Callable[[str], None], log_format: str
    ) -> None:
        self.pid: int | None = 1

    def begin(self) -> None: ...

    def start(self) -> None: ...

    def poke(self) -> None: ...

    def stop(self) -> None: ...


class KitBinder:
    def __init__(self, *args: Any) -> None: ...

    bind = staticmethod(core_kit.bind)
    place = staticmethod(core_kit.place)


class Served:
    """An agent, its server on a Unix socket, and a client."""

    def __init__(self, home: Path, kernel: FakeKernel) -> None:
        self.home = home
        self.kernel = kernel
        self.socket = home / "run" / "s.sock"
        self.socket.parent.mkdir(mode=0o700)
        self.agent = Agent(AgentConfig(state_dir=home / "state", modprobe=False))
        assert self.agent.start() == []
        self.url = f"unix://{self.socket}"
        self.server = self.serve((self.url,))
        self.client = AgentClient(AgentAddress(self.url))

    def serve(
        self, listen: tuple[str, ...], tls: TlsFiles | None = None, reflection: bool = False
    ) -> grpc.Server:
        server = build_server(self.agent, listen, tls, reflection)
        server.start()
        return server

    def close(self) -> None:
        self.client.__exit__(None, None, None)
        self.server.stop(0).wait()
        self.agent.close()


@contextmanager
def small_node(patch: pytest.MonkeyPatch) -> Iterator[tuple[Path, FakeKernel]]:
    """Where an agent can be started; the name is short, as sun_path has 108 bytes (unix(7))."""
    home = Path(tempfile.mkdtemp(prefix="fc-"))
    kernel = FakeKernel(home / "kernel.json")
    for name in ("a", "b", "c"):
        kernel.put(name, f"{name}0")
    patch.setattr(agent_module, "load_backends", lambda runtime: core_kit.registry(kernel))
    patch.setattr(agent_module, "Binder", KitBinder)
    patch.setattr(agent_module, "Ward", NoWard)
    patch.setattr(doctor, "load_scavengers", list)
    try:
        with core_kit.registered():
            yield home, kernel
    finally:
        shutil.rmtree(home)


@contextmanager
def served(patch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A served agent."""
    with small_node(patch) as (home, kernel):
        found = Served(home, kernel)
        try:
            yield found
        finally:
            found.close()


@contextmanager
def left_as_found(node: Served) -> Iterator[None]:
    """What a test injects is taken back by it or here, and the kernel is then as before."""
    before = node.kernel.fingerprint()
    yield
    node.kernel.fail.clear()
    for fault in node.client.faults(active_only=True):
        node.client.revert(fault.id)
    assert node.kernel.fingerprint() == before
