"""stress: load by stress-ng inside a cgroup, so that its limits and its accounting see it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nodeagent.encode import psi
from nodeagent.faults import _stress_plan as sp
from nodeagent.faults._stress_plan import RESERVE
from nodeagent.faults._stress_spec import Spec
from nodeagent.model.evidence import Evidence
from nodeagent.model.kind import FaultKind, Measured, Rung
from nodeagent.model.steps.process import StressRun

__all__ = ["KIND", "RESERVE", "Spec"]


def evidence(spec: Spec, measured: tuple[Measured, ...]) -> Evidence:
    """Workers at work: what was asked, and what the kernel counts for their cgroup."""
    item = next((item for item in measured if "workers" in item.data), None)
    if item is None or not isinstance(item.step, StressRun):
        return Evidence(counted=False, statements=("the load has ended",))
    found = item.data
    worked = found["usage_usec"] > 0 or found["held"] > 0
    names = ("workers", "usage_usec", "held", "memory_grown", "oom_kill", "nr_throttled",
             "throttled_usec", "restarts")  # fmt: skip
    return Evidence(
        counted=True,
        hits=max(found["workers"] if worked else 0, found["oom_kill"]),
        counters={name: found[name] for name in names if name in found},
        statements=tuple(_told(spec, item.step, found)),
        details={
            "cpus": found["cpus"],
            "asked_cpus": item.step.cpus_micro / 1e6,
            "asked_bytes": item.step.memory,
            "seconds": found.get("seconds"),
            "stalled_us": found.get("stalls", {}),
        },
    )


def _told(spec: Spec, step: StressRun, found: dict[str, Any]) -> Iterator[str]:
    if step.cpus_micro:
        yield f"asked for {step.cpus_micro / 1e6:g} CPUs, measured {found['cpus']:g} on average"
    if step.memory:
        yield f"asked for {step.memory} bytes, the target has {found['memory_grown']} more"
    if found["ended"] is not None:
        yield f"stress-ng has ended with {found['ended']}: {found['said']}"
    elif found["workers"] < step.workers:
        yield f"{found['workers']} of {step.workers} workers are there: the others have died"
    if found["oom_kill"]:
        yield f"{found['oom_kill']} processes of the target's cgroup ran out of memory"
    if found.get("restarts"):
        yield f"started again {found['restarts']} times"
    if found.get("throttled_usec"):
        yield (
            f"its CPU limit was met in {found['nr_throttled']} periods, it was held back for "
            f"{found['throttled_usec'] / 1e6:.2f} s in all"
        )
    waited = psi.told(found.get("stalls", {}), found.get("seconds") or 0.0)
    if waited:
        yield waited
    yield f"killed first when memory runs out: the {spec.oom_victim}"


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
is cleared meanwhile. Deaths of workers are in the evidence; with --restart the run is started
again (at most 100 times). It is ended by cgroup.kill, whatever its processes are called and
whoever their parent is; scratch files go with it.

With --node it runs in a cgroup of its own beside everything else, with a cap that keeps the node
reachable: 90 % of its CPUs (more is refused), its memory but for 128 MiB, and a number of
processes. What meets the cap is the load, never somebody else. On nodes with cgroup v1 the load
runs below the target in every hierarchy that has it (cpu, cpuacct, memory, pids, freezer), and is
ended by the freezer and SIGKILL; v1 has neither memory.oom.group nor PSI, and takes no --node.

The evidence holds what was asked against what the kernel has measured: CPU time, memory, how long
the limits held it back, who ran out of memory, and how long tasks of the target have waited for
CPU, memory and I/O (PSI; with --node, tasks of the node).""",
    spec=Spec,
    targets=("cgroup", "node"),
    family="load",
    ladder=(
        Rung(
            "stress-ng",
            "stress-ng in a cgroup below the target's, or beside all others",
            sp.needs,
            sp.plan,
            sp.supports,
        ),
    ),
    evidence=evidence,
    collateral=_collateral,
    remedies=(
        "raise the workload's limits, or give it a node of its own",
        "kill the stressors: echo 1 > /sys/fs/cgroup/PATH/cgroup.kill",
    ),
    guards=sp.guards,
    examples=(
        "faultctl inject stress --cgroup /kubepods.slice/pod1 --cpu 2 --load 80%",
        "faultctl inject stress --cgroup /kubepods.slice/pod1 --cpu-percent 50%",
        "faultctl inject stress --cgroup /kubepods.slice/pod1 --memory-percent 70%",
        "faultctl inject stress --cgroup /db.service --hdd 2 --stressor matrix=1",
        "faultctl inject stress --node --cpu-percent 80%",
    ),
)
