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

Told = Sequence[ClockOffset | AgentEvent]

_END_EVENTS = ("ended", "remedied")


def node_end_ns(
    armed: FaultArmed,
    ended: FaultEnded,
    told: Told,
    origin_ns: int | None,
) -> int | None:
    """The end by the node's clock, brought to the run's by the offset that was measured nearest
    to it; never after its record, never before the fault was armed. None if it is not known."""
    if origin_ns is None:
        return None
    node_ns = ended.node_ns
    if node_ns is None:
        node_ns = next((e.node_ns for e in _events(ended, told) if e.name in _END_EVENTS), None)
    return _by_ours(node_ns, armed, ended, told, origin_ns)


def told_act_ns(
    armed: FaultArmed,
    ended: FaultEnded,
    told: Told,
    origin_ns: int | None,
) -> int | None:
    """When the act was done by which the node saw that the fault is remedied: a write to the last
    bad sector, say. The node takes the fault back only after it, and an operator who says at
    once that it is repaired is right."""
    if origin_ns is None or ended.reason != "remedied":
        return None
    acts = (e.data.get("act_ns") for e in _events(ended, told) if e.name == "remedied")
    found = next((ns for ns in acts if isinstance(ns, int)), None)
    return _by_ours(found, armed, ended, told, origin_ns)


def _events(ended: FaultEnded, told: Told) -> Iterable[AgentEvent]:
    """What was said where it ended; a fault that moved has ended elsewhere before."""
    own = (r for r in told if isinstance(r, AgentEvent) and r.fault == ended.fault)
    return (r for r in own if (r.agent_fault or r.fault) == (ended.agent_fault or ended.fault))


def _by_ours(
    node_ns: int | None, armed: FaultArmed, ended: FaultEnded, told: Told, origin_ns: int
) -> int | None:
    """A node's time of a fault as the run counts; None if it or the clock's offset is unknown."""
    offsets = [r for r in told if isinstance(r, ClockOffset) and r.node == ended.node]
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
