"""When a fault really ended: by its node's clock, and by the act that a remedy's probe saw.

A controller hears of an end some time later, and recognises a remedy only after several
samples. An operator must not lose the seconds in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller.records import (
    AgentEvent,
    ClockOffset,
    FaultArmed,
    FaultEnded,
    SampleRecord,
)

_END_EVENTS = ("ended", "remedied")


def node_end_ns(
    armed: FaultArmed,
    ended: FaultEnded,
    records: Iterable[ClockOffset | AgentEvent],
    origin_ns: int | None,
) -> int | None:
    """The end by the node's clock, brought to the run's by the offset that was measured nearest
    to it; never after its record, never before the fault was armed. None if it is not known."""
    if origin_ns is None:
        return None
    node_ns = ended.node_ns
    offsets: list[ClockOffset] = []
    for record in records:
        if isinstance(record, ClockOffset):
            if record.node == ended.node:
                offsets.append(record)
        elif record.fault == ended.fault and node_ns is None and record.name in _END_EVENTS:
            node_ns = record.node_ns
    if node_ns is None or not offsets:
        return None
    at = node_ns
    nearest = min(offsets, key=lambda o: (abs(o.node_ns - at), o.t_ns))
    found = node_ns - origin_ns - nearest.offset_ns
    return min(max(found, armed.t_ns), ended.t_ns)


def act_ns(armed: FaultArmed, ended: FaultEnded, probe: Sequence[SampleRecord]) -> int | None:
    """Since when the probe of the remedy had passed in a row when the fault was ended for it."""
    if ended.reason != "remedied":
        return None
    since: int | None = None
    for sample in reversed(probe):
        if not armed.t_ns <= sample.t_ns <= ended.t_ns:
            continue
        if sample.verdict != "pass":
            break
        since = sample.t_ns
    return since
