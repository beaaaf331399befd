"""The negative control: an oracle must see the fault, and must see that it is repaired."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controller.oracle import FaultVerdict, Moment, judge_at, moment_of, nanoseconds, oracles_for
from controller.oracle_history import FaultStory, History
from controller.oracle_scene import Pace
from controller.oracle_spec import OracleSpec

ACTS = "control-acts"
"""Name of the run's event when a control begins a remedy; its data names the fault."""


@dataclass(frozen=True)
class Control:
    """One oracle on one fault, while it was armed and after its remedy."""

    fault: str
    oracle: str
    broken: tuple[str, ...]
    """Why the experiment is broken; empty: it is sound."""
    armed: FaultVerdict | None = None
    after: FaultVerdict | None = None

    def data(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "fault": self.fault,
            "oracle": self.oracle,
            "sound": not self.broken,
            "broken": list(self.broken),
            "armed": None if self.armed is None else self.armed.data(),
            "after": None if self.after is None else self.after.data(),
        }


def check(
    history: History, oracles: Mapping[str, OracleSpec], paces: Mapping[str, Pace]
) -> list[Control]:
    """The control over all faults of a run in which each was left alone, then remedied.

    The armed window is the last one of the oracle's hold time before the remedy began.
    """
    return [
        _control(history, story, oracle, paces)
        for story in history.injected()
        for oracle in oracles_for(story, oracles)
    ]


def _control(
    history: History,
    story: FaultStory,
    oracle: tuple[str, OracleSpec],
    paces: Mapping[str, Pace],
) -> Control:
    name, spec = oracle
    after = judge_at(history, story, oracle, moment_of(history, story, spec), paces)
    injected, repaired = story.injected_ns, after.repaired_ns
    if injected is None or repaired is None:
        return Control(story.id, name, ("it was never remedied in this run",), None, after)
    hold = nanoseconds(spec.hold)
    until = min([repaired, *_begun(history, story)])
    if until - injected < hold:
        text = "it was remedied before it had been armed for one hold time"
        return Control(story.id, name, (text,), None, after)
    armed = judge_at(history, story, oracle, Moment(until - hold, hold, "armed"), paces)
    return Control(story.id, name, tuple(_troubles(armed, after)), armed, after)


def _begun(history: History, story: FaultStory) -> list[int]:
    """When a control that was played began its remedy, which may take effect by and by."""
    told = (e for e in history.run_events if e.name == ACTS)
    return [e.t_ns for e in told if e.data.get("fault") == story.id]


def _troubles(armed: FaultVerdict, after: FaultVerdict) -> list[str]:
    found = []
    if armed.verdict != "fail":
        found.append(f"the oracle says {armed.verdict} while the fault is armed")
    symptom = armed.parts.get("require")
    if symptom is None:
        found.append("the oracle looks at no probe: give it `require`, or the fault a symptom")
    elif symptom != "fail":
        found.append(f"what it requires is {symptom} while the fault is armed: it sees nothing")
    if after.verdict != "pass":
        why = "; ".join(after.reasons)
        found.append(f"the oracle says {after.verdict} after a legitimate remedy: {why}")
    return found
