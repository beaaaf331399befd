"""Scores of a run: exact fractions from the times of stages, rounded only when shown.

The formula is reconstructed from published result tables (four of them are golden
vectors in the tests), not taken from a specification: each injected fault has three
ordered stages; its credit is the number of stages passed before the first one missed;
the score is 100 times the sum of credits over three times the faults injected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

Stage = Literal["correlated", "localized", "repaired"]
STAGES: tuple[Stage, ...] = ("correlated", "localized", "repaired")
Outcome = Literal[
    "handled",
    "repaired but not handled",
    "acted on",
    "located",
    "correlated only",
    "missed",
]
OUTCOMES: tuple[Outcome, ...] = (
    "handled",
    "repaired but not handled",
    "acted on",
    "located",
    "correlated only",
    "missed",
)
NONE = "—"
BIN_NS = 600 * 10**9
"""Actions are counted in bins of ten minutes from the origin of the run."""


@dataclass(frozen=True)
class FaultMarks:
    """When an injected fault passed each stage; ns from the origin of the run, None for never."""

    fault: str
    service: str
    injected_ns: int
    correlated_ns: int | None = None
    localized_ns: int | None = None
    repaired_ns: int | None = None
    acted_ns: int | None = None
    """First executed action aimed at its service while it was live."""

    def at(self, stage: Stage) -> int | None:
        """When it passed a stage."""
        found: int | None = getattr(self, f"{stage}_ns")
        return found

    @property
    def credit(self) -> int:
        """0 to 3: stages passed before the first one missed."""
        passed = 0
        for stage in STAGES:
            if self.at(stage) is None:
                break
            passed += 1
        return passed

    @property
    def outcome(self) -> Outcome:
        """The first that fits, best first; exactly one for each fault."""
        if self.credit == len(STAGES):
            return "handled"
        if self.repaired_ns is not None:
            return "repaired but not handled"
        if self.acted_ns is not None:
            return "acted on"
        if self.localized_ns is not None:
            return "located"
        return "missed" if self.correlated_ns is None else "correlated only"


def run_score(credits_sum: int, faults: int) -> Fraction | None:
    """100 × Σ credit / (3 × faults); None where no fault was injected.

    Raises ValueError for a sum that so many faults cannot have.
    """
    if not 0 <= credits_sum <= len(STAGES) * faults:
        raise ValueError(f"{faults} faults cannot have {credits_sum} stages of credit")
    return Fraction(100 * credits_sum, len(STAGES) * faults) if faults else None


def fixed(value: Fraction | int | None, digits: int = 1) -> str:
    """A decimal with so many places, halves away from zero; `—` for None."""
    if value is None:
        return NONE
    scaled = abs(Fraction(value)) * 10**digits
    whole = (2 * scaled.numerator + scaled.denominator) // (2 * scaled.denominator)
    sign = "-" if value < 0 and whole else ""
    text = str(whole).rjust(digits + 1, "0")
    return sign + (f"{text[:-digits]}.{text[-digits:]}" if digits else text)


def median(values: Iterable[int]) -> Fraction | None:
    """The middle value, or the mean of the two in the middle; None of none."""
    ordered = sorted(values)
    if not ordered:
        return None
    half = len(ordered) // 2
    return Fraction(ordered[half] + ordered[-half - 1], 2)


def stage_delays(marks: Sequence[FaultMarks], stage: Stage) -> list[int]:
    """Times from injection to a stage in ns, of the faults that reached it."""
    return [at - m.injected_ns for m in marks if (at := m.at(stage)) is not None]


def rate(part: int, whole: int) -> Fraction | None:
    """part / whole; None of nothing."""
    return Fraction(part, whole) if whole else None


def exact(value: Fraction | None) -> str | None:
    """`7/9`, for machines."""
    return None if value is None else str(value)


def seen_so_far(marks: Sequence[FaultMarks]) -> list[dict[str, Any]]:
    """Share of the faults injected so far that have reached each stage, at every change.

    A stage counts from the moment it was reached, each unconditionally.
    """
    moments = {m.injected_ns for m in marks}
    moments |= {at for m in marks for stage in STAGES if (at := m.at(stage)) is not None}
    rows = []
    for moment in sorted(moments):
        seen = [m for m in marks if m.injected_ns <= moment]
        row: dict[str, Any] = {"t_ns": moment, "injected": len(seen)}
        for stage in STAGES:
            reached = sum(1 for m in seen if (at := m.at(stage)) is not None and at <= moment)
            row[stage] = {"count": reached, "share": exact(rate(reached, len(seen)))}
        rows.append(row)
    return rows


def action_bins(times_ns: Iterable[int], end_ns: int) -> list[dict[str, int]]:
    """Executed actions in each ten minutes from the origin to the end, empty ones too.

    Actions before the origin count in the first bin.
    """
    times = [max(0, t) for t in times_ns]
    last = max([end_ns - 1, *times, 0]) // BIN_NS
    bins = [0] * (last + 1)
    for t in times:
        bins[t // BIN_NS] += 1
    return [{"from_ns": i * BIN_NS, "actions": count} for i, count in enumerate(bins)]


@dataclass(frozen=True)
class Score:
    """All numbers of one run."""

    marks: tuple[FaultMarks, ...]
    actions_ns: tuple[int, ...] = ()
    end_ns: int = 0

    @property
    def credit(self) -> int:
        """Σ credit."""
        return sum(m.credit for m in self.marks)

    @property
    def value(self) -> Fraction | None:
        """0 to 100; None where no fault was injected."""
        return run_score(self.credit, len(self.marks))

    def passed(self, stage: Stage) -> int:
        """Faults that reached a stage, whatever else they reached."""
        return sum(1 for m in self.marks if m.at(stage) is not None)

    def _stage(self, stage: Stage) -> dict[str, Any]:
        found = rate(self.passed(stage), len(self.marks))
        middle = median(stage_delays(self.marks, stage))
        return {
            "faults": self.passed(stage),
            "rate": exact(found),
            "percent": fixed(None if found is None else 100 * found),
            "median_s": fixed(None if middle is None else middle / 10**9),
            "median_ns": exact(middle),
        }

    def _fault(self, m: FaultMarks) -> dict[str, Any]:
        row: dict[str, Any] = {"fault": m.fault, "service": m.service, "injected_ns": m.injected_ns}
        row |= {f"{stage}_ns": m.at(stage) for stage in STAGES}
        return row | {"acted_ns": m.acted_ns, "credit": m.credit, "outcome": m.outcome}

    def data(self) -> dict[str, Any]:
        """Plain data, the same for the same marks: strings for fractions, ints for times."""
        outcomes = [m.outcome for m in self.marks]
        return {
            "faults": len(self.marks),
            "credit": self.credit,
            "score": fixed(self.value),
            "score_exact": exact(self.value),
            "stages": {stage: self._stage(stage) for stage in STAGES},
            "outcomes": {outcome: outcomes.count(outcome) for outcome in OUTCOMES},
            "each": [self._fault(m) for m in self.marks],
            "seen": seen_so_far(self.marks),
            "actions": action_bins(self.actions_ns, self.end_ns),
        }


@dataclass(frozen=True)
class RunResult:
    """What one run of several comes to; None where its judge could not tell."""

    noise: bool
    mitigated: bool | None
    diagnosed: bool | None


def repeated(runs: Sequence[RunResult]) -> dict[str, Any]:
    """Rates over repeated runs, whole and by noise: unknown is counted, and is no success."""
    groups = {"all": list(runs)}
    groups |= {f"noise {word}": [r for r in runs if r.noise is on] for word, on in _NOISE}
    return {name: _rates(group) for name, group in groups.items() if group}


_NOISE = (("off", False), ("on", True))


def _rates(runs: Sequence[RunResult]) -> dict[str, Any]:
    fixed_runs = [r for r in runs if r.mitigated is True]
    right = [r for r in runs if r.diagnosed is True]
    wrong = [r for r in runs if r.diagnosed is False]
    both = [r for r in fixed_runs if r.diagnosed is True]
    pairs = {
        "mitigation": (len(fixed_runs), len(runs)),
        "diagnosis": (len(right), len(runs)),
        "end_to_end": (len(both), len(runs)),
        "mitigation_given_right_diagnosis": (len(both), len(right)),
        "mitigation_given_wrong_diagnosis": (
            sum(1 for r in wrong if r.mitigated is True),
            len(wrong),
        ),
    }
    found: dict[str, Any] = {"runs": len(runs)}
    found["unknown_mitigation"] = sum(1 for r in runs if r.mitigated is None)
    found["unknown_diagnosis"] = sum(1 for r in runs if r.diagnosed is None)
    for name, (part, whole) in pairs.items():
        share = rate(part, whole)
        percent = fixed(None if share is None else 100 * share)
        found[name] = {"of": f"{part}/{whole}", "rate": exact(share), "percent": percent}
    return found
