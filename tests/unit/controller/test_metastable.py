"""Metastable groups: judged right for a retry storm that stays and for one that goes away."""

from __future__ import annotations

import heapq

import pytest

from controller.experiment import GroupEntry
from controller.metastable import Trigger, judge, trigger_of
from controller.records import FaultEnded, SampleRecord

S = 1_000_000_000
GROUP = GroupEntry.model_validate(
    {
        "type": "metastable",
        "faults": ["slow"],
        "overload": {"probe": "requests", "hold": "30s", "grace": "5s"},
    }
)


def sample(at: float, verdict: str) -> SampleRecord:
    return SampleRecord.model_validate(
        {
            "t_ns": int(at * S),
            "wall": "w",
            "probe": "requests",
            "phase": "during",
            "verdict": verdict,
            "duration_ns": 0,
        }
    )


def ended(at: int, reason: str) -> FaultEnded:
    data = {"t_ns": at * S, "wall": "w", "fault": "x", "role": "fault", "node": "a"}
    return FaultEnded.model_validate({**data, "reason": reason})


def retry_storm(retries: int, capacity: int = 12) -> list[SampleRecord]:
    """A server of fixed capacity and clients that give up after 1 s and try again at once.

    From 20 s to 40 s the server has a quarter of its capacity. It works through its queue in
    order and does not know which clients have given up, so that stale tries take its time:
    with many retries the load stays above its capacity for good.
    """
    new_each_s, queue, verdicts = 10, [], []  # (due, born, tries left)
    arrivals: list[tuple[float, int]] = [(n / new_each_s, retries) for n in range(new_each_s * 120)]
    heapq.heapify(arrivals)
    clock, step = 0.0, 0.05
    budget, good, bad = 0.0, 0, 0
    for tick in range(int(110 / step)):
        clock = tick * step
        while arrivals and arrivals[0][0] <= clock:
            born, left = heapq.heappop(arrivals)
            queue.append((born, left))
            if left:
                heapq.heappush(arrivals, (born + 1.0, left - 1))
        budget += step * (capacity / 4 if 20 <= clock < 40 else capacity)
        while budget >= 1 and queue:
            budget -= 1
            born, left = queue.pop(0)
            if clock - born <= 1.0:
                good += 1
                # It was answered in time: its next try does not happen.
                if left and (born + 1.0, left - 1) in arrivals:
                    arrivals.remove((born + 1.0, left - 1))
                    heapq.heapify(arrivals)
            else:
                bad += 1
        budget = min(budget, 1.0) if not queue else budget
        if tick % int(1 / step) == 0 and tick:
            verdicts.append(sample(clock, "pass" if good > bad else "fail"))
            good = bad = 0
    return verdicts


def test_retry_storm_that_stays_is_metastable() -> None:
    found, reasons, refs, data = judge("g", GROUP, Trigger(20 * S, 40 * S), retry_storm(5))
    assert found == "pass", (reasons, data)
    assert [ref.note for ref in refs] == ["trigger", "hold window"]


def test_overload_that_ends_with_its_trigger_is_not_metastable() -> None:
    found, reasons, _, data = judge("g", GROUP, Trigger(20 * S, 25 * S), retry_storm(0, 100))
    assert found == "fail"
    assert "not metastable" in reasons[0], data


def test_overload_that_fades_within_the_hold_window_is_not_metastable() -> None:
    samples = [sample(t, "fail" if 20 <= t < 55 else "pass") for t in range(100)]
    assert judge("g", GROUP, Trigger(20 * S, 40 * S), samples)[0] == "fail"


@pytest.mark.parametrize(
    ("samples", "trigger"),
    [
        ([], Trigger(20 * S, 40 * S)),
        ([sample(30, "fail")], Trigger(20 * S, 40 * S)),
        ([sample(t, "unknown") for t in range(100)], Trigger(20 * S, 40 * S)),
        ([sample(t, "fail") for t in range(100)], "the trigger's end was not verified"),
    ],
)
def test_what_cannot_be_told_is_unknown(
    samples: list[SampleRecord], trigger: Trigger | str
) -> None:
    assert judge("g", GROUP, trigger, samples)[0] == "unknown"


def test_trigger_must_have_been_injected_and_verified_gone() -> None:
    assert trigger_of([1, 2], [ended(4, "reverted"), ended(9, "expired")], 2) == Trigger(1, 9 * S)
    assert isinstance(trigger_of([1], [ended(4, "reverted")], 2), str)
    assert isinstance(trigger_of([1], [ended(4, "unconfirmed")], 1), str)
    assert isinstance(trigger_of([1], [], 1), str)
