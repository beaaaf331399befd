"""What every step is: data with a key, a summary and a few promises."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict


class Status(StrEnum):
    """What the kernel says about a step's object, compared with the journal."""

    PRIOR = "prior"
    """As it was before the step."""
    OURS = "ours"
    """As the step leaves it."""
    GONE = "gone"
    """The object does not exist any more; there is nothing to take back."""
    FOREIGN = "foreign"
    """Neither: somebody else changed it, and it is not ours to touch."""


class StepBase(BaseModel):
    """What all steps share. Subclasses set the class variables."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    ephemeral: ClassVar[bool] = False
    """The kernel drops it with the agent's process (BPF links, children)."""
    survives_boot: ClassVar[bool] = False
    """It is on a disk, so that a reboot does not take it back."""
    composes: ClassVar[bool] = False
    """Several faults may hold one on the same key; the backend composes them."""
    observes: ClassVar[bool] = False
    """It only watches; nothing that a workload could notice is changed."""

    patience_s: ClassVar[int] = 0
    """How many seconds more than most its change or its way back may take (a unit that starts)."""

    v: Literal[1] = 1

    def key(self) -> str:
        """The kernel object that the step changes; equal keys of two faults meet."""
        raise NotImplementedError

    def summary(self) -> str:
        """One line for a plan: the shell command that would do the same, where there is one."""
        raise NotImplementedError

    def overlaps(self, other: StepBase) -> bool:
        """Whether two steps on one key would touch the same part of it."""
        return True
