"""The end of a run: what became of it, the groups' verdicts, and the sealed bundle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from controller.bundle import SUFFIX, seal_folder
from controller.clock import boottime_ns, wall
from controller.experiment import Experiment
from controller.experiment_check import Loaded, load_experiment
from controller.experiment_objects import SCHEME
from controller.metastable import trigger_of, verdict_record
from controller.oracle_finish import judged
from controller.recorder import Recorder, read_header, read_records
from controller.records import (
    EXPERIMENT_FILE,
    FaultArmed,
    FaultDropped,
    FaultEnded,
    FaultLeft,
    FaultPlanned,
    NodeRecord,
    Record,
    RunEvent,
    SampleRecord,
    VerdictRecord,
)

FINISHED = "finished"


@dataclass
class Outcome:
    """What became of a run; counts are of faults, not of noise."""

    run: str
    folder: Path
    stopped: str
    ended: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    verdicts: list[VerdictRecord] = field(default_factory=list)
    bundle: Path | None = None
    seal: str = ""

    @property
    def exit_code(self) -> int:
        """0 played as planned, 1 judged false, 3 something was kept out or could not be armed,
        4 not confirmed."""
        if self.ended["unconfirmed"]:
            return 4
        if self.stopped.startswith("guard") or self.stopped == "not-steady":
            return 1
        if any(v.verdict == "fail" for v in self.verdicts):
            return 1
        if self.stopped == "interrupt":
            return 130
        left_out = self.dropped - Counter(self.dropped_on_purpose)
        return 3 if left_out or self.ended["apply-failed"] else 0

    @property
    def dropped_on_purpose(self) -> dict[str, int]:
        """What a person who stopped the run left out."""
        return {"stopped": self.dropped["stopped"]}


def is_over(folder: Path) -> bool:
    """Whether the run has written its last record."""
    events = read_records(folder, "events.jsonl")
    return any(isinstance(record, RunEvent) and record.name == FINISHED for record in events)


def experiment_of(folder: Path) -> Loaded:
    """The experiment of a run folder, with the nodes where the run found them."""
    nodes = {
        record.node: record.address
        for record in read_records(folder, "nodes.jsonl")
        if isinstance(record, NodeRecord) and not record.address.startswith(SCHEME)
    }
    raw = (folder / EXPERIMENT_FILE).read_bytes()
    return load_experiment(raw, EXPERIMENT_FILE, nodes=nodes, for_schedule=True)


def finish(folder: Path, stopped: str) -> Outcome:
    """Judge the groups, write the last records, seal the bundle."""
    header = read_header(folder)
    faults = list(read_records(folder, "faults.jsonl"))
    outcome = Outcome(header.run, folder, stopped)
    for record in faults:
        if isinstance(record, FaultEnded) and record.role == "fault":
            outcome.ended[record.reason] += 1
        elif isinstance(record, FaultDropped) and record.role == "fault":
            outcome.dropped[record.reason] += 1
        elif isinstance(record, FaultLeft) and record.reason == "unconfirmed":
            outcome.ended["unconfirmed"] += 1
    with Recorder.resume(folder) as recorder:
        now = boottime_ns() - header.origin_boottime_ns
        outcome.verdicts = _metastable(folder, experiment_of(folder).experiment, faults, now)
        outcome.verdicts += judged(folder, now, wall())
        for verdict in outcome.verdicts:
            recorder.write(verdict)
        recorder.write(RunEvent(t_ns=now, wall=wall(), name=FINISHED, data={"why": stopped}))
    outcome.bundle = folder.with_name(folder.name + SUFFIX)
    outcome.seal = seal_folder(folder, outcome.bundle).seal
    return outcome


def _metastable(
    folder: Path, experiment: Experiment, faults: Sequence[Record], now: int
) -> list[VerdictRecord]:
    groups = {n: g for n, g in experiment.groups.items() if g.overload is not None}
    if not groups:
        return []
    samples = [r for r in read_records(folder, "samples.jsonl") if isinstance(r, SampleRecord)]
    found = []
    for name, group in groups.items():
        planned = [f for f in faults if isinstance(f, FaultPlanned) and f.group == name]
        ids = {f.fault for f in planned}
        armed = [f.t_ns for f in faults if isinstance(f, FaultArmed) and f.fault in ids]
        ended = [f for f in faults if isinstance(f, FaultEnded) and f.fault in ids]
        trigger = trigger_of(armed, ended, len(planned))
        found.append(verdict_record(name, group, trigger, samples, (now, wall())))
    return found
