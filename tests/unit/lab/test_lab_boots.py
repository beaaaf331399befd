"""Boots that the emulator has spoiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.lab import boots
from controller.lab.console import Console
from controller.lab.errors import NodeFailed

DEAD = "[    2.071188] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n"
PANIC = "[    2.103457] Kernel panic - not syncing: Fatal exception in interrupt\n"


class Machine:
    """Its boots write what they are given to the console; an empty text is a sound boot."""

    def __init__(self, log: Path, *boots: str) -> None:
        self.log, self.boots, self.off = log, list(boots), 0
        self.console = Console(log)

    def switch_on(self) -> None:
        self.console.restart()
        said = self.boots.pop(0)
        with self.log.open("a") as file:
            file.write(said)
        self.console.poll()
        if said:
            raise NodeFailed("kernel panic", said)

    def switch_off(self) -> None:
        self.off += 1

    def try_it(self) -> None:
        boots.tried(self.switch_on, lambda: self.console.stale_breakpoint, self.switch_off, "n")


def test_a_stale_breakpoint_of_the_emulator_is_tried_again_and_told(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "log", DEAD + PANIC, "")
    with pytest.warns(RuntimeWarning, match="node n: .*int3.*booted again"):
        machine.try_it()
    assert machine.off == 1 and not machine.boots and not machine.console.oopses


def test_not_for_ever(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "log", *[DEAD + PANIC] * 4)
    with pytest.warns(RuntimeWarning), pytest.raises(NodeFailed):
        machine.try_it()
    assert (machine.off, len(machine.boots)) == (boots.BOOTS - 1, 1)


@pytest.mark.parametrize("death", ["BUG: unable to handle page fault\n", PANIC])
def test_any_other_death_is_one(tmp_path: Path, death: str) -> None:
    machine = Machine(tmp_path / "log", death, "")
    with pytest.raises(NodeFailed):
        machine.try_it()
    assert machine.off == 0
