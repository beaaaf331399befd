"""The BPF programs that fail system calls: one set of maps, hooks attached by demand.

A hook is one function hooked in one way. Its program is loaded when it is first asked for,
stays loaded, and is attached only while a fault needs it; all of it ends with this process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nodeagent.backends.bcc import BccLoader
from nodeagent.backends.bpf_attach import (
    FdLink,
    attach_kprobe,
    attach_raw_tracepoint,
    attach_tracing,
)
from nodeagent.backends.bpf_loader import LibbpfLoader, Loader, SharedObject, Want
from nodeagent.backends.bpf_object import BTF_VMLINUX, recursion_misses
from nodeagent.backends.libbpf import BpfMap, VerifierRejected
from nodeagent.encode.syscall_maps import Way
from nodeagent.encode.syscalls import hooked
from nodeagent.model.bpf import MAPS, chosen_loader
from nodeagent.model.errors import Refused

TREE = "syscall_tree"
_TREE = {"fc_tree_fork": "sched_process_fork", "fc_tree_exit": "sched_process_exit"}
_KPROBES = {Way.ENTRY: "fc_syscall_entry", Way.RETURN: "fc_syscall_return"}


@dataclass
class _Hook:
    """One loaded hook. Those by kprobes share one program, and so its descriptor."""

    program_fd: int
    attach: Callable[[], FdLink]
    link: FdLink | None = None
    users: set[int] = field(default_factory=set)
    """Slots that need it attached."""


def _key(way: Way, function: str, point: int) -> tuple[Way, str, int]:
    """An LSM hook is one hook for all calls that pass it: two programs would count twice."""
    return way, function, -1 if way is Way.LSM else point


class SyscallHooks:
    """Loads and attaches by demand. Not safe from several threads: its owner locks."""

    def __init__(self, loader: str = "auto") -> None:
        """loader: auto, libbpf or bcc."""
        self._base = SharedObject(MAPS, relocated=False)
        self._base.load()
        self.maps: dict[str, BpfMap] = self._base.maps()
        chosen = chosen_loader(loader, BTF_VMLINUX.exists())
        self.loader: Loader = (
            BccLoader(self.maps) if chosen == "bcc" else LibbpfLoader(self.maps)
        )  # fmt: skip
        self._hooks: dict[tuple[Way, str, int], _Hook] = {}
        self._programs: dict[Want, int] = {}
        self._tree_links: list[FdLink] = []
        self._tree_users: set[int] = set()
        self._hook_numbers: dict[str, int] = {}
        self._missed_before: dict[int, int] = {}
        """Slot -> what its programs and probes had missed for earlier faults already."""

    def load(self, way: Way, function: str, point: int) -> None:
        """Have a hook ready. Raises VerifierRejected, Refused, OSError."""
        key = _key(way, function, point)
        if key in self._hooks:
            return
        try:
            fd = self._program(self._want(way, function, point))
        except VerifierRejected as exc:
            raise _explained(exc, way, function) from exc

        def attach() -> FdLink:
            if way in _KPROBES:
                return attach_kprobe(fd, function, point, way is Way.RETURN)
            return attach_tracing(fd, function)

        self._hooks[key] = _Hook(fd, attach)

    def _want(self, way: Way, function: str, point: int) -> Want:
        if way in _KPROBES:
            return Want("syscall_kprobe", _KPROBES[way], "kprobe")
        if way is Way.LSM:
            presets = (self.lsm_number(function), hooked(function))
            return Want("syscall_lsm", "fc_syscall_lsm", "lsm", function, presets)
        return Want("syscall_modret", "fc_syscall_modret", "fmod_ret", function, (point,))

    def _program(self, want: Want) -> int:
        if want not in self._programs:
            self._programs[want] = self.loader.load(want)
        return self._programs[want]

    def object_of(self, way: Way, function: str, point: int) -> str:
        """The name of the object that load() takes a hook's program from."""
        return self._want(way, function, point).object

    def lsm_number(self, hook: str) -> int:
        """An LSM hook's number, in its program and in fc_numbers."""
        return self._hook_numbers.setdefault(hook, len(self._hook_numbers) + 1)

    def load_tree(self) -> None:
        """Have the programs that follow forks and exits ready. Raises as load()."""
        for program in _TREE:
            self._program(Want(TREE, program, "raw_tp"))

    def attach(self, way: Way, function: str, point: int, slot: int) -> None:
        """Attach for a slot; nothing new when another one has it attached already."""
        self.load(way, function, point)
        hook = self._hooks[_key(way, function, point)]
        if hook.link is None:
            hook.link = hook.attach()
        if slot not in hook.users:
            self._missed_before[slot] = self._missed_before.get(slot, 0) + self._more(slot, hook)
            hook.users.add(slot)

    def attach_tree(self, slot: int) -> None:
        """Follow forks and exits, for a slot."""
        if not self._tree_links:
            for program, tracepoint in _TREE.items():
                fd = self._program(Want(TREE, program, "raw_tp"))
                self._tree_links.append(attach_raw_tracepoint(fd, tracepoint))
        self._tree_users.add(slot)

    def release(self, slot: int) -> None:
        """A slot needs nothing any more: what nobody needs is detached."""
        for hook in self._hooks.values():
            hook.users.discard(slot)
            if not hook.users and hook.link is not None:
                hook.link.close()
                hook.link = None
        self._missed_before.pop(slot, None)
        self._tree_users.discard(slot)
        if not self._tree_users:
            while self._tree_links:
                self._tree_links.pop().close()

    def attached(self, way: Way, function: str, point: int, slot: int) -> bool:
        """Whether a slot's hook is attached."""
        hook = self._hooks.get(_key(way, function, point))
        return hook is not None and hook.link is not None and slot in hook.users

    def missed(self, slot: int) -> int:
        """Calls that the slot's programs did not see: another one was active on that CPU, or a
        kretprobe had no room.

        Counted since the slot has had them attached, whoever made the call.
        """
        mine = self._used_by(slot)
        seen = sum(recursion_misses(fd) for fd in {hook.program_fd for hook in mine})
        return seen + sum(_passed_over(hook) for hook in mine) - self._missed_before.get(slot, 0)

    def _used_by(self, slot: int) -> list[_Hook]:
        return [hook for hook in self._hooks.values() if slot in hook.users]

    def _more(self, slot: int, hook: _Hook) -> int:
        """What a hook that a slot does not use yet would add to its misses now."""
        known = hook.program_fd in {other.program_fd for other in self._used_by(slot)}
        return _passed_over(hook) + (0 if known else recursion_misses(hook.program_fd))


def _passed_over(hook: _Hook) -> int:
    return hook.link.missed() if hook.link is not None else 0


def _explained(exc: VerifierRejected, way: Way, function: str) -> Exception:
    """The verifier's words about what the kernel lacks, as a refusal."""
    if way is Way.MODRET and ("not modifiable" in exc.log or "kernel BTF type" in exc.log):
        return Refused(
            f"{function} cannot be made to fail",
            "it is no error-injection point here (CONFIG_FUNCTION_ERROR_INJECTION)",
            "see: faultctl explain syscall",
        )
    if way is Way.ENTRY and ("unknown func" in exc.log or "bpf_override_return" in exc.log):
        return Refused(
            "return values cannot be overridden",
            "the kernel has no bpf_override_return (CONFIG_BPF_KPROBE_OVERRIDE)",
            "see: faultctl explain syscall",
        )
    if way is Way.LSM and "kernel BTF type" in exc.log:
        return Refused(f"the LSM hook {function} cannot be used", "the kernel has no such hook")
    return exc
