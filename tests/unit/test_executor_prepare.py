"""What a backend prepares for minutes (bcc's compiler) holds up nobody else."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from core_kit import Core, HoldLink, LinkBackend, SetValue, registry, request

from nodeagent.backends import Registry, Runtime, syscall_steps
from nodeagent.backends.bcc import BccLoader
from nodeagent.executor import Executor
from nodeagent.executor_parts import Node
from nodeagent.model.errors import BackendError, Conflict, FaultError
from nodeagent.model.plan import Lease
from nodeagent.model.process import CgroupScope
from nodeagent.model.steps.syscall import Hook, SyscallFail

WAIT_S = 30.0
LEASE = Lease.model_validate({"duration": "5m"})


class Compiles(LinkBackend):
    """Takes as long as the test wants."""

    begun: threading.Event
    end: threading.Event
    error: FaultError | None = None

    def is_slow(self) -> bool:
        return True

    def prepare(self, step: HoldLink) -> None:
        self.begun.set()
        assert self.end.wait(WAIT_S)
        if self.error is not None:
            raise self.error


@pytest.fixture
def slow(core: Core) -> Compiles:
    found = Compiles(core.kernel)
    found.begun, found.end = threading.Event(), threading.Event()
    known = registry(core.kernel)
    core.backends = Registry({**known._backends, HoldLink: found})
    parts: Any = core.executor._node
    node = Node(parts.journal, parts.lock, core.backends, parts.bind, parts.facts, parts.epoch)
    core.executor = Executor(node)
    return found


def test_others_are_reverted_while_a_backend_prepares(core: Core, slow: Compiles) -> None:
    core.apply("f-old", SetValue(name="a", value="x"))
    asked = request("f-new", HoldLink(name="l"))
    digest = core.executor.plan(asked).digest
    thread = threading.Thread(target=core.executor.apply, args=(asked, LEASE, digest))
    thread.start()
    try:
        assert slow.begun.wait(WAIT_S)
        done = threading.Thread(target=core.executor.revert, args=("f-old",))
        done.start()
        done.join(WAIT_S / 3)
        assert core.state("f-old") == "ended"
        assert core.journal.find_fault("f-new") is None
    finally:
        slow.end.set()
        thread.join(WAIT_S)
    assert core.state("f-new") == "armed"


def test_a_rejection_while_preparing_is_an_event_with_its_log(core: Core, slow: Compiles) -> None:
    slow.end.set()
    slow.error = BackendError("it cannot be compiled", "no such member")
    slow.error.log = "error: no member named 'x'"
    with pytest.raises(BackendError, match="cannot be compiled"):
        core.apply("f-1", HoldLink(name="l"))
    found = [event for event in core.journal.events() if event.type == "program-rejected"]
    assert "no member named" in str(found[0].data)
    assert core.journal.find_fault("f-1") is None


def test_what_a_plan_meets_before_its_turn_is_looked_at_again(
    core: Core, slow: Compiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first plan may meet a fault that is just being reverted; the one that counts does not."""
    slow.end.set()
    asked = request("f-1", HoldLink(name="l"))
    digest, plan, met = core.executor.plan(asked).digest, core.executor.plan, [Conflict("met")]

    def once(request: Any) -> Any:
        if met:
            raise met.pop()
        return plan(request)

    monkeypatch.setattr(core.executor, "plan", once)
    assert core.executor.apply(asked, LEASE, digest).state == "armed"
    assert not met


def test_a_source_that_is_compiled_does_not_wait_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, end = threading.Event(), threading.Event()

    def compiled(self: BccLoader, name: str) -> Any:
        if name == "syscall_tree":
            begun.set()
            assert end.wait(WAIT_S)
        return name, {}

    monkeypatch.setattr(BccLoader, "_compile", compiled)
    loader = BccLoader({}, Path("/nonexistent"))
    loader.compile("syscall_kprobe")
    other = threading.Thread(target=loader.compile, args=("syscall_tree",))
    other.start()
    try:
        assert begun.wait(WAIT_S)
        again = threading.Thread(target=loader.compile, args=("syscall_kprobe",))
        again.start()
        again.join(WAIT_S / 3)
        assert not again.is_alive()
    finally:
        end.set()
        other.join(WAIT_S)


def test_only_bcc_is_slow_and_compiles_what_a_step_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert not syscall_steps.SyscallBackend(Runtime(tmp_path, "n0", None, "libbpf")).is_slow()
    backend = syscall_steps.SyscallBackend(Runtime(tmp_path, "n0", None, "bcc"))
    assert backend.is_slow()
    hooks = syscall_steps.SyscallHooks.__new__(syscall_steps.SyscallHooks)
    hooks.loader, compiled = BccLoader({}), list[str]()
    monkeypatch.setattr(BccLoader, "compile", lambda self, name: compiled.append(name))
    slots = syscall_steps.SyscallSlots.__new__(syscall_steps.SyscallSlots)
    slots.hooks = hooks
    backend._slots = slots
    scope = CgroupScope(id=5, level=1, path="/a")
    hook = Hook(call="read", functions=("__x64_sys_read",))
    backend.prepare(SyscallFail(way="modret", hooks=(hook,), scope=scope, value=-5))
    assert compiled == ["syscall_modret"]
