"""What the overlay's backend makes of a device whose name or owner has changed meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from dm_kit import DEV, INFO

from nodeagent.backends import devmapper
from nodeagent.backends.devmapper import DmOverlayBackend
from nodeagent.backends.dm_types import DmInfo
from nodeagent.encode.dm import Table, format_table, parse_table
from nodeagent.encode.dm_segment import compose
from nodeagent.model.ranges import Range
from nodeagent.model.steps import Status
from nodeagent.model.steps.block import DmOverlay, ErrorSegment

BASE = parse_table(("0 1000 linear 8:0 2048",))
OTHER = parse_table(("0 5000 linear 8:16 0",))
STEP = DmOverlay(
    major=253,
    minor=0,
    name="vg-data",
    size=1000,
    ranges=(Range(start=10, length=8),),
    segment=ErrorSegment(),
)
BAD = compose(BASE, [STEP], lambda name: DEV)


class Control:
    """The one device that there is."""

    info: DmInfo | None = INFO
    live: Table = BAD

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *_: object) -> None: ...

    def find(self, who: Any) -> DmInfo | None:
        return self.info

    def table(self, who: Any, inactive: bool = False) -> Table | None:
        return None if inactive else self.live


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Control:
    made = Control()
    monkeypatch.setattr(devmapper, "DmControl", lambda: made)
    return made


def status(uuid: str) -> Status:
    prior = {"base": format_table(BASE).splitlines(), "name": "vg-data", "uuid": uuid}
    return DmOverlayBackend().status(STEP, prior, ())


@pytest.mark.parametrize("uuid", ["LVM-abc", ""])
@pytest.mark.parametrize("name", ["vg-data", "vg-renamed"])
def test_bad_sectors_are_ours_whatever_the_device_is_called_now(
    control: Control, uuid: str, name: str
) -> None:
    """After lvrename they would stay for good, and be called reverted."""
    control.info = replace(INFO, name=name, uuid=uuid)
    assert status(uuid) is Status.OURS


def test_a_renamed_device_that_somebody_else_has_changed_is_foreign(control: Control) -> None:
    control.info, control.live = replace(INFO, name="vg-renamed"), OTHER
    assert status("LVM-abc") is Status.FOREIGN


def test_a_renamed_device_that_somebody_has_put_right_is_as_before(control: Control) -> None:
    control.info, control.live = replace(INFO, name="vg-renamed"), BASE
    assert status("LVM-abc") is Status.PRIOR


@pytest.mark.parametrize("uuid", ["LVM-abc", ""])
def test_another_device_with_its_number_is_none_of_it(control: Control, uuid: str) -> None:
    control.info = replace(INFO, name="other", uuid="LVM-other" if uuid else "")
    control.live = OTHER
    assert status(uuid) is Status.GONE
    control.info = None
    assert status(uuid) is Status.GONE
