"""Slots of the system-call programs: one for each armed step. Who, which calls, how often.

The order of the map updates matters: a slot is complete before any call comes to it, and
nothing comes to it any more before it is emptied.
"""

from __future__ import annotations

import os
import struct
import sys
from dataclasses import dataclass

from nodeagent.backends.syscall_bpf import SyscallHooks
from nodeagent.bind.node import Node
from nodeagent.bind.process import NODE_AGENTS, descendants, start_ticks
from nodeagent.crashpoint import crashpoint
from nodeagent.encode import syscall_maps as m
from nodeagent.encode.globs import START, compile_globs
from nodeagent.encode.syscall_maps import CallFlag, CallSlot, CallStats, Hits, Way
from nodeagent.encode.syscalls import table
from nodeagent.model.errors import Refused
from nodeagent.model.process import PidScope
from nodeagent.model.steps.syscall import SyscallFail

WAYS = {"modret": Way.MODRET, "entry": Way.ENTRY, "return": Way.RETURN, "lsm": Way.LSM}
_COMM = 16


@dataclass(frozen=True)
class Place:
    """One hook of a step: how, where, and the point it counts as."""

    way: Way
    function: str
    point: int


def places(step: SyscallFail) -> tuple[Place, ...]:
    """All hooks of a step. Those of 32-bit calls have their arguments elsewhere, so filters
    that look at them leave them out."""
    way, found = WAYS[step.way], []
    for hook in step.hooks:
        index = table()[hook.call].index
        if hook.lsm:
            found.append(Place(way, hook.lsm, m.point(way, index)))
        found += [Place(way, f, m.point(way, index)) for f in hook.functions]
        if not step.by_file:
            found += [Place(way, f, m.point(way, index, compat=True)) for f in hook.compat]
    return tuple(found)


def slot_value(step: SyscallFail, generation: int) -> CallSlot:
    """The program's parameters."""
    flags = CallFlag(0)
    for flag, on in (
        (CallFlag.UID, step.uid is not None),
        (CallFlag.RUNTIME, step.spare_runtime),
        (CallFlag.FILES, bool(step.paths)),
        (CallFlag.EXE, bool(step.exes)),
        (CallFlag.DEVICE, step.device is not None),
        (CallFlag.NET, bool(step.ports or step.nets)),
    ):
        flags |= flag if on else CallFlag(0)
    return CallSlot(
        value=step.value,
        seed=step.seed,
        first=step.first,
        at_most=step.at_most,
        every=step.every,
        rate_ppm=step.rate_ppm,
        flags=flags,
        fd_types=step.fd_types,
        uid=step.uid or 0,
        generation=generation,
        device=m.kernel_dev(*step.device) if step.device else 0,
    )


def _u32(number: int) -> bytes:
    return struct.pack("=I", number)


def _u64(number: int) -> bytes:
    return struct.pack("=Q", number)


class SyscallSlots:
    """Arms and disarms steps. Not safe from several threads: its owner locks."""

    def __init__(self, hooks: SyscallHooks, node: Node | None = None) -> None:
        self._hooks = hooks
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
                self._hooks.attach(place.way, place.function, place.point, slot)
                crashpoint("syscall:hook")
            self._open(slot, step)
        except BaseException:
            self.disarm(slot)
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
            if hook.lsm:
                number = m.pack_number(call.index, self._lsm(hook.lsm))
                self._maps["fc_numbers"].update(_u32(hook.number), number)
        crashpoint("syscall:slot")

    def _lsm(self, hook: str) -> int:
        known = self._hooks.hook_numbers
        return known.setdefault(hook, len(known) + 1)

    def _open(self, slot: int, step: SyscallFail) -> None:
        for place in places(step):
            self._mask("fc_points", _u32(place.point), slot, True, keep=True)
        scope = step.scope
        if isinstance(scope, PidScope):
            if scope.tree:
                self._hooks.attach_tree(slot)
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
        if isinstance(step.scope, PidScope):
            self._forget_processes(slot)
        else:
            self._mask("fc_cgroups", _u64(step.scope.id), slot, False)
        self._hooks.release(slot)
        for exe in (False, True):
            state = START
            while self._maps["fc_globs"].delete(m.glob_key(slot, state, exe)):
                state += 1
        for key in list(self._maps["fc_hits"].keys()):
            if m.hit_slot(key) == (slot, generation):
                self._maps["fc_hits"].delete(key)
        del self._held[slot]
        self._write_control()

    def _forget_processes(self, slot: int) -> None:
        for key in list(self._maps["fc_tgids"].keys()):
            found = self._maps["fc_tgids"].lookup(key)
            start, slots, tree = m.unpack_process(found) if found else (0, 0, 0)
            if not slots >> slot & 1:
                continue
            if slots == 1 << slot:
                self._maps["fc_tgids"].delete(key)
            else:
                left = m.pack_process(start, slots & ~(1 << slot), tree & ~(1 << slot))
                self._maps["fc_tgids"].update(key, left)

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
            if not self._hooks.attached(place.way, place.function, place.point, slot):
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
        return self._hooks.missed(slot)
