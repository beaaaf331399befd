"""The BPF objects that fail system calls: one set of maps, hooks attached by demand.

A hook is one function hooked in one way. Its program is loaded when it is first asked for,
stays loaded, and is attached only while a fault needs it; all of it ends with this process.
"""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass, field

from nodeagent.backends.bpf_object import BpfLink, BpfObject, recursion_misses
from nodeagent.backends.libbpf import BpfMap, VerifierRejected, check, errno_of, lib, strerror
from nodeagent.backends.libbpf import log as library_log
from nodeagent.encode.syscall_maps import Way
from nodeagent.encode.syscalls import hooked
from nodeagent.model.errors import Refused

MAPS = ("fc_control", "fc_points", "fc_tgids", "fc_cgroups", "fc_call_slots", "fc_call_stats",
        "fc_hits", "fc_spared", "fc_numbers", "fc_call_info", "fc_globs",
        "fc_call_nets")  # fmt: skip
_TREE = ("fc_tree_fork", "fc_tree_exit")
_P, _I, _S = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p


class _KprobeOpts(ctypes.Structure):
    """struct bpf_kprobe_opts of libbpf 1.0; later ones only got longer."""

    _fields_ = [
        ("sz", ctypes.c_size_t),
        ("bpf_cookie", ctypes.c_uint64),
        ("offset", ctypes.c_size_t),
        ("retprobe", ctypes.c_bool),
        ("unused", ctypes.c_byte * 7),
    ]


def _library() -> ctypes.CDLL:
    found = lib()
    found.bpf_map__reuse_fd.restype = _I
    found.bpf_map__reuse_fd.argtypes = (_P, _I)
    found.bpf_program__set_attach_target.restype = _I
    found.bpf_program__set_attach_target.argtypes = (_P, _I, _S)
    found.bpf_raw_tracepoint_open.restype = _I
    found.bpf_raw_tracepoint_open.argtypes = (_S, _I)
    found.bpf_program__attach_kprobe_opts.restype = _P
    found.bpf_program__attach_kprobe_opts.argtypes = (_P, _S, ctypes.POINTER(_KprobeOpts))
    return found


class HookObject(BpfObject):
    """An object that shares the maps of another one."""

    def share(self, maps: dict[str, BpfMap]) -> None:
        """Use these maps instead of own ones; before load. Raises OSError."""
        for name, shared in maps.items():
            found = _library().bpf_object__find_map_by_name(self._handle(), name.encode())
            if found:
                check(_library().bpf_map__reuse_fd(found, shared.fd), f"share {name}")

    def aim(self, program: str, function: str) -> None:
        """Set what a program is attached to; before load. Raises OSError."""
        handle, name = self.program(program), function.encode()
        check(_library().bpf_program__set_attach_target(handle, 0, name), f"aim at {function}")

    def attach_kprobe(self, program: str, function: str, point: int, at_return: bool) -> BpfLink:
        """Attach a program to one more function. Raises VerifierRejected."""
        opts = _KprobeOpts(sz=ctypes.sizeof(_KprobeOpts), bpf_cookie=point, retprobe=at_return)
        handle, links = self.program(program), list[int | None]()

        def attach() -> int:
            links.append(
                _library().bpf_program__attach_kprobe_opts(
                    handle, function.encode(), ctypes.byref(opts)
                )
            )
            return 0 if links[0] else -ctypes.get_errno()

        result, log = library_log.of(attach)
        if not links[0]:
            why = strerror(errno_of(result))
            raise VerifierRejected(f"{function} cannot be probed", why, log)
        return BpfLink(links[0])


class _FdLink:
    """An attached program by the descriptor of its link."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    def close(self) -> None:
        """Detach; harmless when already done."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class HeldProgram:
    """A loaded program alone: two descriptors at most, where an object has one a map too."""

    def __init__(self, loaded: HookObject, name: str) -> None:
        """Keeps the program; its object is closed."""
        self._name = name
        self._fd = os.dup(lib().bpf_program__fd(loaded.program(name)))
        loaded.close()

    def attach(self) -> _FdLink:
        """Attach where it was aimed at (tracing and LSM programs). Raises OSError."""
        fd = _library().bpf_raw_tracepoint_open(None, self._fd)
        return _FdLink(check(fd, f"attach {self._name}"))

    def misses(self) -> int:
        """See BpfObject.recursion_misses."""
        return recursion_misses(self._fd)


@dataclass
class _Hook:
    """One loaded hook; `held` is None for those by kprobes, which share one object."""

    held: HeldProgram | None
    program: str
    link: BpfLink | _FdLink | None = None
    users: set[int] = field(default_factory=set)
    """Slots that need it attached."""


class SyscallHooks:
    """Loads and attaches by demand. Not safe from several threads: its owner locks."""

    def __init__(self) -> None:
        self._base = HookObject("syscall_tree")
        self._base.load()
        self.maps = {name: self._base.map(name) for name in MAPS}
        self._hooks: dict[tuple[Way, str, int], _Hook] = {}
        self._kprobes: HookObject | None = None
        self._tree_links: list[BpfLink] = []
        self._tree_users: set[int] = set()
        self.hook_numbers: dict[str, int] = {}
        """LSM hook -> its number in fc_numbers."""

    def load(self, way: Way, function: str, point: int) -> None:
        """Have a hook ready. Raises VerifierRejected, Refused, OSError."""
        key = (way, function, point)
        if key in self._hooks:
            return
        if way in (Way.ENTRY, Way.RETURN):
            program = "fc_syscall_entry" if way is Way.ENTRY else "fc_syscall_return"
            self._kprobe_object()
            self._hooks[key] = _Hook(None, program)
            return
        constants = struct.pack("=I", point)
        if way is Way.LSM:
            constants = struct.pack("=II", self._lsm_number(function), hooked(function))
        name = "lsm" if way is Way.LSM else "modret"
        loaded = HookObject(f"syscall_{name}")
        program = f"fc_syscall_{name}"
        try:
            loaded.share(self.maps)
            loaded.preset(".rodata.fc", constants)
            loaded.aim(program, function)
            loaded.load()
        except BaseException as exc:
            loaded.close()
            if isinstance(exc, VerifierRejected):
                raise _explained(exc, way, function) from exc
            raise
        self._hooks[key] = _Hook(HeldProgram(loaded, program), program)

    def _lsm_number(self, hook: str) -> int:
        return self.hook_numbers.setdefault(hook, len(self.hook_numbers) + 1)

    def _kprobe_object(self) -> HookObject:
        if self._kprobes is None:
            loaded = HookObject("syscall_kprobe")
            try:
                loaded.share(self.maps)
                loaded.load()
            except BaseException as exc:
                loaded.close()
                if isinstance(exc, VerifierRejected):
                    raise _explained(exc, Way.ENTRY, "") from exc
                raise
            self._kprobes = loaded
        return self._kprobes

    def attach(self, way: Way, function: str, point: int, slot: int) -> None:
        """Attach for a slot; nothing new when another one has it attached already."""
        self.load(way, function, point)
        hook = self._hooks[way, function, point]
        if hook.link is None:
            hook.link = (
                hook.held.attach()
                if hook.held is not None
                else self._kprobe_object().attach_kprobe(
                    hook.program, function, point, way is Way.RETURN
                )
            )
        hook.users.add(slot)

    def attach_tree(self, slot: int) -> None:
        """Follow forks and exits, for a slot."""
        if not self._tree_links:
            for name in _TREE:
                self._tree_links.append(self._base.attach(name))
        self._tree_users.add(slot)

    def release(self, slot: int) -> None:
        """A slot needs nothing any more: what nobody needs is detached."""
        for hook in self._hooks.values():
            hook.users.discard(slot)
            if not hook.users and hook.link is not None:
                hook.link.close()
                hook.link = None
        self._tree_users.discard(slot)
        if not self._tree_users:
            while self._tree_links:
                self._tree_links.pop().close()

    def attached(self, way: Way, function: str, point: int, slot: int) -> bool:
        """Whether a slot's hook is attached."""
        hook = self._hooks.get((way, function, point))
        return hook is not None and hook.link is not None and slot in hook.users

    def missed(self, slot: int) -> int:
        """Calls that the slot's programs did not see: another one was active on that CPU.

        Counted for each program since it was loaded, whoever made the call.
        """
        mine = [hook for hook in self._hooks.values() if slot in hook.users]
        kprobes = {hook.program for hook in mine if hook.held is None}
        found = sum(self._kprobe_object().recursion_misses(name) for name in kprobes)
        return found + sum(hook.held.misses() for hook in mine if hook.held is not None)


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
