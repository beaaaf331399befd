"""Steps on system calls: loaded with the first one, detached when nothing is armed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Runtime
from nodeagent.backends.bpf_object import BTF_VMLINUX
from nodeagent.backends.pid_watch import PidWatch
from nodeagent.backends.syscall_bpf import TREE, SyscallHooks
from nodeagent.backends.syscall_places import places
from nodeagent.backends.syscall_slots import SyscallSlots
from nodeagent.bind.node import Node
from nodeagent.bind.process import (
    CGROUPS,
    born,
    cgroup_pids,
    descendants,
    has_io_uring,
    is_compat,
    start_ticks,
)
from nodeagent.encode.syscall_maps import Hits
from nodeagent.encode.syscalls import URING, table
from nodeagent.model.bpf import chosen_loader
from nodeagent.model.errors import BackendError, FaultError, Refused
from nodeagent.model.process import PidScope
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.syscall import SyscallFail

MAX_PROCESSES = 64
MAX_LOOKED_AT = 64
KRETPROBES = (
    "after a call: of each function only so many calls are followed at a time on the whole node "
    "(a kretprobe's maxactive, some twice the CPUs, at least 10), those beyond pass"
)
"""register_kretprobe, kernel/kprobes.c; a perf event cannot ask for more."""


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backend of this module."""
    return {SyscallFail: SyscallBackend(runtime)}


class SyscallBackend:
    """One slot for each armed step."""

    def __init__(self, runtime: Runtime) -> None:
        self._lock = threading.Lock()
        self._slots: SyscallSlots | None = None
        self._armed: dict[tuple[str, SyscallFail], int] = {}
        self._node = Node()
        self._watch = PidWatch(runtime.on_event, self._node)
        self._loader = runtime.bpf_loader
        if runtime.bpf_loader == "bcc" and runtime.on_event is not None:
            threading.Thread(target=self._prepare, name="bcc", daemon=True).start()

    def is_slow(self) -> bool:
        """Whether programs are compiled on the node, which takes seconds at best."""
        return chosen_loader(self._loader, BTF_VMLINUX.exists()) == "bcc"

    def prepare(self, step: SyscallFail) -> None:
        """Compile what observe() loads. Raises FaultError, OSError."""
        with self._lock:
            hooks = self._ready().hooks
            wanted = {hooks.object_of(p.way, p.function, p.point) for p in places(step)}
        if isinstance(step.scope, PidScope) and step.scope.tree:
            wanted.add(TREE)
        for name in sorted(wanted):  # without the lock: evidence is asked for meanwhile
            hooks.loader.compile(name)

    def _prepare(self) -> None:
        with suppress(FaultError, OSError):  # it is said again when a fault asks for it
            with self._lock:
                loader = self._ready().hooks.loader
            loader.prepare()

    def observe(self, fault_id: str, step: SyscallFail, peers: Sequence[Peer]) -> Prior:
        """Load all programs, so that a refusal comes before anything is changed."""
        self._check_alive(step)
        with self._lock:
            hooks = self._ready().hooks
            for place in places(step):
                hooks.load(place.way, place.function, place.point)
            if isinstance(step.scope, PidScope) and step.scope.tree:
                hooks.load_tree()
        return {"fault": fault_id}

    def _ready(self) -> SyscallSlots:
        if self._slots is None:
            self._slots = SyscallSlots(SyscallHooks(self._loader), self._node)
        return self._slots

    def _check_alive(self, step: SyscallFail) -> None:
        """A pid may have gone, or been used again, since the plan."""
        scope = step.scope
        if not isinstance(scope, PidScope):
            return
        what = f"process {scope.pid} cannot be hit"
        try:
            now = start_ticks(self._node, scope.pid)
        except OSError:
            raise Refused(what, "it has ended since the plan was made", "plan again") from None
        if now != scope.start_ticks:
            raise Refused(what, "another process has its pid by now", "plan again")

    def status(self, step: SyscallFail, prior: Prior, peers: Sequence[Peer]) -> Status:
        """OURS while a slot is held for it, be it half freed; it all goes with this process."""
        with self._lock:
            return Status.OURS if (prior["fault"], step) in self._armed else Status.PRIOR

    def apply(
        self, fault_id: str, step: SyscallFail, prior: Prior, peers: Sequence[Peer]
    ) -> Outcome:
        """Take a slot, open it and read it back. Raises FaultError, OSError."""
        with self._lock:
            slots, slot = self._ready(), self._armed.get((fault_id, step))
            if slot is None:
                slot = self._armed[fault_id, step] = slots.arm(step)
            if not slots.is_armed(slot):
                why = "the kernel does not show all its hooks, or other parameters"
                raise BackendError("the calls are not armed", why)
        if isinstance(step.scope, PidScope):
            self._watch_end(fault_id, step.scope, slot)
        return {"slot": slot}

    def _watch_end(self, fault_id: str, scope: PidScope, slot: int) -> None:
        """One watch a fault, however many of its steps hit the process."""
        self._watch.remove(fault_id)
        try:
            self._watch.add(fault_id, scope, lambda: self._anyone(slot))
        except ProcessLookupError:
            raise Refused(
                f"process {scope.pid} cannot be hit", "it has ended by now", "plan again"
            ) from None

    def _anyone(self, slot: int) -> bool:
        """Whether any process of a slot's tree lives."""
        with self._lock:
            if self._slots is None:
                return False
            known = self._slots.processes(slot)
        return any(born(self._node, pid) == start for pid, start in known.items())

    def undo(self, fault_id: str, step: SyscallFail, prior: Prior, peers: Sequence[Peer]) -> None:
        """Close the slot; hooks that nobody needs any more are detached."""
        with self._lock:
            slot = self._armed.get((fault_id, step))
            if slot is not None and self._slots is not None:
                self._slots.disarm(slot)  # when it fails, the next attempt finds it
                del self._armed[fault_id, step]
        self._watch.remove(fault_id)

    def measure(self, fault_id: str, step: SyscallFail, prior: Prior) -> dict[str, Any]:
        """Counters in all, by call, by process; and what goes past the hooks."""
        with self._lock:
            slot = self._armed.get((fault_id, step))
            if slot is None or self._slots is None:
                return {}
            stats, hits = self._slots.stats(slot), self._slots.hits(slot)
            missed = self._slots.missed(slot)
        names = {call.index: call.name for call in table().values()}
        ranked = sorted((h for h in hits if h.tgid), key=lambda h: (-h.hits, -h.seen, h.tgid))
        return {
            "stats": asdict(stats),
            "missed": missed,
            "calls": {names[h.call]: _entry(h) for h in hits if not h.tgid},
            "processes": [
                {"pid": h.tgid, "comm": h.comm, "call": names[h.call], **_entry(h)}
                for h in ranked[:MAX_PROCESSES]
            ],
            "more_processes": max(0, len(ranked) - MAX_PROCESSES),
            "uncovered": self._uncovered(step),
        }

    def _uncovered(self, step: SyscallFail) -> list[str]:
        """What the target does that no hook of the step sees."""
        said, pids = [], self._pids(step)
        if step.way == "return":
            said.append(KRETPROBES)
        if {hook.call for hook in step.hooks} & URING:
            said += [
                f"process {pid} has an io_uring: what it does by it passes, not covered"
                for pid in pids
                if has_io_uring(self._node, pid)
            ]
        if any(not hook.compat for hook in step.hooks) or step.by_file or step.when:
            said += [
                f"process {pid} is a 32-bit program: its calls pass, not covered"
                for pid in pids
                if is_compat(self._node, pid)
            ]
        return said

    def _pids(self, step: SyscallFail) -> tuple[int, ...]:
        if isinstance(step.scope, PidScope):
            tree = step.scope.tree
            found = descendants(self._node, step.scope.pid) if tree else (step.scope.pid,)
            return found[:MAX_LOOKED_AT]
        return cgroup_pids(CGROUPS / step.scope.path.lstrip("/"))[:MAX_LOOKED_AT]


def _entry(hits: Hits) -> dict[str, int]:
    found = {"seen": hits.seen, "hits": hits.hits}
    if hits.hits:
        found |= {"first_ns": hits.first_ns, "last_ns": hits.last_ns}
    return found
