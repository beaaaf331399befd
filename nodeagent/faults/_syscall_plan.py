"""From a syscall spec to steps, for each mechanism. Pure; shared with the khaos presets.

fault-point takes its binding, guard rails and reaction from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, Protocol

from nodeagent.encode.syscall_maps import Hooked, Subject
from nodeagent.encode.syscall_table import FAMILIES
from nodeagent.encode.syscalls import PREFIX, Call, errno_number, expand, hooked, on_arch
from nodeagent.model.bpf import MAPS
from nodeagent.model.evidence import NodeEvent, ProcessEvent
from nodeagent.model.facts import (
    DEBUGFS,
    Facts,
    NeedBpf,
    NeedBpfLsm,
    NeedKprobeOverride,
    NeedRoot,
)
from nodeagent.model.kind import Context, Guard, Reaction, Rung
from nodeagent.model.process import PidScope, ProcessBinding
from nodeagent.model.steps import StepBase
from nodeagent.model.steps.syscall import Hook, SyscallFail

FD_TYPES = {"fifo": 1, "char": 2, "dir": 4, "block": 6, "regular": 8, "link": 10, "socket": 12}
"""S_IFMT >> 12 of what is behind a descriptor (inode(7)); `link` cannot be one."""
FdType = Literal["regular", "dir", "fifo", "socket", "char", "block"]
Way = Literal["modret", "entry", "return", "lsm"]


class CallSpec(Protocol):
    """What the planner needs to know of one effect."""

    call: tuple[str, ...]
    errno: str | None
    value: int | None
    after: bool
    rate: Decimal
    every: int
    first: int | None
    at_most: int | None
    seed: int
    uid: int | None
    when: str
    exe: tuple[str, ...]
    fd_type: tuple[FdType, ...]
    path: tuple[str, ...]
    on_device: str | None
    port: tuple[int, ...]
    address: tuple[str, ...]
    runtime: bool


def return_value(spec: CallSpec) -> int:
    """What the calls return: the chosen value, or the errno as the kernel has it, negative."""
    if spec.value is not None:
        return spec.value
    assert spec.errno is not None  # noqa: S101 - a validator of the spec
    return -errno_number(spec.errno)


def binding_of(context: Context) -> ProcessBinding:
    """The context's binding by its type."""
    found: ProcessBinding = context.binding
    return found


def calls_here(spec: CallSpec, facts: Facts) -> tuple[Call, ...]:
    """The calls that this architecture has."""
    return on_arch(expand(spec.call), facts.arch)


def fitting(spec: CallSpec, context: Context, way: Way) -> str | None:
    """What keeps one way of hooking from doing what is asked of the calls; None if nothing."""
    calls = calls_here(spec, context.facts)
    if not calls:
        return f"{context.facts.arch} has none of {', '.join(spec.call)}"
    if way != "lsm":
        wanting = [
            c.name
            for c in calls
            if c.function_in(context.facts.arch, context.facts.error_injection) is None
        ]
        if wanting:
            why = "CONFIG_FUNCTION_ERROR_INJECTION" if len(wanting) == len(calls) else "not listed"
            return f"{', '.join(wanting)} cannot be injected into ({why})"
    if (spec.path or spec.exe) and not context.facts.btf:
        return "without BTF paths cannot be compared: struct mount is in no kernel header"
    return _filters_fit(spec, calls, way)


def _filters_fit(spec: CallSpec, calls: tuple[Call, ...], way: Way) -> str | None:
    """Whether the file that a filter asks for is known where a way of hooking meets the calls."""
    if spec.port or spec.address:
        blind = [c.name for c in calls if not c.fd]
        if blind:
            return f"{', '.join(blind)} has no socket to compare with the filter"
    if not (spec.fd_type or spec.path or spec.on_device):
        return None
    reasons = (_blind(call, way) for call in calls)
    return next((reason for reason in reasons if reason), None)


def _blind(call: Call, way: Way) -> str:
    """Why a call's file is not known there; empty if it is."""
    if way == "return" and call.name in FAMILIES["close-family"]:
        return f"the file of {call.name} is gone after it"
    if call.subject is Subject.FD:
        return ""
    if call.subject is Subject.OPENED and way in ("modret", "entry"):
        return (
            f"the file of {call.name} is not known yet where the call begins: links lead elsewhere"
        )
    if call.subject is Subject.OPENED or (way == "lsm" and hooked(call.hook) is Hooked.PATH):
        return ""
    return f"{call.name} has no open file to compare with the filter"


def steps_for(spec: CallSpec, context: Context, way: Way) -> list[SyscallFail]:
    """The one step of one effect."""
    facts, binding = context.facts, binding_of(context)
    listed = frozenset(facts.error_injection)
    hooks = []
    for call in calls_here(spec, facts):
        if way == "lsm":
            number = call.number(facts.arch)
            assert number is not None  # noqa: S101 - on_arch left only those that have one
            hooks.append(Hook(call=call.name, lsm=call.hook, number=number))
            continue
        compat = tuple(f for f in call.compat_functions(facts.arch) if f in listed)
        native = (call.function_in(facts.arch, listed) or call.function(facts.arch),)
        hooks.append(Hook(call=call.name, functions=native, compat=compat))
    fd_types = sum(1 << FD_TYPES[name] for name in set(spec.fd_type))
    return [
        SyscallFail(
            way=way,
            hooks=tuple(hooks),
            scope=binding.scope,
            value=return_value(spec),
            rate_ppm=int(spec.rate * 10_000),
            every=spec.every,
            first=spec.first or 0,
            at_most=spec.at_most or 0,
            seed=spec.seed,
            uid=spec.uid,
            when=spec.when,
            fd_types=fd_types,
            paths=spec.path,
            exes=spec.exe,
            device=binding.device,
            ports=spec.port,
            nets=spec.address,
            spare_runtime=not spec.runtime and not isinstance(binding.scope, PidScope),
        )
    ]


# --- the ladder -------------------------------------------------------------------


def modret_fits(spec: Any, context: Context) -> str | None:
    """fmod_ret: before the call, and never with 0."""
    if spec.after:
        return "it skips the call and cannot act after it"
    if return_value(spec) == 0:
        return "it cannot make a call return 0"
    return fitting(spec, context, "modret")


def kprobe_fits(spec: Any, context: Context) -> str | None:
    """Kprobes: any value, before or after."""
    return fitting(spec, context, _kprobe_way(spec))


def _kprobe_way(spec: Any) -> Way:
    return "return" if spec.after else "entry"


def lsm_fits(spec: Any, context: Context) -> str | None:
    """LSM: an errno, before the call, where one hook stands for it."""
    if spec.after:
        return "a security hook is passed before the call does anything"
    if not -4095 <= return_value(spec) < 0:
        return "a security hook can only return an errno"
    without = [c.name for c in calls_here(spec, context.facts) if not c.hook]
    if without:
        return f"no security hook stands for {', '.join(without)}"
    return fitting(spec, context, "lsm")


@dataclass(frozen=True)
class NeedInjectableCalls:
    """System calls on the kernel's error-injection list; read stands for all of them."""

    def missing(self, facts: Facts) -> str | None:
        if facts.arch not in PREFIX:
            return f"system calls of {facts.arch} are not known here (x86_64 and aarch64 are)"
        if f"{PREFIX[facts.arch]}sys_read" in facts.error_injection:
            return None
        why = "CONFIG_FUNCTION_ERROR_INJECTION"
        if not facts.error_injection:
            why += f", {DEBUGFS}"  # the list of what is open to it is a file there
        return f"system calls are not open to error injection ({why})"


def _bpf(*objects: str) -> tuple[Any, ...]:
    return (NeedRoot(), *(NeedBpf(name) for name in (MAPS, "syscall_tree", *objects)))


LADDER = (
    Rung(
        "bpf-fmod-ret",
        "BPF fmod_ret on the calls' own functions, skipped with a value other than 0",
        lambda spec: (*_bpf("syscall_modret"), NeedInjectableCalls()),
        lambda spec, context: steps_for(spec, context, "modret"),
        modret_fits,
    ),
    Rung(
        "bpf-kprobe",
        "BPF on kprobes (before) or kretprobes (after) of the calls, by bpf_override_return",
        lambda spec: (*_bpf("syscall_kprobe"), NeedKprobeOverride(), NeedInjectableCalls()),
        lambda spec, context: steps_for(spec, context, _kprobe_way(spec)),
        kprobe_fits,
    ),
    Rung(
        "bpf-lsm",
        "BPF on the security hook that stands for each call, told apart by the call's number",
        lambda spec: (*_bpf("syscall_lsm"), NeedBpfLsm()),
        lambda spec, context: steps_for(spec, context, "lsm"),
        lsm_fits,
    ),
)


def react(spec: Any, steps: tuple[StepBase, ...], event: NodeEvent) -> Reaction | None:
    """A fault on a process ends with it."""
    if isinstance(event, ProcessEvent):
        return Reaction(remedied=f"process {event.pid} has ended")
    return None


def guards(spec: Any, context: Context) -> tuple[Guard, ...]:
    """A named kubelet or container runtime is a guard rail; in a cgroup it is spared."""
    binding = binding_of(context)
    if not binding.node_agents or not (isinstance(binding.scope, PidScope) or spec.runtime):
        return ()
    named = ", ".join(binding.node_agents[:4])
    return (Guard("node-agent", f"the target is what keeps the node's containers going: {named}"),)
