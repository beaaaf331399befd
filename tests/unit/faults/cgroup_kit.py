"""A cgroup bound by hand, so that plans of kinds on cgroups can be tested as data."""

from __future__ import annotations

from typing import Any

from nodeagent.faults import kind_named
from nodeagent.model.cgroup import CgroupBinding, Disk
from nodeagent.model.facts import Facts
from nodeagent.model.plan import FaultRequest, Plan
from nodeagent.model.planner import make_plan, parse_request
from nodeagent.model.process import CgroupScope

NODE = Facts(
    node_id="0123456789abcdef",
    kernel_release="6.12.118+deb13",
    arch="x86_64",
    boot_id="b",
    root=True,
    cgroup="v2",
)
MIB = 1 << 20
VICTIM = CgroupBinding(
    target="cgroup /victim",
    scope=CgroupScope(id=77, level=1, path="/victim"),
    values={
        "cpu.max": "max 100000",
        "cpu.max.burst": "0",
        "memory.high": "max",
        "memory.max": "max",
        "io.max": "",
        "pids.max": "max",
        "memory.oom.group": "0",
        "cgroup.freeze": "0",
    },
    cpu_micro=2_000_000,
    cpu_from="the node's CPUs",
    memory=1024 * MIB,
    memory_from="the node's memory",
    node_memory=1024 * MIB,
    disk=Disk(path="/dev/vdb", major=254, minor=16),
)


def with_values(**values: str) -> CgroupBinding:
    """The victim with other contents: `cpu_max="..."`."""
    named = {name.replace("_", "."): value for name, value in values.items()}
    return VICTIM.model_copy(update={"values": {**VICTIM.values, **named}})


def plan(kind: str, spec: dict[str, Any], binding: Any = VICTIM, facts: Facts = NODE) -> Plan:
    """The plan of a spec on this cgroup. Raises InvalidSpec or Refused."""
    found = kind_named(kind)
    request = FaultRequest.model_validate(
        {
            "id": "t-1",
            "kind": kind,
            "target": {"type": "cgroup", "cgroup": "/victim"},
            "spec": spec,
        }
    )
    target, checked = parse_request(found, request)
    return make_plan(found, request, target, checked, binding, facts)
