"""Bios that a program did not see are said, and only those of a slot's own time."""

from __future__ import annotations

from typing import Any

import map_kit
import pytest
from test_bio_steps import STEP

from nodeagent.backends import bio_slots
from nodeagent.backends.bio_slots import BioSlots, DiskRanges
from nodeagent.encode.sector_index import build_index
from nodeagent.faults._disk_evidence import evidence
from nodeagent.model.kind import Measured
from nodeagent.model.ranges import Range

DISK = DiskRanges(8 << 20, (), 5)
INDEX = build_index((Range(start=8, length=8),))


class Table(map_kit.Table):
    """One that an index is written to as well."""

    fd = 1000

    def write_all(self, data: bytes) -> None:
        pass


class Loaded:
    def map(self, name: str) -> Table:
        return Table()


def test_what_was_missed_before_a_slot_was_taken_is_not_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bio_slots, "RingBuffer", lambda table: None)
    monkeypatch.setattr(bio_slots, "create_array", lambda *size: Table())
    monkeypatch.setattr(bio_slots.os, "close", lambda fd: None)
    missed, loaded = [4], Loaded()
    made: Any = loaded
    slots = BioSlots(made, lambda: missed[0])
    slots.put(0, DISK, INDEX)
    assert slots.stats(0).missed == 0
    missed[0] = 6
    slots.put(1, DISK, INDEX)
    slots.put(0, DISK, INDEX)  # other sectors: its counters go on
    assert (slots.stats(0).missed, slots.stats(1).missed) == (2, 0)
    slots.drop(0)
    slots.put(0, DISK, INDEX)
    assert slots.stats(0).missed == 0


@pytest.mark.parametrize("missed", [0, 3])
def test_the_evidence_says_what_was_missed(missed: int) -> None:
    data = {"counters": {"reads_failed": 2}, "missed": missed}
    found = evidence([Measured(STEP, data)])
    said = [line for line in found.statements if "3 bios on this node passed unseen" in line]
    assert bool(said) is bool(missed)
    assert found.hits == 2
