"""stress: from a spec and a place to the run of stress-ng, and what stands against it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from nodeagent.encode import stress_ng
from nodeagent.faults import _cgroup as cg
from nodeagent.faults._stress_spec import MAX_WORKERS, NeedStressNg, Spec
from nodeagent.model.facts import Facts, Need, NeedRoot
from nodeagent.model.kind import Context, Guard
from nodeagent.model.load import LoadBinding
from nodeagent.model.steps.base import StepBase
from nodeagent.model.steps.cgroup import CgroupWrite
from nodeagent.model.steps.process import StressRun

RESERVE = 128 << 20
"""Bytes of the node's memory that no plan may take: the kubelet's and the journal's share."""
NODE_SHARE = Fraction(9, 10)
"""Of the node's CPUs, what load on the node may take at most: the rest keeps it reachable."""
CPU_PERIOD_US = 100_000
NODE_CONTROLLERS = ("cpu", "memory", "pids")


@dataclass(frozen=True)
class NeedCgroups:
    """A cgroup hierarchy of either version."""

    def missing(self, facts: Facts) -> str | None:
        return None if facts.cgroup else "no cgroup hierarchy is mounted below /sys/fs/cgroup"


def _bound(context: Context) -> LoadBinding:
    found: LoadBinding = context.binding
    return found


def _cpu(spec: Spec, binding: LoadBinding) -> stress_ng.CpuLoad | None:
    """Raises ValueError."""
    if spec.cpu_percent is not None:
        share = Fraction(spec.cpu_percent) / 100 * Fraction(binding.cpu_micro, 1_000_000)
        return stress_ng.cpu_load(share, MAX_WORKERS)
    return None if spec.cpu is None else stress_ng.CpuLoad(spec.cpu, int(spec.load))


def _memory(spec: Spec, binding: LoadBinding) -> int:
    """Bytes, in whole pages; 0 if none are asked for."""
    asked = spec.memory or 0
    if spec.memory_percent is not None:
        asked = int(Fraction(spec.memory_percent) / 100 * binding.memory)
    return asked // 4096 * 4096


def supports(spec: Spec, context: Context) -> str | None:
    """Why no such load can run there; None if it can."""
    binding = _bound(context)
    if binding.type != "domain" and binding.type != "domain threaded":
        return f"its cgroup.type is {binding.type!r}: no domain that processes could enter"
    if binding.frozen:
        return "it is frozen: no load would run"
    try:
        cpu = _cpu(spec, binding)
    except ValueError as exc:
        return str(exc)
    return _place_objection(spec, binding, cpu) or _memory_objection(spec, binding)


def _place_objection(spec: Spec, binding: LoadBinding, cpu: stress_ng.CpuLoad | None) -> str | None:
    if binding.hierarchy == "v1":
        needed = [c for c, asked in (("cpu", cpu), ("memory", spec.has_memory)) if asked]
        missing = [c for c in needed if c not in binding.controllers]
        return f"it has no cgroup of the controller {missing[0]}" if missing else None
    if binding.hierarchy != "node":
        return None
    missing = [c for c in NODE_CONTROLLERS if c not in binding.controllers]
    if missing:
        words = " ".join(f"+{c}" for c in missing)
        return (
            f"the cap that keeps the node reachable needs the controller {missing[0]} below the "
            f"root (echo {words} > /sys/fs/cgroup/cgroup.subtree_control)"
        )
    most = _node_cap(binding)
    if cpu is not None and cpu.cpus > most:
        return (
            f"{float(cpu.cpus):g} CPUs are more than {float(most):g}, the "
            f"{float(NODE_SHARE):.0%} of the node's that leave it reachable"
        )
    return None


def _node_cap(binding: LoadBinding) -> Fraction:
    return NODE_SHARE * Fraction(binding.cpu_micro, 1_000_000)


def _memory_objection(spec: Spec, binding: LoadBinding) -> str | None:
    if not spec.has_memory:
        return None
    most = binding.node_memory - RESERVE
    if not binding.memory_limited and _memory(spec, binding) > most:
        return (
            f"{_memory(spec, binding)} bytes leave the node less than {RESERVE >> 20} MiB, and no "
            f"memory.max holds the target (MemTotal is {binding.node_memory})"
        )
    above = [path for path in binding.oom_group if path != binding.path]
    if spec.oom_victim == "stressor" and above:
        return f"memory.oom.group of {above[0]} is set: all of it would be killed with the stressor"
    return None


def plan(spec: Spec, context: Context) -> list[StepBase]:
    """One run of stress-ng, and before it what decides who is killed first."""
    binding = _bound(context)
    cpu, memory = _cpu(spec, binding), _memory(spec, binding)
    args, workers = _arguments(spec, cpu, memory)
    steps: list[StepBase] = []
    if memory and spec.oom_victim == "stressor" and binding.oom_group and binding.scope:
        steps.append(CgroupWrite(scope=binding.scope, file="memory.oom.group", value="0"))
    run = StressRun(
        scope=binding.scope,
        hierarchy=binding.hierarchy,
        folders=binding.folders,
        limits=_limits(binding, workers) if binding.hierarchy == "node" else (),
        child=f"faultctl-stress-{context.fault_id}",
        args=tuple(args),
        workers=workers,
        memory=0 if _beyond(spec, binding) else memory,
        cpus_micro=int(cpu.cpus * 1_000_000) if cpu else 0,
        oom_score_adj=1000 if spec.oom_victim == "stressor" else -1000,
        folder=spec.folder or "",
        restart=spec.restart,
    )
    return [*steps, run]


def _arguments(spec: Spec, cpu: stress_ng.CpuLoad | None, memory: int) -> tuple[list[str], int]:
    """(stress-ng's options, how many workers that makes)."""
    args = stress_ng.common_args(spec.restart)
    workers = sum(spec.plain.values())
    workers += sum(int(one.partition("=")[2]) for one in spec.stressor)
    if cpu is not None:
        args += stress_ng.cpu_args(cpu, spec.cpu_method)
        workers += cpu.workers
    if memory:
        args += stress_ng.memory_args(memory)
        workers += 1
    for name, count in spec.plain.items():
        args += [f"--{name}", str(count)]
    if spec.hdd:
        args += stress_ng.hdd_args(spec.hdd, spec.hdd_size)
        workers += spec.hdd
    return [*args, *stress_ng.named_args(spec.stressor)], workers


def _limits(binding: LoadBinding, workers: int) -> tuple[tuple[str, str], ...]:
    """The cap of a cgroup beside everything else: when it is met, only the stressors suffer."""
    quota = int(_node_cap(binding) * CPU_PERIOD_US)
    return (
        ("cpu.max", f"{quota} {CPU_PERIOD_US}"),
        ("memory.max", str(binding.node_memory - RESERVE)),
        ("pids.max", str(64 + 8 * workers)),
    )


def _beyond(spec: Spec, binding: LoadBinding) -> bool:
    """Whether more is asked for than the limit lets anybody have."""
    return binding.memory_limited and _memory(spec, binding) >= binding.memory


def needs(spec: Spec) -> tuple[Need, ...]:
    """Root, some cgroup hierarchy, stress-ng."""
    return (NeedRoot(), NeedCgroups(), NeedStressNg())


def guards(spec: Spec, context: Context) -> tuple[Guard, ...]:
    binding = _bound(context)
    found = cg.guards(spec, context)
    if spec.oom_victim == "target" and binding.hierarchy == "node":
        found = (*found, Guard("oom", "the kernel would kill others of the node before the load"))
    if _beyond(spec, binding):
        why = f"{_memory(spec, binding)} bytes are no less than {binding.memory} by "\
              f"{binding.memory_from}: something in it is killed"  # fmt: skip
        found = (*found, Guard("oom", why))
    return found
