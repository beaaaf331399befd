"""Slots of the system-call programs: what one fault leaves is nothing that the next one meets."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import map_kit
import pytest

from nodeagent.backends import Runtime, bpf_attach, syscall_bpf, syscall_slots
from nodeagent.backends.bpf_attach import FdLink
from nodeagent.backends.syscall_bpf import SyscallHooks
from nodeagent.backends.syscall_slots import SyscallSlots
from nodeagent.backends.syscall_steps import SyscallBackend
from nodeagent.bind.node import Node
from nodeagent.encode.syscall_maps import Way, pack_process, unpack_process
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.process import PidScope
from nodeagent.model.steps.syscall import Hook, SyscallFail

ROOT, START = 4000, 70
STEP = SyscallFail(
    way="modret",
    hooks=(Hook(call="read", functions=("__x64_sys_read",)),),
    scope=PidScope(pid=ROOT, start_ticks=START, tree=True),
    value=-5,
)


def key(pid: int) -> bytes:
    return struct.pack("=I", pid)


class Table(map_kit.Table):
    """One in which `forks` runs once all keys were listed."""

    def __init__(self) -> None:
        super().__init__()
        self.forks: list[int] = []

    def keys(self) -> Iterator[bytes]:  # type: ignore[override]
        yield from list(super().keys())
        if self.forks and key(ROOT) in self:
            child = self.forks.pop()
            _, _, tree = unpack_process(self[key(ROOT)])
            self[key(child)] = pack_process(START + 1, tree, tree)


class Maps(dict[str, Table]):
    def __missing__(self, name: str) -> Table:
        return self.setdefault(name, Table())


class Hooks:
    """Attaches nothing."""

    def __init__(self) -> None:
        self.maps = Maps()

    def attach(self, *place: Any) -> None:
        pass

    def attach_tree(self, slot: int) -> None:
        pass

    def release(self, slot: int) -> None:
        pass


@pytest.fixture
def hooks() -> Hooks:
    return Hooks()


@pytest.fixture
def slots(hooks: Hooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SyscallSlots:
    monkeypatch.setattr(syscall_slots, "wait_for_programs", lambda: None)
    found: Any = hooks
    return SyscallSlots(found, Node(proc=tmp_path))


def test_a_child_born_while_a_tree_is_released_is_no_target_of_the_next_fault(
    hooks: Hooks, slots: SyscallSlots
) -> None:
    slot = slots.arm(STEP)
    hooks.maps["fc_tgids"].forks = [4100]
    slots.disarm(slot)
    assert hooks.maps["fc_tgids"] == {}
    other = STEP.model_copy(update={"scope": PidScope(pid=5000, start_ticks=80)})
    assert slots.processes(slots.arm(other)) == {5000: 80}


def test_a_child_of_a_fork_that_was_under_way_is_forgotten_as_well(
    hooks: Hooks, slots: SyscallSlots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had read its parent's entry before that was taken; it writes when all looks clean."""
    slot = slots.arm(STEP)
    late = [4200]

    def wait() -> None:
        if late and key(ROOT) not in hooks.maps["fc_tgids"]:
            entry = pack_process(START + 1, 1 << slot, 1 << slot)
            hooks.maps["fc_tgids"].update(key(late.pop()), entry)

    monkeypatch.setattr(syscall_slots, "wait_for_programs", wait)
    slots.disarm(slot)
    assert not late
    assert hooks.maps["fc_tgids"] == {}


def test_a_tree_that_outruns_us_keeps_its_slot(
    hooks: Hooks, slots: SyscallSlots, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = slots.arm(STEP)

    def wait() -> None:
        entry = pack_process(START + 1, 1 << slot, 1 << slot)
        hooks.maps["fc_tgids"].update(key(4300), entry)

    monkeypatch.setattr(syscall_slots, "wait_for_programs", wait)
    with pytest.raises(BackendError, match="not all forgotten"):
        slots.disarm(slot)
    monkeypatch.setattr(syscall_slots, "wait_for_programs", lambda: None)
    other = STEP.model_copy(update={"scope": PidScope(pid=5000, start_ticks=80)})
    assert slots.arm(other) != slot
    slots.disarm(slot)  # the next attempt
    assert slots.processes(slot) == {}


def test_a_full_map_is_a_refusal_and_leaves_nothing(
    hooks: Hooks, slots: SyscallSlots, monkeypatch: pytest.MonkeyPatch
) -> None:
    globs, room = hooks.maps["fc_globs"], 5

    def update(key: bytes, value: bytes) -> None:
        if len(globs) == room:
            raise OSError(errno.E2BIG, "update fc_globs: Argument list too long")
        globs[key] = value

    monkeypatch.setattr(globs, "update", update)
    with pytest.raises(Refused, match="no room is left") as caught:
        slots.arm(STEP.model_copy(update={"paths": ("/var/lib/db/**",)}))
    assert "fc_globs" in caught.value.why
    assert "revert a fault first" in caught.value.hint
    assert globs == {}
    assert hooks.maps["fc_tgids"] == {}
    assert slots.arm(STEP) == 0


def test_nothing_is_emptied_before_the_programs_on_their_way_have_ended(
    hooks: Hooks, slots: SyscallSlots, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = slots.arm(STEP)
    seen: list[int] = []

    def wait() -> None:
        points = hooks.maps["fc_points"].values()
        assert not any(int.from_bytes(mask, "little") for mask in points)
        seen.append(len(hooks.maps["fc_tgids"]))

    monkeypatch.setattr(syscall_slots, "wait_for_programs", wait)
    slots.disarm(slot)
    assert seen[0] == 1


def test_what_a_program_missed_before_is_not_the_next_faults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    misses = 7
    monkeypatch.setattr(syscall_bpf, "recursion_misses", lambda fd: misses)
    hooks = SyscallHooks.__new__(SyscallHooks)
    hooks._missed_before, hooks._tree_users, hooks._tree_links = {}, set(), []
    hook = syscall_bpf._Hook(-1, lambda: FdLink(-1), FdLink(-1))
    hooks._hooks = {(Way.MODRET, "__x64_sys_read", 0): hook}
    monkeypatch.setattr(FdLink, "close", lambda self: None)
    monkeypatch.setattr(FdLink, "missed", lambda self: 0)
    hooks.attach(Way.MODRET, "__x64_sys_read", 0, 0)
    assert hooks.missed(0) == 0
    misses = 10
    assert hooks.missed(0) == 3
    hooks.attach(Way.MODRET, "__x64_sys_read", 0, 1)
    assert (hooks.missed(0), hooks.missed(1)) == (3, 0)
    hooks.attach(Way.MODRET, "__x64_sys_read", 0, 1)  # twice is once
    assert hooks.missed(1) == 0
    hooks.release(0)
    hooks.attach(Way.MODRET, "__x64_sys_read", 0, 0)
    assert hooks.missed(0) == 0


def test_calls_that_a_kretprobe_had_no_room_for_are_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two functions, one program: its own misses count once, those of each probe by itself."""
    over = {-1: 5, -2: 0}
    monkeypatch.setattr(syscall_bpf, "recursion_misses", lambda fd: 100)
    monkeypatch.setattr(FdLink, "missed", lambda self: over[self._fd or 0])
    hooks = SyscallHooks.__new__(SyscallHooks)
    hooks._missed_before = {}
    names = {"__x64_sys_read": -1, "__x64_sys_readv": -2}
    hooks._hooks = {
        (Way.RETURN, name, 0): syscall_bpf._Hook(9, lambda: FdLink(-3), FdLink(fd))
        for name, fd in names.items()
    }
    for name in names:
        hooks.attach(Way.RETURN, name, 0, 0)
    assert hooks.missed(0) == 0
    over.update({-1: 7, -2: 4})
    assert hooks.missed(0) == 6


def test_misses_are_read_where_the_kernel_writes_them() -> None:
    """struct bpf_link_info of 6.12: type, id, prog_id; perf_event: type; kprobe: func_name,
    name_len, offset, addr, missed, cookie."""
    kretprobe = struct.pack("=III4xI4xQIIQQQ", 7, 1, 2, 4, 0, 14, 0, 0xFFFF, 42, 3)
    assert bpf_attach._missed_in(kretprobe.ljust(128, b"\0")) == 42
    tracing = struct.pack("=III4xIIQIIQQQ", 2, 1, 2, 4, 0, 0, 14, 0, 0xFFFF, 42, 3)
    assert bpf_attach._missed_in(tracing.ljust(128, b"\0")) == 0


@pytest.mark.parametrize("tree", [True, False])
def test_an_io_uring_of_a_child_is_said_of_a_tree(tmp_path: Path, tree: bool) -> None:
    for pid, parent in ((ROOT, 1), (4100, ROOT)):
        (tmp_path / f"{pid}/fd").mkdir(parents=True)
        (tmp_path / f"{pid}/stat").write_text(f"{pid} (x) S {parent} " + "0 " * 30)
    (tmp_path / "4100/fd/5").symlink_to("anon_inode:[io_uring]")
    backend = SyscallBackend(Runtime(tmp_path, "n0", None, "libbpf"))
    backend._node = Node(proc=tmp_path)
    scope = PidScope(pid=ROOT, start_ticks=START, tree=tree)
    said = backend._uncovered(STEP.model_copy(update={"scope": scope}))
    assert any("process 4100 has an io_uring" in line for line in said) is tree
