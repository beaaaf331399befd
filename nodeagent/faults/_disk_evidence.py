"""Evidence of disk faults from what their watches and hooks measured. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.model.evidence import Evidence, IoRecord
from nodeagent.model.kind import Measured
from nodeagent.model.ranges import Range, Ranges, intersect, subtract

FAILED = ("reads_failed", "writes_failed")
"""Counters of a fault that makes bios fail."""
PASSED = {"read": "reads_ok", "write": "writes_ok"}
"""Counter of the bios of a direction that ended well, changed or late as they may be."""

DATA_LOSS = "data-loss"
"""The guard rail of kinds that lose data by design."""
CACHED_READS = "reads from the page cache do not reach the disk, so they succeed as before"
FSCK = (
    "after the revert: unmount the file system and run fsck before it is used again, "
    "then restore what is lost"
)
FAILED_WRITES = (
    "a failed journal write turns ext4 read-only and shuts XFS down, until it is mounted anew",
    "a failed fsync loses the data it was for; PostgreSQL panics and recovers from its log",
)


def evidence(
    measured: Iterable[Measured],
    statements: Iterable[str] = (),
    *,
    hits: tuple[str, ...] = FAILED,
    countable: bool = True,
    timed: bool = False,
) -> Evidence:
    """Hits and records of all watches and hooks of a fault, with what is said about caches.

    hits: the counters whose sum is the number of hits. countable: False where a bio that
    passed may have been hit or not, and the kernel does not tell. timed: say how long bios took.
    """
    data = [item.data for item in measured]
    counting = [found for found in data if "counters" in found]
    counters: dict[str, int] = {}
    for found in counting:
        for name, value in found["counters"].items():
            counters[name] = counters.get(name, 0) + int(value)
    times = [found[key] for found in counting for key in ("first_ns", "last_ns") if found.get(key)]
    records = [IoRecord.model_validate(r) for found in counting for r in found.get("records", ())]
    said = list(statements)
    for found in data:
        said += found.get("statements", ())
        said += took(found.get("took", {})) if timed else []
    said += unseen(sum(int(found.get("missed", 0)) for found in counting))
    if not counting:
        said.append("nothing on this node counts hits, so whether it bites is not known")
    counted = bool(counting) and countable
    return Evidence(
        counted=counted,
        hits=sum(counters.get(name, 0) for name in hits) if counted else 0,
        counters=counters,
        first_hit_ns=min(times, default=None),
        last_hit_ns=max(times, default=None),
        lost=sum(int(found.get("lost", 0)) for found in counting),
        records=tuple(sorted(records, key=lambda r: r.boottime_ns)),
        kernel_log=tuple(dict.fromkeys(line for f in data for line in f.get("kernel_log", ()))),
        statements=tuple(said),
    )


def unseen(missed: int) -> list[str]:
    """What is said of bios that no program looked at."""
    if not missed:
        return []
    return [
        f"{missed} bios on this node passed unseen: a program was active on that CPU already, "
        "or too many were under way (not known whether they were the target's)"
    ]


def took(measured: dict[str, list[int]]) -> list[str]:
    """How long bios took that ended well: {"read": [how many, least ns, most ns]}."""
    return [
        f"{op}s took {least / 1e6:.1f} to {most / 1e6:.1f} ms (the first {seen} seen)"
        for op, (seen, least, most) in sorted(measured.items())
    ]


def passed(record: IoRecord, op: str) -> bool:
    """Whether a record is of a data bio of this direction that ended well."""
    return record.op == op and not record.status and record.sectors > 0


def healed(bad: Ranges, record: IoRecord, unit: int) -> Ranges | None:
    """What is still bad after a write that went well; None if the record heals nothing.

    Only logical blocks that the write covers as a whole are healed.
    """
    if record.op != "write" or record.status or record.sectors <= 0:
        return None
    first, last = -(-record.sector // unit) * unit, (record.sector + record.sectors) // unit * unit
    if last <= first:
        return None
    written = (Range(start=first, length=last - first),)
    if not intersect(bad, written):
        return None
    return subtract(bad, written)
