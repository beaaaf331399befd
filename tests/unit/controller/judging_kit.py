"""Makes the records of a run for tests: times in seconds, everything else as written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from controller.oracle_history import History
from controller.records import (
    AnyRecord,
    ClockOffset,
    FaultArmed,
    FaultEnded,
    FaultPlanned,
    GroundTruth,
    OperatorAction,
    RunEvent,
    SampleRecord,
    Submission,
)

S = 10**9
WALL = "2026-01-01T00:00:00.000Z"
TRUTH = GroundTruth(
    category="disk",
    mechanism="latent sectors under a table",
    service="postgres",
    scope=("postgres", "checkout"),
    symptom_probe="orders",
    artifact="/dev/vdb sectors 2048-2055",
    remedies=("moved",),
    root_cause="Sectors of the table orders cannot be read.",
)


def planned(fault: str = "x1", slot: str = "bad", **change: Any) -> FaultPlanned:
    data: dict[str, Any] = {
        "t_ns": 0,
        "wall": WALL,
        "fault": fault,
        "slot": slot,
        "role": "fault",
        "node": "n1",
        "kind": "latent-sector",
        "target": {"type": "device", "device": "/dev/vdb"},
        "spec": {},
        "start_ns": 60 * S,
        "duration_ns": None,
        "truth": TRUTH,
    }
    return FaultPlanned.model_validate(data | change)


def armed(at: float, fault: str = "x1", role: Any = "fault", node: str = "n1") -> FaultArmed:
    ns = int(at * S)
    return FaultArmed(
        t_ns=ns,
        wall=WALL,
        fault=fault,
        role=role,
        node=node,
        mechanism="m",
        start_ns=ns,
        sent_ns=ns,
    )


def ended(at: float, reason: Any, by: str = "", fault: str = "x1") -> FaultEnded:
    return FaultEnded(
        t_ns=int(at * S), wall=WALL, fault=fault, role="fault", node="n1", reason=reason, by=by
    )


def sample(probe: str, at: float, verdict: Any = "pass", **more: Any) -> SampleRecord:
    data: dict[str, Any] = {"phase": "during", "duration_ns": S // 100, "data": {}}
    return SampleRecord(t_ns=int(at * S), wall=WALL, probe=probe, verdict=verdict, **(data | more))


def samples(
    probe: str, start: int, end: int, verdict: Any = "pass", every: int = 1, **more: Any
) -> list[SampleRecord]:
    return [sample(probe, at, verdict, **more) for at in range(start, end, every)]


def clocks(start: int, end: int, node: str = "n1", every: int = 5) -> list[ClockOffset]:
    return [
        ClockOffset(t_ns=at * S, wall=WALL, node=node, node_ns=at * S, offset_ns=0, error_ns=0)
        for at in range(start, end, every)
    ]


def event(name: str, at: float, node: str | None = "n1") -> RunEvent:
    return RunEvent(t_ns=int(at * S), wall=WALL, name=name, node=node)


def submission(kind: Any, at: float, fault: str = "", **data: Any) -> Submission:
    return Submission(t_ns=int(at * S), wall=WALL, kind=kind, fault=fault, data=data)


def action(at: float, service: str = "postgres", executed: bool = True) -> OperatorAction:
    return OperatorAction(
        t_ns=int(at * S), wall=WALL, act="kubectl get pods", service=service, executed=executed
    )


def history(*parts: AnyRecord | Iterable[AnyRecord]) -> History:
    records: list[AnyRecord] = []
    for part in parts:
        records += list(part) if isinstance(part, list | tuple) else [part]  # type: ignore[list-item]
    return History.of(records)
