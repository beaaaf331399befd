"""Residue and trouble: what is ours in the kernel though no fault claims it, and what is stuck."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodeagent.backends import Residue, load_scavengers
from nodeagent.faults._loaders import matrix, summary
from nodeagent.model.errors import FaultError, Refused
from nodeagent.model.record import FaultState, StepRow, StepState
from nodeagent.model.steps import StepBase

if TYPE_CHECKING:
    from nodeagent.agent import Agent

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finding:
    """One line of a doctor's report; severity is ok, note, residue or error."""

    severity: str
    what: str
    detail: str = ""
    removed: bool = False


def examine(agent: Agent, *, purge: bool = False) -> list[Finding]:
    """All findings, the bad ones first. With `purge`, residue is removed."""
    findings = [*_journal(agent), *_guardian(agent), *_residue(agent, purge), *_loaders(agent)]
    _say_residue(agent, findings)
    order = {"error": 0, "residue": 1, "note": 2, "ok": 3}
    return sorted(findings, key=lambda f: order[f.severity])


def _say_residue(agent: Agent, findings: Sequence[Finding]) -> None:
    """A line when other things are left over than the last time; metrics look every minute."""
    left = {f"{f.what}: {f.detail}" for f in findings if f.severity == "residue" and not f.removed}
    if left == agent.residue_said:
        return
    agent.residue_said = left
    if left:
        LOG.warning(
            "residue: %d things are left over, see faultctl doctor",
            len(left),
            extra={"event": "residue", "details": "; ".join(sorted(left))},
        )
    else:
        LOG.info("residue: nothing is left over any more", extra={"event": "residue"})


def _journal(agent: Agent) -> list[Finding]:
    findings = []
    problem = agent.journal.check()
    if problem:
        findings.append(Finding("error", "the journal is damaged", problem))
    faults = agent.journal.faults(active_only=True)
    for fault in faults:
        if fault.error:
            findings.append(Finding("error", f"{fault.id} is not reverted yet", fault.error))
        elif fault.state is FaultState.ARMED:
            findings.append(Finding("note", f"{fault.id} is armed", fault.kind))
    if not faults:
        findings.append(Finding("ok", "no fault is armed"))
    return findings


def _guardian(agent: Agent) -> list[Finding]:
    pid = agent.ward.pid
    if pid is None:
        return [Finding("error", "no guardian is running", "see guardian.log in the state dir")]
    return [Finding("ok", "the guardian is running", f"pid {pid}")]


def _loaders(agent: Agent) -> list[Finding]:
    """Which mechanisms each BPF loader brings here; the chosen one's are what plans use."""
    facts = agent.facts()
    return [
        Finding(
            "ok",
            f"BPF loader {loader}" + (" (in use)" if loader == facts.bpf_loader else ""),
            summary(mechanisms),
        )
        for loader, mechanisms in matrix(facts).items()
    ]


def claimed(rows: Sequence[StepRow]) -> list[StepBase]:
    """Steps that may be in the kernel, as the journal knows it."""
    return [row.step for row in rows if row.state is not StepState.REVERTED]


def _residue(agent: Agent, purge: bool) -> list[Finding]:
    """What was found is looked at again in a mutation of its own: it may be a fault by then."""
    if not _unclaimed(agent):
        return [Finding("ok", "no residue was found")]
    try:
        with agent.executor.mutation():
            found = [_finding(item, purge) for item in _unclaimed(agent)]
    except Refused as exc:
        return [Finding("error", "residue cannot be told from what is being changed", str(exc))]
    return found or [Finding("ok", "no residue was found")]


def _unclaimed(agent: Agent) -> list[Residue]:
    active = [f.id for f in agent.journal.faults(active_only=True)]
    steps = claimed([row for fault_id in active for row in agent.journal.steps(fault_id)])
    return [item for find in load_scavengers() for item in find(agent.node_id, steps)]


def _finding(item: Residue, purge: bool) -> Finding:
    if not purge:
        return Finding("residue", item.what, item.detail)
    try:
        item.remove()
    except (FaultError, OSError) as exc:
        return Finding("error", item.what, f"it could not be removed: {exc}")
    return Finding("residue", item.what, item.detail, removed=True)
