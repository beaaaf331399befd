"""Whether an overload goes on by itself after its trigger is really gone; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from controller.experiment import GroupEntry, Overload
from controller.experiment_plan import ns
from controller.records import FaultEnded, SampleRecord, SampleRef, Verdict, VerdictRecord

ORACLE = "metastable"
VERIFIED = ("reverted", "remedied", "expired", "done")
"""Ends that the node has read back; nothing of the trigger is left."""


@dataclass(frozen=True)
class Trigger:
    """When a group's faults began and when the last of them was verified to be gone."""

    armed_ns: int
    gone_ns: int


def trigger_of(armed: Sequence[int], ended: Sequence[FaultEnded], planned: int) -> Trigger | str:
    """The trigger of a group, or why it cannot be judged."""
    if len(armed) < planned:
        return f"only {len(armed)} of the trigger's {planned} faults were injected"
    bad = [record for record in ended if record.reason not in VERIFIED]
    if len(ended) < planned or bad:
        return "the trigger's end was not verified on its node"
    return Trigger(min(armed), max(record.t_ns for record in ended))


def judge(
    name: str, group: GroupEntry, trigger: Trigger | str, samples: Iterable[SampleRecord]
) -> tuple[Verdict, tuple[str, ...], tuple[SampleRef, ...], dict[str, str]]:
    """pass: metastable; fail: not metastable; unknown: cannot be told, and why."""
    overload = group.overload
    if overload is None:
        raise ValueError(f"{name} is not a metastable group")
    if isinstance(trigger, str):
        return "unknown", (trigger,), (), {}
    series = [s for s in samples if s.probe == overload.probe]
    during = _failing(series, trigger.armed_ns, trigger.gone_ns)
    start = trigger.gone_ns + ns(overload.grace)
    end = start + ns(overload.hold)
    hold = _failing(series, start, end)
    refs = (
        SampleRef(
            probe=overload.probe, from_ns=trigger.armed_ns, to_ns=trigger.gone_ns, note="trigger"
        ),
        SampleRef(probe=overload.probe, from_ns=start, to_ns=end, note="hold window"),
    )
    if hold is None or during is None:
        where = "while the trigger was on" if during is None else "in the hold window"
        return "unknown", (f"{overload.probe} has no sample {where}",), refs, {}
    data = {"during": _percent(during), "hold": _percent(hold)}
    if not during:
        return "fail", ("not metastable: the trigger itself caused no overload",), refs, data
    if hold * 100 < overload.share:
        text = f"not metastable: {_percent(hold)} of the samples failed after the trigger was gone"
        return "fail", (text,), refs, data
    text = f"metastable: {_percent(hold)} of the samples failed on after the trigger was gone"
    return "pass", (text,), refs, data


def _failing(series: Sequence[SampleRecord], start: int, end: int) -> Decimal | None:
    """The share of measured samples in [start, end) that failed; None without any."""
    inside = [s for s in series if start <= s.t_ns < end and s.verdict != "unknown"]
    if not inside:
        return None
    return Decimal(sum(s.verdict == "fail" for s in inside)) / len(inside)


def _percent(share: Decimal) -> str:
    return f"{(share * 100).quantize(Decimal('0.1'))}%"


def verdict_record(
    name: str,
    group: GroupEntry,
    trigger: Trigger | str,
    samples: Iterable[SampleRecord],
    stamp: tuple[int, str],
) -> VerdictRecord:
    """The verdict on a group for the record."""
    verdict, reasons, refs, data = judge(name, group, trigger, samples)
    overload: Overload | None = group.overload
    return VerdictRecord(
        t_ns=stamp[0],
        wall=stamp[1],
        subject=name,
        oracle=ORACLE,
        verdict=verdict,
        reasons=reasons,
        deciding=refs,
        threshold=f"{overload.share}% failing" if overload else "",
        data=dict(data),
    )
