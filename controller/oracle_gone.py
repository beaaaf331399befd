"""Is a fault really gone? Remedied, routed around, expired and reverted are four things.

Only an operator's act counts: a remedy that ended the fault, or a change after which no
running workload can be hit any more, made while the fault was live. What the orchestrator
takes back, and what a lease ends, repairs nothing.
"""

from __future__ import annotations

from controller.oracle_history import FaultStory, Series
from controller.oracle_logic import Finding
from controller.records import SampleRef
from controller.records_base import MOVED_AWAY

_WORDS = {
    "reverted": "the orchestrator took it back; nobody repaired it",
    "expired": "its lease or its time ran out; nobody repaired it",
    "agent-lost": "the node agent was lost and its guardian took the fault back",
    "rebooted": "the node was booted again; that is not a remedy",
}
MIN_ROUTED = 3
"""Samples in a row without exposure that make a fault routed around."""


def accepted_remedy(story: FaultStory) -> bool:
    """Whether it ended by a remedy, and by one that its ground truth accepts.

    `by` names the experiment's remedy; a kind's own reaction (a sector that was written) is
    named by the node, and always accepted.
    """
    if story.ended is None or story.ended.reason != "remedied":
        return False
    truth, by = story.planned.truth, story.ended.by
    named = by.removeprefix("remedy ") if by.startswith("remedy ") else ""
    return not (truth and truth.remedies and named) or named in truth.remedies


def moved_away(story: FaultStory) -> bool:
    """Whether it ended because its workload went where it does not follow."""
    ended = story.ended
    return ended is not None and ended.reason == "reverted" and ended.by == MOVED_AWAY


def routed_ns(story: FaultStory, exposure: Series | None, until_ns: int) -> int | None:
    """Since when nobody could be hit, to the fault's end or a given time; None if not.

    The newest stretch of samples without exposure counts, with nothing unknown in it.
    """
    injected = story.injected_ns
    if moved_away(story) and story.ended_ns is not None and story.ended_ns <= until_ns:
        return story.ended_ns
    if exposure is None or injected is None:
        return None
    end = until_ns if story.ended_ns is None else min(until_ns, story.ended_ns)
    stretch = []
    for sample in reversed(exposure.within(injected, end)):
        if sample.verdict != "pass":
            break
        stretch.append(sample.t_ns)
    return stretch[-1] if len(stretch) >= MIN_ROUTED else None


def repaired_ns(story: FaultStory, exposure: Series | None, until_ns: int) -> int | None:
    """When an operator repaired it while it was live; None if nobody did."""
    routed = routed_ns(story, exposure, until_ns)
    remedied = story.remedied_ns if accepted_remedy(story) else None
    found = [t for t in (routed, remedied) if t is not None and t <= until_ns]
    return min(found) if found else None


def gone(story: FaultStory, exposure: Series | None, start_ns: int, end_ns: int) -> Finding:
    """Whether the fault was repaired by the start of a window and stayed so to its end."""
    ended, at = story.ended, story.ended_ns
    if story.injected_ns is None:
        return Finding("unknown", (f"{story.id} was never injected",))
    if ended is None or at is None or at >= end_ns:
        return _while_armed(story, exposure, start_ns, end_ns)
    if story.planned.group_type == "metastable" and ended.reason in ("reverted", "expired", "done"):
        return _trigger(story, at, start_ns)
    if ended.reason == "done":
        return Finding("pass", (f"{story.id} was over at once; what it left is judged",))
    if ended.reason == "remedied":
        return _remedied(story, at, start_ns)
    routed = routed_ns(story, exposure, at)
    if routed is not None and routed <= start_ns and ended.reason in ("expired", "reverted"):
        return Finding("pass", (f"{story.id} was routed around while it was live",))
    text = _WORDS.get(ended.reason, "the node did not say how it ended")
    return Finding("fail" if ended.reason in _WORDS else "unknown", (f"{story.id}: {text}",))


def _trigger(story: FaultStory, at: int, start_ns: int) -> Finding:
    """A metastable group's trigger is taken away by plan; what must be repaired is the overload
    that goes on without it, and that is what the oracle requires."""
    if at > start_ns:
        return Finding("fail", (f"{story.id}: the trigger was still there",))
    return Finding("pass", (f"{story.id}: the trigger is gone as planned",))


def _remedied(story: FaultStory, at: int, start_ns: int) -> Finding:
    by = story.ended.by if story.ended else ""
    if not accepted_remedy(story):
        return Finding("fail", (f"{story.id}: {by} is not a remedy that is accepted here",))
    since = at if story.remedied_ns is None else story.remedied_ns
    if since > start_ns:
        return Finding("fail", (f"{story.id} was repaired only after the moment that is judged",))
    return Finding("pass", (f"{story.id} was remedied ({by or 'on the node'})",))


def _while_armed(story: FaultStory, exposure: Series | None, start_ns: int, end_ns: int) -> Finding:
    if exposure is None:
        return Finding("fail", (f"{story.id} is still armed",))
    samples = exposure.within(start_ns, end_ns)
    for verdict in ("fail", "unknown"):
        for sample in samples:
            if sample.verdict == verdict:
                text = f"{story.id} is still armed, and can hit: {sample.reason or verdict}"
                end = sample.t_ns + sample.duration_ns
                ref = SampleRef(probe=sample.probe, from_ns=sample.t_ns, to_ns=end)
                return Finding("fail" if verdict == "fail" else "unknown", (text,), (ref,))
    if len(samples) < MIN_ROUTED:
        return Finding("unknown", (f"{story.id} is still armed; exposure was not measured",))
    return Finding("pass", (f"{story.id} is armed, but can hit nobody any more",))
