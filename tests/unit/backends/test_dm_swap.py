"""Getting out of a swap that was cut short, beside others who suspend devices as well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from dm_kit import DEV, INFO

from nodeagent.backends import dm_swap
from nodeagent.backends.dm_swap import recover
from nodeagent.backends.dm_types import DmInfo
from nodeagent.encode.dm import Table, parse_table
from nodeagent.model.errors import ForeignState

OURS, OTHER = parse_table(("0 8 error",)), parse_table(("0 8 linear 8:0 0",))
SUSPENDED = replace(INFO, suspended=True)


class Control:
    """A device whose owner resumes it after so many looks."""

    def __init__(self, resumed_after: int, inactive: Table | None = None) -> None:
        self.looks, self.resumed_after, self.inactive = 0, resumed_after, inactive
        self.calls: list[str] = []

    def info(self, dev: Any) -> DmInfo:
        self.looks += 1
        runs = self.looks > self.resumed_after or "resume" in self.calls
        state = INFO if runs else SUSPENDED
        return replace(state, inactive_present=self.inactive is not None)

    def table(self, dev: Any, inactive: bool = False) -> Table | None:
        return self.inactive if inactive else OTHER

    def clear(self, dev: Any) -> None:
        self.calls.append("clear")
        self.inactive = None

    def resume(self, dev: Any) -> None:
        self.calls.append("resume")


def run(control: Control) -> bool:
    made: Any = control
    return recover(made, DEV, (OURS,))


def test_a_device_that_somebody_else_has_suspended_for_a_moment_is_left_to_them() -> None:
    """LVM does it while it takes a snapshot: to resume it would let writes in between."""
    control = Control(resumed_after=5)
    assert not run(control)
    assert control.calls == []


def test_one_that_nobody_resumes_is_what_our_swap_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dm_swap, "OTHERS_S", 0.1)
    control = Control(resumed_after=10**6)
    assert run(control)
    assert control.calls == ["resume"]


def test_with_our_table_loaded_it_is_ours_at_once() -> None:
    control = Control(resumed_after=10**6, inactive=OURS)
    assert run(control)
    assert control.calls == ["clear", "resume"]
    assert control.looks < 5


def test_with_anothers_table_loaded_nothing_is_touched() -> None:
    control = Control(resumed_after=10**6, inactive=OTHER)
    with pytest.raises(ForeignState):
        run(control)
    assert control.calls == []
