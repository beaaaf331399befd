"""disk-corrupt as data: what changes, what a kernel lacks, what is known to be hit."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from disk_kit import OLD, PLAIN, STOCK, evidence, examples, ops, plan, segment
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.backends.disk_checks import ReadCheckBackend
from nodeagent.model.errors import BackendError, InvalidSpec, Refused
from nodeagent.model.steps.block import ReadCheck
from nodeagent.model.units import format_percent

ACK: dict[str, Any] = {"acknowledge": ["data-loss"]}


def made_segment(**spec: object) -> dict[str, Any]:
    found = segment(plan("disk-corrupt", spec, **ACK))
    assert (found.pop("up_s"), found.pop("down_s"), found.pop("target")) == (0, 1 << 30, "flakey")
    return found


def test_both_ways_to_corrupt() -> None:
    assert made_segment() == {"random_read": 1_000_000_000}
    assert made_segment(rate="2.5%", direction="write") == {"random_write": 25_000_000}
    assert made_segment(byte=100, value=0) == {
        "corrupt": {"nth": 100, "direction": "r", "value": 0}
    }
    written = made_segment(byte=1, value=255, direction="write")
    assert written == {"corrupt": {"nth": 1, "direction": "w", "value": 255}}


@given(st.integers(1, 1_000_000_000))
def test_rates_are_kept_exactly(chance: int) -> None:
    rate = format_percent(Decimal(chance) / 10_000_000)
    assert made_segment(rate=rate) == {"random_read": chance}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"byte": 5}, "go together"),
        ({"value": 5}, "go together"),
        ({"byte": 5, "value": 5, "rate": "1%"}, "excludes rate"),
        ({"byte": 0, "value": 5}, "byte"),
        ({"byte": 65_537, "value": 5}, "byte"),
        ({"byte": 5, "value": 256}, "value"),
        ({"rate": "0%"}, "more than 0%"),
        ({"rate": "0.00000001%"}, "multiple"),
        ({"rate": "101%"}, "between"),
        ({"rate": "5"}, "write 5%"),
        ({"direction": "both"}, "direction"),
    ],
)
def test_bad_options_are_refused(spec: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        plan("disk-corrupt", spec, **ACK)


@pytest.mark.parametrize("direction", ["read", "write"])
def test_both_directions_have_to_be_acknowledged(direction: str) -> None:
    with pytest.raises(Refused, match="guard rail") as caught:
        plan("disk-corrupt", {"direction": direction})
    assert "--i-know data-loss" in caught.value.hint


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "no random_read_corrupt"),
        ({"direction": "write"}, "no random_write_corrupt"),
        ({"byte": 1, "value": 1}, "changes nothing"),
        ({"byte": 1, "value": 1, "direction": "write"}, "writer's own memory"),
    ],
)
def test_what_an_old_flakey_lacks_is_refused_by_name(spec: dict[str, object], words: str) -> None:
    with pytest.raises(Refused, match=words):
        plan("disk-corrupt", spec, facts=OLD, **ACK)


def test_a_kernel_that_accepts_random_reads_and_changes_nothing_is_refused() -> None:
    kept = tuple(f for f in STOCK.dm_features if f != "flakey:corrupts_reads")
    facts = STOCK.model_copy(update={"dm_features": kept})
    with pytest.raises(Refused, match="changes nothing"):
        plan("disk-corrupt", facts=facts, **ACK)
    assert plan("disk-corrupt", {"direction": "write"}, facts=facts, **ACK)


def test_what_could_not_be_tried_is_refused() -> None:
    facts = OLD.model_copy(update={"dm_features": ("flakey:random_read_corrupt",)})
    with pytest.raises(Refused, match="could not be tried"):
        plan("disk-corrupt", facts=facts, **ACK)


def test_a_plain_disk_is_refused() -> None:
    with pytest.raises(Refused, match="volume prepare"):
        plan("disk-corrupt", layers=PLAIN, **ACK)


def test_the_check_reads_what_can_be_known() -> None:
    def check(**spec: object) -> dict[str, Any]:
        made = plan("disk-corrupt", spec, **ACK)
        assert ops(made) == ["bio_watch", "dm_overlay", "read_check"]
        return made.steps[2].model_dump(exclude_defaults=True)

    deep = check(byte=4097, value=7)
    assert (deep["byte"], deep["sectors"]) == ((4097, 7), 9)
    assert check()["differs"] is True
    for unknown in (
        check(rate="1%"),
        check(direction="write"),
        check(direction="write", rate="1%"),
    ):
        assert "differs" not in unknown
        assert "byte" not in unknown


def test_a_check_that_sees_nothing_wrong_refuses_the_fault() -> None:
    step = ReadCheck(major=1, minor=2, name="data", sector=0, sectors=1, fails=False, byte=(2, 9))
    assert ReadCheckBackend._byte(step, 0, b"\0\x09") == {"byte": 2, "value": 9}
    for code, data in [(0, b"\0\0"), (0, b"\0"), (5, b"")]:
        with pytest.raises(BackendError, match="not corrupted"):
            ReadCheckBackend._byte(step, code, data)
    assert ReadCheckBackend._differs(step, 2)
    with pytest.raises(BackendError, match="all the same"):
        ReadCheckBackend._differs(step, 1)


@pytest.mark.parametrize(
    ("spec", "counted", "hits"),
    [
        ({}, True, 8),
        ({"direction": "write"}, True, 3),
        ({"byte": 512, "value": 1}, True, 8),
        ({"byte": 513, "value": 1}, False, 0),
        ({"rate": "50%"}, False, 0),
        ({"rate": "100%"}, True, 8),
    ],
)
def test_hits_are_counted_only_where_every_bio_is_hit(
    spec: dict[str, object], counted: bool, hits: int
) -> None:
    found = evidence("disk-corrupt", spec, counters={"reads_ok": 8, "writes_ok": 3})
    assert (found.counted, found.hits, found.biting) == (counted, hits, counted)
    assert found.counters == {"reads_ok": 8, "writes_ok": 3}


def test_the_statements_name_the_share_and_what_follows() -> None:
    found = evidence("disk-corrupt", {"rate": "2.50%"}, counters={"reads_ok": 8})
    assert found.statements[0].startswith("about 2.5% of the reads")
    assert "unmount" in found.statements[-1]


def test_examples_plan() -> None:
    for data in examples("disk-corrupt"):
        assert plan("disk-corrupt", **data)
