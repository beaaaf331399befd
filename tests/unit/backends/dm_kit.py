"""A device-mapper device as the kernel describes it."""

from __future__ import annotations

from nodeagent.backends.dm_types import DmInfo
from nodeagent.encode.dm import DevNum

DEV = DevNum(253, 0)
INFO = DmInfo(
    dev=DEV,
    name="vg-data",
    uuid="LVM-abc",
    open_count=1,
    event_nr=0,
    target_count=1,
    suspended=False,
    read_only=False,
    active_present=True,
    inactive_present=False,
    deferred_remove=False,
)
