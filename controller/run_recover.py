"""Take-over: a new controller reads what the last one wrote, and asks the nodes for the rest."""

from __future__ import annotations

from collections.abc import Iterable

from controller.records import (
    AnyRecord,
    FaultArmed,
    FaultBiting,
    FaultDropped,
    FaultEnded,
    RunEvent,
)
from controller.run_core import Core
from controller.run_state import Action, ItemState, Life, Look


def restore(
    core: Core, faults: Iterable[AnyRecord], events: Iterable[AnyRecord], now: int
) -> list[Action]:
    """Bring a fresh core to where the record ends, and go on from there.

    Every fault whose start has passed and whose end is not recorded is looked at on its
    node first: its request may have arrived though no line says so. It is injected only
    if the node has never heard of its id, and never twice.
    """
    core.now = now
    core.took_over = True
    _events(core, events)
    _faults(core, faults)
    core.event("takeover", shift_ns=core.shift_ns, stopping=core.stopping)
    if now < 0:
        return []
    core.started = True
    actions: list[Action] = []
    moment = (now if core.paused_at is None else core.paused_at) - core.shift_ns
    for state in core.order:
        if state.life.final or state.item.start_ns > moment:
            continue
        actions.append(_look(core, state))
    core.skip_to(moment)
    if core.stopping:
        actions += core.stop(now, core.stopping)
    return actions


def _look(core: Core, state: ItemState) -> Look:
    core.bring(state)
    state.maybe_there = True
    if state.life is Life.WAITING:
        state.life = Life.APPLYING
        state.end_ns = state.item.end_ns + core.shift_ns
    elif state.life is Life.ARMED:
        core.at(state.end_ns, "end", state.id)
    return Look(state.item)


def _events(core: Core, events: Iterable[AnyRecord]) -> None:
    for record in events:
        if not isinstance(record, RunEvent):
            continue
        if record.name == "paused":
            core.paused_at = record.t_ns
        elif record.name == "resumed":
            core.paused_at = None
            core.shift_ns = int(record.data["shift_ns"])
        elif record.name == "stopping":
            core.stopping = str(record.data["why"])
            core.paused_at = None


def _faults(core: Core, records: Iterable[AnyRecord]) -> None:
    for record in records:
        state = core.states.get(getattr(record, "fault", ""))
        if state is None:
            continue
        if isinstance(record, FaultArmed):
            state.life, state.armed_ns, state.sent_ns = Life.ARMED, record.t_ns, record.sent_ns
            shift = record.start_ns - state.item.start_ns
            state.end_ns = state.item.end_ns + shift
        elif isinstance(record, FaultBiting):
            state.biting = True
        elif isinstance(record, FaultEnded):
            core.close(state, Life.ENDED)
            if record.reason == "apply-failed":
                core.lacks(state, record.reason)
        elif isinstance(record, FaultDropped):
            core.close(state, Life.DROPPED)
            core.lacks(state, f"{record.reason}, {record.detail}")
