"""From a step on system calls to hooks and to the parameters of a slot."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.encode import syscall_maps as m
from nodeagent.encode.bpf_maps import kernel_dev
from nodeagent.encode.syscall_maps import CallFlag, CallSlot, Way
from nodeagent.encode.syscalls import table
from nodeagent.model.steps.syscall import SyscallFail

WAYS = {"modret": Way.MODRET, "entry": Way.ENTRY, "return": Way.RETURN, "lsm": Way.LSM}


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
        if not (step.by_file or step.when):
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
        (CallFlag.WHEN, bool(step.when)),
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
        device=kernel_dev(*step.device) if step.device else 0,
    )
