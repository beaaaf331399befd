"""throttle: a cgroup gets less CPU, memory, disk bandwidth or fewer processes than it had."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from pydantic import Field, model_validator

from nodeagent.encode import psi
from nodeagent.faults import _cgroup as cg
from nodeagent.model.cgroup import CgroupBinding
from nodeagent.model.evidence import Evidence
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Measured, Rung
from nodeagent.model.steps.cgroup import CgroupWrite, parse_io_line
from nodeagent.model.target import AbsolutePath
from nodeagent.model.units import Duration, Percent, Size

PAGE = 4096
MIN_QUOTA_US, MAX_PERIOD_US = 1000, 1_000_000
"""min_cfs_quota_period and max_cfs_quota_period, kernel/sched/core.c."""
HITS = {"cpu.max": "nr_throttled", "memory.high": "high", "pids.max": "max"}
"""Which counter tells that a limit was met; io.max has none."""
_MICRO = timedelta(microseconds=1)


class Spec(FaultSpec):
    """The limits; those that are not named stay as they are."""

    cpu: Decimal | None = Field(
        default=None,
        gt=0,
        le=8192,
        description="CPUs in all, such as 0.2",
        json_schema_extra={"metavar": "CPUS"},
    )
    cpu_percent: Percent | None = Field(
        default=None, description="instead of cpu: share of the CPUs that it may use now"
    )
    period: Duration = Field(
        default=timedelta(milliseconds=100),
        description="in which the CPU time is counted, 1ms to 1s",
    )
    memory: Size | None = Field(
        default=None, description="memory.high: above it, it is slowed down and reclaimed from"
    )
    memory_percent: Percent | None = Field(
        default=None, description="instead of memory: share of the memory that it may use now"
    )
    device: AbsolutePath | None = Field(default=None, description="whole disk of the next four")
    read_bytes: Size | None = Field(default=None, ge=2, description="bytes read a second")
    write_bytes: Size | None = Field(default=None, ge=2, description="bytes written a second")
    read_ops: int | None = Field(default=None, ge=2, lt=1 << 32, description="reads a second")
    write_ops: int | None = Field(default=None, ge=2, lt=1 << 32, description="writes a second")
    pids: int | None = Field(
        default=None, ge=0, le=1 << 22, description="pids.max: threads in all; forks beyond fail"
    )

    @property
    def io(self) -> dict[str, int]:
        """Limits by their keys in io.max."""
        named = {
            "rbps": self.read_bytes,
            "wbps": self.write_bytes,
            "riops": self.read_ops,
            "wiops": self.write_ops,
        }
        return {key: value for key, value in named.items() if value is not None}

    @model_validator(mode="after")
    def _sound(self) -> Spec:
        if self.cpu is not None and self.cpu_percent is not None:
            raise ValueError("cpu and cpu_percent cannot go together")
        if self.memory is not None and self.memory_percent is not None:
            raise ValueError("memory and memory_percent cannot go together")
        if 0 in (self.cpu_percent, self.memory_percent):
            raise ValueError("at 0% nothing would be left to it: use pause")
        if bool(self.io) != (self.device is not None):
            raise ValueError("device and a limit of bytes or operations go together")
        asked = (self.cpu, self.cpu_percent, self.memory, self.memory_percent, self.pids)
        if not self.io and all(one is None for one in asked):
            raise ValueError("which limit? cpu, memory, pids, or device with bytes or operations")
        if not MIN_QUOTA_US <= self.period // _MICRO <= MAX_PERIOD_US:
            raise ValueError("period: the kernel takes 1ms to 1s")
        if self.memory is not None and self.memory < PAGE:
            raise ValueError(f"memory: at least one page, {PAGE}B")
        return self


def _cpu(spec: Spec, binding: CgroupBinding) -> Fraction | None:
    """CPUs that are to be left."""
    if spec.cpu_percent is not None:
        return Fraction(spec.cpu_percent) / 100 * Fraction(binding.cpu_micro, 1_000_000)
    return None if spec.cpu is None else Fraction(spec.cpu)


def _memory(spec: Spec, binding: CgroupBinding) -> int | None:
    """memory.high in bytes, in whole pages as the kernel keeps it."""
    asked = spec.memory
    if spec.memory_percent is not None:
        asked = int(Fraction(spec.memory_percent) / 100 * binding.memory)
    return None if asked is None else asked // PAGE * PAGE


def _writes(spec: Spec, binding: CgroupBinding) -> dict[str, str]:
    """Interface file -> what to write."""
    wanted: dict[str, str] = {}
    cpu, memory = _cpu(spec, binding), _memory(spec, binding)
    if cpu is not None:
        period = spec.period // _MICRO
        wanted["cpu.max"] = f"{int(cpu * period)} {period}"
    if memory is not None:
        wanted["memory.high"] = str(memory)
    if spec.io:
        wanted["io.max"] = " ".join(f"{key}={value}" for key, value in spec.io.items())
    if spec.pids is not None:
        wanted["pids.max"] = str(spec.pids)
    return wanted


def _supports(spec: Spec, context: Context) -> str | None:
    binding = cg.binding_of(context)
    for file in _writes(spec, binding):
        if (reason := cg.no_file(binding, file)) is not None:
            return reason
    return (
        _cpu_objection(spec, binding)
        or _memory_objection(spec, binding)
        or _other_objection(spec, binding)
    )


def _cpu_objection(spec: Spec, binding: CgroupBinding) -> str | None:
    cpu = _cpu(spec, binding)
    if cpu is None:
        return None
    quota = int(cpu * (spec.period // _MICRO))
    if quota < MIN_QUOTA_US:
        return (
            f"{float(cpu):g} CPUs are {quota} us in a period of {spec.period // _MICRO} us, and "
            f"the kernel takes no less than {MIN_QUOTA_US} us: a longer --period"
        )
    now = Fraction(binding.cpu_micro, 1_000_000)
    if cpu >= now:
        return f"{float(cpu):g} CPUs are no less than it has: {float(now):g} by {binding.cpu_from}"
    burst = binding.values.get("cpu.max.burst", "0")
    if burst.isdigit() and int(burst) > quota:
        return f"its cpu.max.burst is {burst} us, and a quota cannot be below that"
    return None


def _memory_objection(spec: Spec, binding: CgroupBinding) -> str | None:
    memory = _memory(spec, binding)
    if memory is None:
        return None
    if memory < PAGE:
        return f"that is less than one page of {PAGE} bytes"
    high = binding.values["memory.high"]
    now = min(binding.memory, int(high)) if high.isdigit() else binding.memory
    if memory >= now:
        return f"{memory} bytes are no less than it has: {now} by memory.high or "\
               f"{binding.memory_from}"  # fmt: skip
    return None


def _other_objection(spec: Spec, binding: CgroupBinding) -> str | None:
    pids = binding.values.get("pids.max", "max")
    if spec.pids is not None and pids.isdigit() and spec.pids >= int(pids):
        return f"pids.max is {pids} already"
    if spec.io and binding.disk is not None:
        now = parse_io_line(binding.values["io.max"], binding.disk.numbers)
        for key, value in spec.io.items():
            if now[key].isdigit() and value >= int(now[key]):
                return f"{key} of {binding.disk.path} is {now[key]} already"
    return None


def _plan(spec: Spec, context: Context) -> list[CgroupWrite]:
    binding = cg.binding_of(context)
    disk = binding.disk.numbers if binding.disk is not None else ""
    return [
        CgroupWrite.model_validate(
            {
                "scope": binding.scope,
                "file": file,
                "value": value,
                "device": disk if file == "io.max" else "",
            }
        )
        for file, value in _writes(spec, binding).items()
    ]


def evidence(spec: Spec, measured: tuple[Measured, ...]) -> Evidence:
    """How often each limit was met, by the kernel's own counters since it was set."""
    counters: dict[str, int] = {}
    hits, counted, said = 0, False, []
    for item in measured:
        file = item.data.get("file")
        if file is None:
            continue
        found = item.data["counters"]
        counters |= {f"{file}:{name}": value for name, value in found.items()}
        if file in HITS:
            counted = True
            hits += found.get(HITS[file], 0)
        else:
            said.append("the kernel does not count what io.max holds back: see io.max:* and time")
            said.append(_rates(found, item.data["seconds"]))
        waited = psi.told(item.data.get("stalls", {}), item.data["seconds"])
        said += [waited] if waited and waited not in said else []
    return Evidence(
        counted=counted,
        hits=hits,
        counters=counters,
        statements=tuple(said),
        details={
            item.data["file"]: {
                "prior": item.data["prior"],
                "seconds": item.data["seconds"],
                "stalled_us": item.data.get("stalls", {}),
            }
            for item in measured
            if "file" in item.data
        },
    )


def _rates(counters: dict[str, int], seconds: float) -> str:
    """What went through, to be held against what was asked."""
    found = {name: round(value / max(seconds, 0.001)) for name, value in counters.items()}
    return (
        f"measured a second: {found.get('rbytes', 0)} B read in {found.get('rios', 0)} operations, "
        f"{found.get('wbytes', 0)} B written in {found.get('wios', 0)}"
    )


def _collateral(spec: Any) -> tuple[str, ...]:
    said = ["requests that timed out and processes that gave up meanwhile stay so"]
    if spec.memory is not None or spec.memory_percent is not None:
        said.append("pages that were reclaimed are read again, or swapped in, when they are used")
    return tuple(said)


KIND = FaultKind(
    name="throttle",
    summary="a cgroup gets less CPU, memory, disk bandwidth or fewer processes",
    doc="""\
Limits of a cgroup v2 are tightened: cpu.max, memory.high, io.max for a disk by direction in bytes
and operations, pids.max. Everything below the cgroup is held by them, whatever restarts in it. A
limit that would not be tighter than what applies to it already, its ancestors counted in, is
refused. What was there is put back; if somebody else has written to the file meanwhile, the
revert says so and leaves it.

memory.high slows the processes down and reclaims from them, it never kills; setting it far below
what is used takes a while. io.max holds direct I/O and reads; buffered writes only where memory
and io are both enabled and the file system supports it (ext4, xfs, btrfs). The kernel takes no
CPU quota below 1 ms a period and no io limit below 2.""",
    spec=Spec,
    targets=("cgroup",),
    family="cgroup",
    ladder=(
        Rung(
            "cgroup-v2",
            "the cgroup's own interface files",
            lambda spec: cg.NEEDS,
            _plan,
            _supports,
        ),
    ),
    evidence=evidence,
    collateral=_collateral,
    remedies=(
        "move the workload to another node",
        "add replicas, so that each needs less",
    ),
    guards=cg.guards,
    no_hits_hint="the target has not needed more than the limit since",
    examples=(
        "faultctl inject throttle --cgroup /kubepods.slice/pod1 --cpu 0.2",
        "faultctl inject throttle --cgroup /kubepods.slice/pod1 --memory-percent 50% --pids 40",
        "faultctl inject throttle --cgroup /db.service --device /dev/sda --read-bytes 1Mi "
        "--write-ops 50",
    ),
)
