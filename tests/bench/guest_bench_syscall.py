"""Runs in the guest: what a hooked call costs a process that is nobody's target.

Meant for the instruction-counting clock, where a nanosecond is an instruction. Prints one
JSON object: nanoseconds a call of getpriority(2) by Python, and of arming.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from nodeagent.backends.syscall_bpf import SyscallHooks
from nodeagent.backends.syscall_places import places
from nodeagent.backends.syscall_slots import SyscallSlots
from nodeagent.model.process import CgroupScope, PidScope
from nodeagent.model.steps.syscall import Hook, SyscallFail

CALLS = 4000
HOOK = Hook(call="getpriority", functions=("__x64_sys_getpriority",))


def call_ns() -> int:
    best = 1 << 62
    for _ in range(3):
        begin = time.perf_counter_ns()
        for _ in range(CALLS):
            os.getpriority(os.PRIO_PROCESS, 0)
        best = min(best, time.perf_counter_ns() - begin)
    return best // CALLS


CHILD = """
import os, time
begin = time.perf_counter_ns()
for _ in range(%d):
    os.getpriority(os.PRIO_PROCESS, 0)
print((time.perf_counter_ns() - begin) // %d)
"""
STRACED = 400


def straced_ns() -> int:
    """A call that strace injects into, for somebody else's sake: only the 65,535th fails."""
    inject = "inject=getpriority:error=EINVAL:when=65535"
    strace = ["strace", "-o", "/dev/null", "-e", "trace=getpriority", "-e", inject]
    child = [sys.executable, "-c", CHILD % (STRACED, STRACED)]
    return int(subprocess.run([*strace, *child], capture_output=True, check=True).stdout)


def step(number: int, way: str = "modret", depth: int = 0) -> SyscallFail:
    """A fault on a process or cgroup that does not exist."""
    scope = CgroupScope(id=1 << 40, level=depth, path="/none") if depth else None
    pid = PidScope(pid=3_000_000 + number, start_ticks=1)
    return SyscallFail.model_validate(
        {"way": way, "hooks": (HOOK,), "scope": scope or pid, "value": -22}
    )


def main() -> None:
    found = {"unhooked": call_ns()}
    hooks = SyscallHooks()
    slots = SyscallSlots(hooks)
    found["loaded, nothing armed"] = call_ns()
    begin = time.perf_counter_ns()
    armed = [slots.arm(step(0))]
    found["arm: first of a function"] = time.perf_counter_ns() - begin
    point = places(step(0))[0].point.to_bytes(4, sys.byteorder)
    mask = hooks.maps["fc_points"].lookup(point)
    hooks.maps["fc_points"].update(point, bytes(8))
    found["attached, nothing asked"] = call_ns()
    hooks.maps["fc_points"].update(point, mask or bytes(8))
    found["1 process is a target"] = call_ns()
    begin = time.perf_counter_ns()
    armed.append(slots.arm(step(1)))
    found["arm: second"] = time.perf_counter_ns() - begin
    armed += [slots.arm(step(number)) for number in range(2, 50)]
    found["50 processes are targets"] = call_ns()
    armed.append(slots.arm(step(0, depth=2)))
    found["and a cgroup"] = call_ns()
    for slot in armed:
        slots.disarm(slot)
    found["disarmed"] = call_ns()
    slots.disarm(slots.arm(step(0, "entry")))
    slot = slots.arm(step(0, "entry"))
    found["1 process, by kprobe"] = call_ns()
    slots.disarm(slot)
    slot = slots.arm(step(0, "return"))
    found["1 process, by kretprobe"] = call_ns()
    slots.disarm(slot)
    found["by strace"] = straced_ns()
    print(json.dumps(found))


main()
