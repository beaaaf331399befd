"""What the hooks counted, as evidence; and what they cannot see. Pure."""

from __future__ import annotations

from typing import Any

from nodeagent.encode.syscall_args import arguments
from nodeagent.encode.syscall_table import FAMILIES
from nodeagent.encode.syscalls import AIO, URING, VDSO, expand
from nodeagent.model.evidence import Evidence
from nodeagent.model.kind import Measured


def evidence(named: tuple[str, ...], measured: tuple[Measured, ...]) -> Evidence:
    """Hits of all steps together; details by call and by process. named: calls, families."""
    data = [item.data for item in measured if "stats" in item.data]
    stats = [found["stats"] for found in data]
    first = [s["first_ns"] for s in stats if s["first_ns"]]
    names = ("seen", "hits", "spared", "lost")
    counters = {name: sum(s[name] for s in stats) for name in names}
    counters["missed"] = sum(found["missed"] for found in data)
    calls: dict[str, Any] = {}
    for found in data:
        calls |= found["calls"]
    said = [*statements(named), *(line for found in data for line in found["uncovered"])]
    if counters["lost"]:
        said.append(f"{counters['lost']} children of the tree found no room and are not hit")
    if counters["missed"]:
        said.append(
            f"{counters['missed']} calls on this node passed unseen: a program was active on that "
            "CPU already, or a kretprobe had no room (not known whether they were the target's)"
        )
    return Evidence(
        counted=bool(data),
        hits=counters["hits"],
        counters=counters,
        first_hit_ns=min(first, default=None),
        last_hit_ns=max((s["last_ns"] for s in stats if s["last_ns"]), default=None),
        statements=tuple(dict.fromkeys(said)),
        details={
            "calls": calls,
            "processes": [p for found in data for p in found["processes"]],
            "more_processes": sum(found["more_processes"] for found in data),
        },
    )


def statements(names: tuple[str, ...]) -> tuple[str, ...]:
    """What is true of these calls whatever the target does."""
    calls, said = {call.name for call in expand(names)}, []
    if calls & VDSO:
        said.append("the C library reads clocks by the vDSO, without a system call: not covered")
    if calls & URING:
        said.append("what a program does by io_uring is no system call of these: not covered")
    if calls & AIO:
        said.append("what a program does by AIO is io_submit, and no such call: not covered")
    if calls & set(FAMILIES["read-family"]):
        said.append("a mapped file (mmap) is read without a system call: not covered")
    return tuple(said)


def about(names: tuple[str, ...]) -> tuple[str, ...]:
    """What is known of calls, for a person. Raises ValueError for an unknown one."""
    lines = []
    for call in expand(names):
        hook = f"LSM hook {call.hook}" if call.hook else "no LSM hook stands for it"
        errnos = ", ".join(sorted(call.errnos)) or "no errno at all"
        fd = "filters by file apply" if call.fd else "no open file to filter by"
        named = ", ".join(argument.name for argument in arguments(call.name)) or "none"
        lines.append(f"{call.name}: returns {errnos}; {hook}; {fd}; arguments: {named}")
    return (*lines, *statements(names)) if names else ()
