"""Whole runs made from a seed, written as run folders and sealed as bundles."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import yaml
from judging_kit import WALL, S, armed, clocks, ended, planned, sample

from controller.bundle import seal_folder
from controller.records import (
    EXPERIMENT_FILE,
    FILE_OF,
    HEADER_FILE,
    PLAN_FILE,
    AnyRecord,
    FaultBiting,
    GroundTruth,
    OperatorAction,
    RunHeader,
    Submission,
    record_line,
)
from controller.run_plan import RunPlan

KINDS = {
    "latent-sector": ("disk", "sectors that cannot be read"),
    "syscall": ("syscall", "a system call that fails"),
    "netem": ("network", "packets that come late"),
    "stress": ("load", "processors that are taken away"),
}
SERVICES = ("postgres", "checkout", "cart", "search", "payments", "gateway")


def header(**change: Any) -> RunHeader:
    data: dict[str, Any] = {
        "run": "r20260101-000000-0001",
        "experiment": "shop-marathon",
        "seed": 17,
        "noise": True,
        "blind": True,
        "faultctl": "0.1.0",
        "created": WALL,
        "origin_boottime_ns": 0,
        "boot_id": "b",
    }
    return RunHeader.model_validate(data | change)


def experiment(**parts: Any) -> dict[str, Any]:
    probe = {"type": "http", "host": "shop", "interval": "5s", "timeout": "5s"}
    data: dict[str, Any] = {
        "version": 1,
        "name": "shop-marathon",
        "duration": "90m",
        "targets": {s: {"node": "n1", "service": s, "target": {}} for s in SERVICES},
        "probes": {f"{s}-up": probe for s in SERVICES},
        "oracles": {"repaired": {"judge": "repair", "hold": "60s"}},
    }
    return data | parts


def write_folder(
    folder: Path, records: list[AnyRecord], data: dict[str, Any], head: RunHeader | None = None
) -> Path:
    folder.mkdir(parents=True)
    (folder / HEADER_FILE).write_text((head or header()).model_dump_json(indent=1) + "\n")
    (folder / EXPERIMENT_FILE).write_text(yaml.safe_dump(data, sort_keys=False))
    (folder / PLAN_FILE).write_text(RunPlan(experiment="x", seed=1, end_ns=1, items=()).text())
    lines: dict[str, list[str]] = {}
    for record in records:
        lines.setdefault(FILE_OF[record.type], []).append(record_line(record) + "\n")
    for name, found in lines.items():
        (folder / name).write_text("".join(found))
    return folder


def sealed(folder: Path) -> Path:
    bundle = folder.with_name(folder.name + ".bundle.tar")
    seal_folder(folder, bundle)
    return bundle


def marathon(seed: int = 17, faults: int = 24, minutes: int = 60) -> list[AnyRecord]:
    """A busy run: faults and noise, health that follows them, an operator, a load."""
    source = random.Random(seed)  # noqa: S311
    end = minutes * 60
    records: list[AnyRecord] = list(clocks(-60, end, every=5))
    lives: list[tuple[str, int, int]] = []
    for number in range(faults):
        records += _fault(source, number, end, lives)
    for number in range(minutes // 5):
        records += _noise(source, number)
    for service in SERVICES:
        for at in range(-60, end, 5):
            bad = any(s == service and a + 20 <= at < b for s, a, b in lives)
            records.append(
                sample(
                    f"{service}-up",
                    at,
                    "fail" if bad else "pass",
                    reason="status 503" if bad else "",
                )
            )
    for at in range(-60, end, 10):
        ill = sum(1 for _, a, b in lives if a + 20 <= at < b)
        planned_n = 900 if end // 2 < at < end // 2 + 240 else 500
        failed = min(planned_n, ill * source.randrange(8, 24))
        data = {"planned": planned_n, "ok": planned_n - failed, "failed": failed, "dropped": 0}
        data |= {"held": True, "p99_ns": (40 + 30 * ill) * 10**6}
        verdict = "fail" if failed > planned_n // 100 else "pass"
        records.append(sample("users", at, verdict, data=data, duration_ns=10 * S))
    return records


def _fault(
    source: random.Random, number: int, end: int, lives: list[tuple[str, int, int]]
) -> list[AnyRecord]:
    kind = source.choice(sorted(KINDS))
    category, mechanism = KINDS[kind]
    service, fault = source.choice(SERVICES), f"x{number:03}"
    start = 30 + number * (end - 300) // 24 + source.randrange(60)
    stop = min(end - 20, start + source.randrange(300, 1500))
    truth = GroundTruth(
        category=category,
        mechanism=mechanism,
        service=service,
        scope=(service,),
        symptom_probe=f"{service}-up",
        artifact=f"{service} on n1",
        root_cause=f"{mechanism} under {service}",
    )
    slot = f"f{number:04d}"
    node = f"n{1 + number % 3}"
    found: list[AnyRecord] = [
        planned(fault, slot, kind=kind, node=node, truth=truth, start_ns=start * S),
        armed(start, fault, node=node),
        FaultBiting(
            t_ns=(start + 2) * S,
            wall=WALL,
            fault=fault,
            role="fault",
            node=node,
            hits=source.randrange(1, 90),
        ),
    ]
    found += list(clocks(start, start + 1, node=node))
    seen, named, fixed = (source.random() < p for p in (0.7, 0.45, 0.4))
    t = start + 40 + source.randrange(60)
    if seen:
        data = {"alerts": [f"{service}-up"], "text": f"{service} fails its health check"}
        found.append(_said("report", t, data))
    if named:
        t += 30 + source.randrange(60)
        found.append(_act(t - 10, f"kubectl describe pod {service}", service))
        text = f"{mechanism} under {service}"
        found.append(_said("report", t, {"service": service, "text": text}))
    if fixed and t + 40 < stop:
        stop = t + 20 + source.randrange(20)
        found.append(_act(stop - 5, f"kubectl rollout restart deployment/{service}", service))
        found.append(ended(stop, "remedied", "remedy moved", fault))
        found += list(clocks(stop, min(end, stop + 70), node=node))
    else:
        found.append(ended(stop, "expired", "node", fault))
    lives.append((service, start, stop))
    return found


def _noise(source: random.Random, number: int) -> list[AnyRecord]:
    start, fault = 60 + number * 300, f"z{number:03}"
    kind = source.choice(("restart", "latency", "loss"))
    return [
        planned(fault, f"noise-{number}", role="noise", kind=kind, truth=None, node="n2"),
        armed(start, fault, role="noise", node="n2"),
        ended(start + 120, "expired", "plan", fault).model_copy(update={"role": "noise"}),
    ]


def _said(kind: Any, at: int, data: dict[str, Any]) -> Submission:
    return Submission(t_ns=at * S, wall=WALL, kind=kind, actor="agent", data=data)


def _act(at: int, act: str, service: str) -> OperatorAction:
    return OperatorAction(t_ns=at * S, wall=WALL, actor="agent", act=act, service=service)
