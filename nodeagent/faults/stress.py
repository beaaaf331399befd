"""stress: load by stress-ng inside a cgroup, so that its limits and its accounting see it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from pydantic import Field, model_validator

from nodeagent.encode import stress_ng
from nodeagent.faults import _cgroup as cg
from nodeagent.model.cgroup import CgroupBinding
from nodeagent.model.evidence import Evidence
from nodeagent.model.facts import Facts
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Guard, Measured, Rung
from nodeagent.model.steps.base import StepBase
from nodeagent.model.steps.cgroup import CgroupWrite
from nodeagent.model.steps.process import StressRun
from nodeagent.model.target import AbsolutePath
from nodeagent.model.units import Percent, Size

MAX_WORKERS = 256
RESERVE = 128 << 20
"""Bytes of the node's memory that no plan may take: the kubelet's and the journal's share."""
PLAIN = ("sock", "fault", "cache", "switch")
Workers = int | None


def _workers(what: str) -> Any:
    return Field(default=None, ge=1, le=MAX_WORKERS, description=f"workers: {what}")


@dataclass(frozen=True)
class NeedStressNg:
    """The program, in a version whose options are known."""

    def missing(self, facts: Facts) -> str | None:
        if not facts.stress_ng:
            return "stress-ng is not installed (Debian package stress-ng)"
        least = ".".join(map(str, stress_ng.MIN_VERSION))
        found = stress_ng.parse_version(facts.stress_ng)
        if found is None or found < stress_ng.MIN_VERSION:
            return f"{facts.stress_ng!r} is not stress-ng {least} or newer"
        return None


class Spec(FaultSpec):
    """Which load, and how much; at least one sort."""

    cpu: Workers = _workers("CPU")
    load: Percent = Field(
        default=Decimal(100), description="with cpu: for how much of the time each is busy"
    )
    cpu_percent: Percent | None = Field(
        default=None, description="share of the CPUs that the target may use: its quota, if any"
    )
    cpu_method: str = Field(
        default="int64", pattern="^[a-z0-9-]{1,32}$", description="one of stress-ng's own"
    )
    memory: Size | None = Field(default=None, description="bytes to take and hold")
    memory_percent: Percent | None = Field(
        default=None, description="share of the memory that the target may use: its limit, if any"
    )
    io: Workers = _workers("sync(2) again and again")
    hdd: Workers = _workers("write and read files")
    hdd_size: Size = Field(default=64 << 20, ge=1 << 20, description="file of each hdd worker")
    folder: AbsolutePath | None = Field(
        default=None, description="where scratch files go; without it the agent's own directory"
    )
    sock: Workers = _workers("sockets")
    fault: Workers = _workers("page faults")
    cache: Workers = _workers("CPU caches")
    switch: Workers = _workers("context switches")
    stressor: tuple[str, ...] = Field(
        default=(), max_length=16, description="any other of stress-ng: NAME=WORKERS"
    )
    oom_victim: Literal["stressor", "target"] = Field(
        default="stressor", description="who is killed first when memory runs out"
    )
    restart: bool = Field(default=False, description="start a worker again that ran out of memory")

    @property
    def has_memory(self) -> bool:
        return self.memory is not None or self.memory_percent is not None

    @model_validator(mode="after")
    def _sound(self) -> Spec:
        if self.cpu is not None and self.cpu_percent is not None:
            raise ValueError("cpu and cpu_percent cannot go together")
        if self.memory is not None and self.memory_percent is not None:
            raise ValueError("memory and memory_percent cannot go together")
        if self.load != int(self.load) or not self.load:
            raise ValueError("load: stress-ng takes whole percents, from 1%")
        if 0 in (self.cpu_percent, self.memory_percent) or (self.memory or 4096) < 4096:
            raise ValueError("that would be no load at all")
        asked = (self.cpu, self.cpu_percent, self.io, self.hdd, *self._plain.values())
        if not self.has_memory and not self.stressor and all(one is None for one in asked):
            raise ValueError("which load? cpu, memory, io, hdd, sock, fault, cache, switch, ...")
        stress_ng.named_args(self.stressor)
        return self

    @property
    def _plain(self) -> dict[str, int | None]:
        return {name: getattr(self, name) for name in PLAIN}

    @property
    def plain(self) -> dict[str, int]:
        """Workers that need nothing but their number, by stress-ng's names."""
        found = self._plain | {"io": self.io}
        return {name: count for name, count in found.items() if count}


def _cpu(spec: Spec, binding: CgroupBinding) -> stress_ng.CpuLoad | None:
    """Raises ValueError."""
    if spec.cpu_percent is not None:
        share = Fraction(spec.cpu_percent) / 100 * Fraction(binding.cpu_micro, 1_000_000)
        return stress_ng.cpu_load(share, MAX_WORKERS)
    return None if spec.cpu is None else stress_ng.CpuLoad(spec.cpu, int(spec.load))


def _memory(spec: Spec, binding: CgroupBinding) -> int:
    """Bytes, in whole pages; 0 if none are asked for."""
    asked = spec.memory or 0
    if spec.memory_percent is not None:
        asked = int(Fraction(spec.memory_percent) / 100 * binding.memory)
    return asked // 4096 * 4096


def _supports(spec: Spec, context: Context) -> str | None:
    binding = cg.binding_of(context)
    if binding.type != "domain" and binding.type != "domain threaded":
        return f"its cgroup.type is {binding.type!r}: no domain that processes could enter"
    if binding.frozen:
        return "it is frozen: no load would run"
    try:
        _cpu(spec, binding)
    except ValueError as exc:
        return str(exc)
    return _memory_objection(spec, binding)


def _memory_objection(spec: Spec, binding: CgroupBinding) -> str | None:
    if not spec.has_memory:
        return None
    most = binding.node_memory - RESERVE
    if not binding.memory_limited and _memory(spec, binding) > most:
        return (
            f"{_memory(spec, binding)} bytes leave the node less than {RESERVE >> 20} MiB, and no "
            f"memory.max holds the target (MemTotal is {binding.node_memory})"
        )
    above = [path for path in binding.oom_group if path != binding.scope.path]
    if spec.oom_victim == "stressor" and above:
        return f"memory.oom.group of {above[0]} is set: all of it would be killed with the stressor"
    return None


def _plan(spec: Spec, context: Context) -> list[StepBase]:
    binding = cg.binding_of(context)
    cpu, memory = _cpu(spec, binding), _memory(spec, binding)
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
    args += stress_ng.named_args(spec.stressor)
    steps: list[StepBase] = []
    if memory and spec.oom_victim == "stressor" and binding.oom_group:
        steps.append(CgroupWrite(scope=binding.scope, file="memory.oom.group", value="0"))
    run = StressRun(
        scope=binding.scope,
        child=f"faultctl-stress-{context.fault_id}",
        args=tuple(args),
        workers=workers,
        memory=0 if _beyond(spec, binding) else memory,
        oom_score_adj=1000 if spec.oom_victim == "stressor" else -1000,
        folder=spec.folder or "",
    )
    return [*steps, run]


def _beyond(spec: Spec, binding: CgroupBinding) -> bool:
    """Whether more is asked for than the limit lets anybody have."""
    return binding.memory_limited and _memory(spec, binding) >= binding.memory


def _guards(spec: Spec, context: Context) -> tuple[Guard, ...]:
    binding = cg.binding_of(context)
    found = cg.guards(spec, context)
    if _beyond(spec, binding):
        why = f"{_memory(spec, binding)} bytes are no less than {binding.memory} by "\
              f"{binding.memory_from}: something in it is killed"  # fmt: skip
        found = (*found, Guard("oom", why))
    return found


def evidence(spec: Spec, measured: tuple[Measured, ...]) -> Evidence:
    """Workers at work, by the CPU time and memory that the kernel counts for their cgroup."""
    found = next((item.data for item in measured if "workers" in item.data), None)
    if found is None:
        return Evidence(counted=False, statements=("the load has ended",))
    said = []
    if found["ended"] is not None:
        said.append(f"stress-ng has ended with {found['ended']}: {found['said']}")
    if found["oom_kill"]:
        said.append(f"{found['oom_kill']} processes of the target's cgroup ran out of memory")
    said.append(f"killed first when memory runs out: the {spec.oom_victim}")
    worked = found["usage_usec"] > 0 or found["held"] > 0
    names = ("workers", "usage_usec", "held", "memory_grown", "oom_kill")
    return Evidence(
        counted=True,
        hits=max(found["workers"] if worked else 0, found["oom_kill"]),
        counters={name: found[name] for name in names},
        statements=tuple(said),
        details={"cpus": found["cpus"]},
    )


def _collateral(spec: Spec) -> tuple[str, ...]:
    said = ["requests of the target that timed out meanwhile have done so"]
    if spec.has_memory:
        said.append("pages of the target that were reclaimed are read again when they are used")
        if spec.oom_victim == "target":
            said.append("processes of the target that ran out of memory are dead")
    return tuple(said)


KIND = FaultKind(
    name="stress",
    summary="load by stress-ng inside a cgroup",
    doc="""\
stress-ng runs in a cgroup of its own below the target's, so that the target's limits hold for
both and the kernel's accounting shows it. --cpu-percent is a share of what the target may use:
its quota if it or an ancestor has one, else its cpuset, else the node's CPUs; --memory-percent
is of its memory limit, or of the node's memory where that is less or there is no limit. Memory is
touched, not only mapped.

Armed when all workers are alive and use what was asked for; a stress-ng that ends at once is an
error with its own words. When memory runs out, the stressors are killed first (oom_score_adj
1000), or last with --oom-victim target; memory.oom.group of the target would kill all of it and
is cleared meanwhile. Worker deaths are in the evidence. It is ended by cgroup.kill, whatever its
processes are called and whoever their parent is; scratch files go with it.""",
    spec=Spec,
    targets=("cgroup",),
    family="cgroup",
    ladder=(
        Rung(
            "stress-ng",
            "stress-ng in a cgroup below the target's",
            lambda spec: (*cg.NEEDS, NeedStressNg()),
            _plan,
            _supports,
        ),
    ),
    evidence=evidence,
    collateral=_collateral,
    remedies=(
        "raise the workload's limits, or give it a node of its own",
        "kill the stressors: echo 1 > /sys/fs/cgroup/PATH/cgroup.kill",
    ),
    guards=_guards,
    examples=(
        "faultctl inject stress --cgroup /kubepods.slice/pod1 --cpu 2 --load 80%",
        "faultctl inject stress --cgroup /kubepods.slice/pod1 --cpu-percent 50%",
        "faultctl inject stress --cgroup /kubepods.slice/pod1 --memory-percent 70%",
        "faultctl inject stress --cgroup /db.service --hdd 2 --stressor matrix=1",
    ),
)
