"""disk-drop-writes as data: asks first, counts what it lost, says what must follow."""

from __future__ import annotations

import pytest
from disk_kit import OLD, PLAIN, evidence, examples, ops, plan, segment

from nodeagent.faults import kind_named
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.evidence import IoRecord

ACK = ["data-loss"]


def test_it_asks_for_an_acknowledgement() -> None:
    with pytest.raises(Refused, match="every write from now on is lost") as caught:
        plan("disk-drop-writes")
    assert "--i-know data-loss" in caught.value.hint
    assert plan("disk-drop-writes", acknowledge=ACK).guards == ("data-loss",)


def test_the_plan_on_any_kernel() -> None:
    made = plan("disk-drop-writes", acknowledge=ACK, facts=OLD)
    assert segment(made) == {"target": "flakey", "up_s": 0, "down_s": 1 << 30, "drop_writes": True}
    assert ops(made) == ["bio_watch", "dm_overlay", "read_check"]
    assert made.steps[2].model_dump()["fails"] is False
    assert any("fsck" in line for line in made.collateral)


def test_a_flakey_without_drop_writes_is_refused_by_name() -> None:
    facts = OLD.model_copy(update={"dm_targets": {**OLD.dm_targets, "flakey": (1, 1, 0)}})
    with pytest.raises(Refused, match=r"1\.2\.0 is needed for drop_writes"):
        plan("disk-drop-writes", facts=facts, acknowledge=ACK)


def test_a_plain_disk_is_refused() -> None:
    with pytest.raises(Refused, match="volume prepare"):
        plan("disk-drop-writes", layers=PLAIN, acknowledge=ACK)


def test_there_are_no_options() -> None:
    with pytest.raises(InvalidSpec):
        plan("disk-drop-writes", {"rate": "5%"}, acknowledge=ACK)


def test_hits_are_acknowledged_writes() -> None:
    found = evidence("disk-drop-writes", {}, counters={"reads_ok": 5, "writes_ok": 7})
    assert (found.counted, found.hits) == (True, 7)
    assert any("unmount the file system and run fsck" in line for line in found.statements)


def test_a_write_that_ended_well_proves_that_it_bites() -> None:
    kind = kind_named("disk-drop-writes")
    spec = kind.spec()
    write = IoRecord(boottime_ns=1, device="253:0", sector=0, sectors=8, op="write", status=0)
    assert kind.hit(spec, write)
    for other in ({"op": "read"}, {"op": "discard"}, {"status": 5}):
        assert not kind.hit(spec, write.model_copy(update=other))


def test_examples_plan() -> None:
    for data in examples("disk-drop-writes"):
        assert plan("disk-drop-writes", **data)
