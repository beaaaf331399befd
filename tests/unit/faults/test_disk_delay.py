"""disk-delay as data: three classes, whole milliseconds, no jitter that lies."""

from __future__ import annotations

import pytest
from disk_kit import OLD, PART, PLAIN, evidence, examples, ops, plan, segment
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.backends.disk_checks import ReadCheckBackend
from nodeagent.faults import kind_named
from nodeagent.model.errors import BackendError, InvalidSpec, Refused
from nodeagent.model.evidence import IoRecord
from nodeagent.model.steps.block import ReadCheck


def test_each_class_has_its_own_time() -> None:
    made = plan("disk-delay", {"read": "20ms", "write": "1s", "flush": "1m"})
    assert segment(made) == {
        "target": "delay",
        "read_ms": 20,
        "write_ms": 1000,
        "flush_ms": 60_000,
    }
    assert ops(made) == ["bio_watch", "dm_overlay", "read_check"]
    assert made.steps[2].model_dump()["at_least_ms"] == 20
    assert made.steps[0].model_dump()["emit"] == ("failed", "reads", "writes")


def test_a_delay_that_is_not_given_is_none() -> None:
    made = plan("disk-delay", {"flush": "5ms"}, facts=OLD)
    assert segment(made) == {"target": "delay", "read_ms": 0, "write_ms": 0, "flush_ms": 5}
    check = made.steps[2].model_dump()
    assert (check["fails"], check["at_least_ms"]) == (False, 0)


@given(st.integers(1, 600_000))
def test_milliseconds_are_kept_exactly(late: int) -> None:
    assert segment(plan("disk-delay", {"write": f"{late}ms"}))["write_ms"] == late


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "nothing would be late"),
        ({"read": "0s"}, "nothing would be late"),
        ({"read": "100us"}, "whole milliseconds"),
        ({"read": "11m"}, "at most 10m"),
        ({"read": "20"}, "no unit"),
        ({"read": "20ms", "jitter": "5ms"}, "jitter"),
    ],
)
def test_bad_options_are_refused(spec: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        plan("disk-delay", spec)


def test_a_plain_disk_and_flushes_of_a_part_are_refused() -> None:
    with pytest.raises(Refused, match="volume prepare"):
        plan("disk-delay", {"read": "1ms"}, layers=PLAIN)
    with pytest.raises(Refused, match="delay flushes of all of it"):
        plan("disk-delay", {"flush": "1ms"}, layers=PART)
    assert plan("disk-delay", {"read": "1ms"}, layers=PART).mechanism == "dm-delay"


def test_hits_are_the_bios_of_the_late_directions() -> None:
    counters = {"reads_ok": 5, "writes_ok": 7, "reads_failed": 1}
    took = {"read": [5, 20_400_000, 31_000_000]}
    found = evidence("disk-delay", {"read": "20ms"}, counters=counters, took=took)
    assert (found.counted, found.hits) == (True, 5)
    assert "reads took 20.4 to 31.0 ms (the first 5 seen)" in found.statements
    both = evidence("disk-delay", {"read": "1ms", "write": "1ms"}, counters=counters)
    assert both.hits == 12


def test_flushes_alone_are_not_counted() -> None:
    found = evidence("disk-delay", {"flush": "20ms"}, counters={"reads_ok": 5, "writes_ok": 7})
    assert (found.counted, found.hits, found.biting) == (False, 0, False)


def test_only_a_late_direction_proves_that_it_bites() -> None:
    kind = kind_named("disk-delay")
    spec = kind.spec.model_validate({"write": "1ms"})
    read = IoRecord(boottime_ns=1, device="253:0", sector=0, sectors=8, op="read", status=0)
    assert not kind.hit(spec, read)
    assert kind.hit(spec, read.model_copy(update={"op": "write"}))
    assert not kind.hit(spec, read.model_copy(update={"op": "write", "status": 5}))


def test_a_read_that_is_not_late_refuses_the_fault() -> None:
    step = ReadCheck(
        major=1, minor=2, name="data", sector=0, sectors=1, fails=False, at_least_ms=500
    )
    assert ReadCheckBackend._late(step, 499.0) == {"took_ms": 499.0}  # a tick early
    with pytest.raises(BackendError, match=r"not slow.*took 0\.1 ms, 500 ms"):
        ReadCheckBackend._late(step, 0.05001)


def test_hung_tasks_are_collateral_of_long_delays_only() -> None:
    assert not any("hung" in line for line in plan("disk-delay", {"read": "1s"}).collateral)
    assert any("hung" in line for line in plan("disk-delay", {"flush": "2m"}).collateral)


def test_examples_plan() -> None:
    for data in examples("disk-delay"):
        assert plan("disk-delay", **data)
