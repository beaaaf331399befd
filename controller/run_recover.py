"""Take-over: a new controller reads what the last one wrote, and asks the nodes for the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from controller.records import (
    AnyRecord,
    FaultArmed,
    FaultBiting,
    FaultDropped,
    FaultEnded,
    FaultLeft,
    FaultMoved,
    FaultWaits,
    RunEvent,
)
from controller.run_core import Core
from controller.run_state import Action, ItemState, Life, Look, Travel


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
        if state.life is Life.MOVING:
            core.at(state.end_ns, "end", state.id)
            actions += core.seek(state)
        else:
            actions.append(_look(core, state))
        for old in list(state.travel.remnants):
            actions += core.retire(old, "it has moved")
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
    trails: dict[str, _Trail] = {}
    for record in records:
        state = core.states.get(getattr(record, "fault", ""))
        if state is None:
            continue
        if isinstance(record, FaultMoved | FaultWaits | FaultLeft):
            trails.setdefault(state.id, _Trail()).note(record)
            continue
        _fault(core, state, record)
        if isinstance(record, FaultArmed) and state.item.follow:
            trails.setdefault(state.id, _Trail()).first = record.turn
    for fault, trail in trails.items():
        if not core.states[fault].life.final:
            _set_out(core, core.states[fault], trail)


def _fault(core: Core, state: ItemState, record: AnyRecord) -> None:
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


# --- faults that follow their workload ---------------------------------------------------------


@dataclass
class _Trail:
    """The pods that a fault was on, by turn."""

    moved: dict[int, FaultMoved] = field(default_factory=dict)
    left: dict[int, FaultLeft] = field(default_factory=dict)
    waits: int = -1
    first: int = -1
    """On which it was armed at first."""

    def note(self, record: FaultMoved | FaultWaits | FaultLeft) -> None:
        if isinstance(record, FaultMoved):
            self.moved[record.turn] = record
        elif isinstance(record, FaultLeft):
            self.left[record.turn] = record
        else:
            self.waits = record.turn


def _set_out(core: Core, state: ItemState, trail: _Trail) -> None:
    """The fault where it is, and what may be left of it where it was: that is taken back, since
    nobody has looked meanwhile whether those pods are still there."""
    for left in trail.left.values():
        hits = int(left.evidence.get("hits", 0))
        place = {"turn": left.turn, "node": left.node, "reason": left.reason, "hits": hits}
        state.travel.places.append(place)
    injected = trail.first >= 0
    turn = max([trail.waits, trail.first, *trail.moved])
    gone = {*trail.left, turn}
    for earlier in sorted({trail.first, *trail.moved} - gone) if injected else ():
        if earlier >= trail.first:
            core.remnant(_there(state, trail.moved.get(earlier), earlier == trail.first))
    state.item = state.item.model_copy(update={"turn": turn})
    moved = trail.moved.get(turn)
    if moved is not None:
        here = _there(state, moved, turn == trail.first)
        state.item, state.travel = here.item, here.travel
    core.register(state)
    if injected and turn != trail.first and not (moved and moved.armed):
        state.life, state.maybe_there = Life.MOVING, moved is not None
        core.moving[state.id] = state
        if moved is not None:
            core.hunt(state)
            core.bring(state)


def _there(state: ItemState, moved: FaultMoved | None, first: bool) -> ItemState:
    """The fault as it was, or may have been, on one of its pods."""
    if moved is None:
        return replace(state, life=Life.ARMED, travel=Travel())
    names = ("node", "zone", "target_name", "target", "turn")
    item = state.item.model_copy(update={name: getattr(moved, name) for name in names})
    travel = replace(state.travel, pod=moved.pod, uid=moved.uid, containers=moved.containers,
                     volume=moved.volume, why=moved.why)  # fmt: skip
    return replace(
        state, item=item, travel=travel, life=Life.ARMED if moved.armed else Life.APPLYING
    )
