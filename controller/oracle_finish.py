"""What a run writes of its judgement before it is sealed."""

from __future__ import annotations

from pathlib import Path

from controller.records import VerdictRecord
from controller.score_files import open_run
from controller.score_run import score_run, verdict_records


def judged(folder: Path, t_ns: int, wall: str) -> list[VerdictRecord]:
    """Verdicts on all injected faults, groups and the run, and the answers to a diagnosis.

    None where nobody asked: the experiment has no oracle, and nothing was handed in.
    Raises what `open_run` raises.
    """
    run = open_run(folder)
    if not run.oracles and not run.history.submissions:
        return []
    return verdict_records(score_run(run), t_ns, wall)
