"""Slots of the system-call programs: one for each armed step. Who, which calls, how often.

The order of the map updates matters: a slot is complete before any call comes to it, and
nothing comes to it any more before it is emptied.
"""

from __future__ import annotations

import errno
import os
import platform
import struct
import sys

from nodeagent.backends.libbpf import wait_for_programs
from nodeagent.backends.syscall_bpf import SyscallHooks
from nodeagent.backends.syscall_places import places, slot_value
from nodeagent.bind.node import Node
from nodeagent.bind.process import NODE_AGENTS, descendants, start_ticks
from nodeagent.crashpoint import crashpoint
from nodeagent.encode import syscall_maps as m
from nodeagent.encode.globs import START, compile_globs
from nodeagent.encode.predicate_code import compile_when
from nodeagent.encode.syscall_maps import CallStats, Hits
from nodeagent.encode.syscalls import table
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.process import PidScope
from nodeagent.model.steps.syscall import SyscallFail

_COMM = 16
MAX_ROUNDS = 100


def _u32(number: int) -> bytes:
    return struct.pack("=I", number)


def _u64(number: int) -> bytes:
    return struct.pack("=Q", number)


def _no_room(exc: OSError) -> Refused:
    """Of a map that is full: patterns, predicates and processes of all faults share them."""
    return Refused(
        "no room is left in the system-call programs",
        f"too many patterns, predicates or processes are armed on this node ({exc.strerror})",
        "revert a fault first: faultctl ls; or give fewer or shorter patterns",
    )


class SyscallSlots:
    """Arms and disarms steps. Not safe from several threads: its owner locks."""

    def __init__(self, hooks: SyscallHooks, node: Node | None = None) -> None:
        self.hooks = hooks
        self._maps = hooks.maps
        self._node = node or Node()
        self._held: dict[int, tuple[SyscallFail, int]] = {}
        self._generation = 0
        for name in NODE_AGENTS:
            key = name.encode()[: _COMM - 1].ljust(_COMM, b"\0")
            self._maps["fc_spared"].update(key, b"\1")
        self._write_control()

    def arm(self, step: SyscallFail) -> int:
        """Let the calls fail from now on; gives the slot. Raises FaultError, OSError."""
        slot = self._free()
        self._generation += 1
        self._held[slot] = (step, self._generation)
        try:
            self._fill(slot, step)
            for place in places(step):
                self.hooks.attach(place.way, place.function, place.point, slot)
                crashpoint("syscall:hook")
            self._open(slot, step)
        except BaseException as exc:
            self.disarm(slot)
            if isinstance(exc, OSError) and exc.errno == errno.E2BIG:
                raise _no_room(exc) from exc
            raise
        return slot

    def _free(self) -> int:
        for slot in range(m.MAX_SLOTS):
            if slot not in self._held:
                return slot
        raise Refused(
            "no slot is free in the system-call programs",
            f"{m.MAX_SLOTS} faults are armed on this node",
            "revert one first: faultctl ls",
        )

    def _fill(self, slot: int, step: SyscallFail) -> None:
        value = slot_value(step, self._held[slot][1])
        self._maps["fc_call_stats"].update(_u32(slot), bytes(m.STATS_SIZE))
        self._maps["fc_call_slots"].update(_u32(slot), value.pack())
        self._maps["fc_call_nets"].update(_u32(slot), m.pack_nets(step.ports, step.nets))
        for exe, patterns in ((False, step.paths), (True, step.exes)):
            for state, row in enumerate(compile_globs(patterns), START):
                self._maps["fc_globs"].update(m.glob_key(slot, state, exe), row)
        for hook in step.hooks:
            call = table()[hook.call]
            info = m.pack_info(call.subject, call.named)
            self._maps["fc_call_info"].update(_u32(call.index), info)
            if step.when:
                code = compile_when(step.when, call, platform.machine())
                self._maps["fc_whens"].update(m.when_key(slot, call.index), code)
            if hook.lsm:
                number = m.pack_number(call.index, self.hooks.lsm_number(hook.lsm))
                self._maps["fc_numbers"].update(_u32(hook.number), number)
        crashpoint("syscall:slot")

    def _open(self, slot: int, step: SyscallFail) -> None:
        for place in places(step):
            self._mask("fc_points", _u32(place.point), slot, True, keep=True)
        scope = step.scope
        if isinstance(scope, PidScope):
            if scope.tree:
                self.hooks.attach_tree(slot)
            self._write_control()
            crashpoint("syscall:open")
            self._add_processes(slot, scope)
        else:
            self._write_control()
            crashpoint("syscall:open")
            self._mask("fc_cgroups", _u64(scope.id), slot, True)

    def _add_processes(self, slot: int, scope: PidScope) -> None:
        """The root first: what it bears from then on comes by itself. Then who is there."""
        self._add(slot, scope.pid, scope.start_ticks, scope.tree)
        known = {scope.pid}
        while scope.tree:
            new = set(descendants(self._node, scope.pid)) - known
            if not new:
                return
            known |= new
            for pid in new:
                try:
                    self._add(slot, pid, start_ticks(self._node, pid), True)
                except (FileNotFoundError, ProcessLookupError):
                    continue

    def _add(self, slot: int, pid: int, start: int, tree: bool) -> None:
        found = self._maps["fc_tgids"].lookup(_u32(pid))
        was, slots, inherited = m.unpack_process(found) if found else (start, 0, 0)
        if was != start:
            slots, inherited = 0, 0  # an earlier process had this pid
        value = m.pack_process(start, slots | 1 << slot, inherited | tree << slot)
        self._maps["fc_tgids"].update(_u32(pid), value)

    def disarm(self, slot: int) -> None:
        """No call comes to the slot any more; harmless when it is free."""
        held = self._held.get(slot)
        if held is None:
            return
        step, generation = held
        for place in places(step):
            self._mask("fc_points", _u32(place.point), slot, False, keep=True)
        crashpoint("syscall:closed")
        self.hooks.release(slot)
        wait_for_programs()  # one that was on its way would count for the slot's next fault
        if isinstance(step.scope, PidScope):
            self._forget_processes(slot, step.scope.tree)
        else:
            self._mask("fc_cgroups", _u64(step.scope.id), slot, False)
        if step.when:
            for hook in step.hooks:
                self._maps["fc_whens"].delete(m.when_key(slot, table()[hook.call].index))
        for exe in (False, True):
            state = START
            while self._maps["fc_globs"].delete(m.glob_key(slot, state, exe)):
                state += 1
        for key in list(self._maps["fc_hits"].keys()):
            if m.hit_slot(key) == (slot, generation):
                self._maps["fc_hits"].delete(key)
        del self._held[slot]
        self._write_control()

    def _forget_processes(self, slot: int, tree: bool) -> None:
        """Of a tree, until none is left: a fork that was under way puts its child in afterwards,
        and with it the slot's next fault would hit children of this one."""
        for _ in range(MAX_ROUNDS):
            there = self._forget_those_there(slot)
            if not tree:
                return
            if not there:
                wait_for_programs()
                if not self._forget_those_there(slot):
                    return
        raise BackendError(
            "the target's children are not all forgotten",
            f"after {MAX_ROUNDS} rounds there were new ones",
            "end the process that forks so fast; it is tried again",
        )

    def _forget_those_there(self, slot: int) -> bool:
        """One pass; whether there was any."""
        any_there = False
        for key in list(self._maps["fc_tgids"].keys()):
            found = self._maps["fc_tgids"].lookup(key)
            start, slots, tree = m.unpack_process(found) if found else (0, 0, 0)
            if not slots >> slot & 1:
                continue
            any_there = True
            if slots == 1 << slot:
                self._maps["fc_tgids"].delete(key)
            else:
                left = m.pack_process(start, slots & ~(1 << slot), tree & ~(1 << slot))
                self._maps["fc_tgids"].update(key, left)
        return any_there

    def _mask(self, name: str, key: bytes, slot: int, on: bool, keep: bool = False) -> None:
        """Set or clear a slot's bit; an element without any goes, but for arrays (keep)."""
        now = self._maps[name].lookup(key)
        mask = int.from_bytes(now, sys.byteorder) if now else 0
        mask = mask | 1 << slot if on else mask & ~(1 << slot)
        if mask or keep:
            self._maps[name].update(key, _u64(mask))
        else:
            self._maps[name].delete(key)

    def _write_control(self) -> None:
        scopes = [step.scope for step, _ in self._held.values()]
        levels = {s.level for s in scopes if not isinstance(s, PidScope)}
        if len(levels) > m.MAX_LEVELS:
            raise Refused(
                "no more cgroups can be a target",
                f"those of armed faults lie at {m.MAX_LEVELS} depths already",
                "revert one first: faultctl ls",
            )
        tgids = any(isinstance(s, PidScope) for s in scopes)
        control = m.pack_control(os.getpid(), tgids, tuple(sorted(levels)))
        self._maps["fc_control"].update(_u32(0), control)

    # --- read back ----------------------------------------------------------------

    def is_armed(self, slot: int) -> bool:
        """Read from the kernel: parameters as they were set, a scope, all hooks attached."""
        if slot not in self._held:
            return False
        step, generation = self._held[slot]
        value = self._maps["fc_call_slots"].lookup(_u32(slot))
        if value != slot_value(step, generation).pack():
            return False
        for place in places(step):
            if not self.hooks.attached(place.way, place.function, place.point, slot):
                return False
            if not self._has("fc_points", _u32(place.point), slot):
                return False
        if isinstance(step.scope, PidScope):
            return True  # its entry goes with the process
        return self._has("fc_cgroups", _u64(step.scope.id), slot)

    def _has(self, name: str, key: bytes, slot: int) -> bool:
        found = self._maps[name].lookup(key)
        return bool(found and int.from_bytes(found, sys.byteorder) >> slot & 1)

    def processes(self, slot: int) -> dict[int, int]:
        """Thread groups of a slot by their start time, in 1/100 s since boot."""
        found = {}
        for key in list(self._maps["fc_tgids"].keys()):
            value = self._maps["fc_tgids"].lookup(key)
            start, slots, _ = m.unpack_process(value) if value else (0, 0, 0)
            if slots >> slot & 1:
                found[int.from_bytes(key, sys.byteorder)] = start
        return found

    def stats(self, slot: int) -> CallStats:
        """Counters of a slot."""
        found = self._maps["fc_call_stats"].lookup(_u32(slot))
        return m.unpack_stats(found or bytes(m.STATS_SIZE))

    def hits(self, slot: int) -> list[Hits]:
        """By call, and by call and process; the least recent processes may be left out."""
        held, found = self._held[slot], []
        for key in list(self._maps["fc_hits"].keys()):
            if m.hit_slot(key) == (slot, held[1]):
                value = self._maps["fc_hits"].lookup(key)
                if value is not None:
                    found.append(m.unpack_hits(key, value))
        return found

    def missed(self, slot: int) -> int:
        """See SyscallHooks.missed."""
        return self.hooks.missed(slot)
