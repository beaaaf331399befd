"""A disk target bound to this node: its stack, its file system's space, what is at stake."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from nodeagent.model.binding import BlockBinding, Guard, SpaceMap
from nodeagent.model.process import CgroupScope


class DiskBinding(BaseModel):
    """All that a planner of a disk fault may look at."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    block: BlockBinding
    space: SpaceMap | None = Field(
        default=None, description="None if no file system was asked: none there, or not needed"
    )
    guards: tuple[Guard, ...] = ()
    only: CgroupScope | None = Field(
        default=None, description="whose I/O is meant; None: everybody's"
    )
