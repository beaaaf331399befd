"""Which submissions count: not before any fault, not twice, not for a fault nobody knows."""

from __future__ import annotations

from controller.oracle_history import History
from controller.records import Submission


def objection(history: History, submission: Submission) -> str:
    """Why a submission does not count, given all that was recorded before; empty if it does.

    It is kept in the record either way. Reports may come as often as an operator likes.
    """
    first = history.first_injection_ns()
    if first is None or submission.t_ns < first:
        return "no fault has been injected yet"
    if submission.fault and submission.fault not in {f.id for f in history.injected()}:
        return f"no fault {submission.fault!r} was injected in this run"
    if submission.kind == "report":
        return ""
    for earlier in history.accepted(submission.kind):
        if earlier.fault == submission.fault or not earlier.fault:
            return f"a {submission.kind} was already handed in at {earlier.wall}"
    return ""


def settled(history: History, submission: Submission) -> Submission:
    """The submission as it is recorded: accepted, or why not."""
    why = objection(history, submission)
    return submission.model_copy(update={"accepted": not why, "why_not": why})
