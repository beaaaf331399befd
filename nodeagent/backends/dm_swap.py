"""Swapping the table of a live device, and getting out of a half-done swap.

One resume ioctl does it: do_resume() (drivers/md/dm-ioctl.c) suspends, swaps and
resumes by itself. If the swap inside fails, the device comes back suspended and
its inactive table is gone, so every way out of here looks and resumes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import Enum

from nodeagent.backends.dm_nodes import size_sectors
from nodeagent.backends.dmctl import DmControl, DmInfo
from nodeagent.encode.dm import DevNum, Table, equal
from nodeagent.model.errors import BackendError, ForeignState, Refused

OTHERS_S = 1.0
_LOG = "the kernel log has the reason: dmesg | grep device-mapper"


class Point(Enum):
    """Where swap() calls its hook, in this order."""

    CHECKED = "checked"  # nothing changed yet
    LOADED = "loaded"  # new table in the inactive slot
    VERIFIED = "verified"  # read back, the live table checked again
    RESUMED = "resumed"  # new table live
    DONE = "done"  # read back as live


Hook = Callable[[Point], None]


def _no_hook(_: Point) -> None:
    return


def swap(
    control: DmControl,
    dev: DevNum,
    new: Table,
    expect: Table,
    *,
    uuid: str | None = None,
    hook: Hook = _no_hook,
) -> bool:
    """Replace the live table `expect` by `new` under running I/O.

    True: swapped. False: `new` was live already. uuid: if given, the device's
    own must be this. After any error, an exception from the hook included, the
    inactive slot is empty and the device runs. Raises ForeignState when the
    device is not as expected, BackendError when the kernel says no, Refused when
    it is suspended or sizes differ.
    """
    info = _ready(control, dev, new, uuid)
    if _is_live(control, dev, new):
        if info.inactive_present:
            control.clear(dev)  # ours: _ready() has compared it
        return False
    _check_live(control, dev, new, expect)
    hook(Point.CHECKED)
    done = False
    try:
        _load(control, dev, new, info.read_only)
        hook(Point.LOADED)
        _check_inactive(control, dev, new)
        _check_live(control, dev, new, expect)
        hook(Point.VERIFIED)
        _resume(control, dev)
        hook(Point.RESUMED)
        _check_done(control, dev, new)
        done = True
    finally:
        if not done:
            _unwind(control, dev, (new,))
    hook(Point.DONE)
    return True


def recover(control: DmControl, dev: DevNum, ours: Sequence[Table]) -> bool:
    """End a swap that died half-way: drop its inactive table, resume the device.

    ours: tables that the swap may have loaded. True: something had to be done.
    Which table is live then is the caller's to compare. Raises ForeignState, and
    touches nothing, when the inactive table is none of ours. A device that stays
    suspended without an inactive table is resumed: call this only for devices
    with a swap of ours on record. OSError ENXIO: the device is gone.
    """
    info = _once_others_are_done(control, dev)
    if not (info.inactive_present or info.suspended):
        return False
    _unwind(control, dev, ours)
    return True


def _once_others_are_done(control: DmControl, dev: DevNum) -> DmInfo:
    """Nothing tells who has suspended a device: others do it for a moment (LVM, for a snapshot)."""
    end = time.monotonic() + OTHERS_S
    while (info := control.info(dev)).suspended and not info.inactive_present:
        if time.monotonic() > end:
            break
        time.sleep(0.02)
    return info


def _ready(control: DmControl, dev: DevNum, new: Table, uuid: str | None) -> DmInfo:
    info = control.info(dev)
    if uuid is not None and info.uuid != uuid:
        raise _foreign(dev, f"its uuid is {info.uuid!r}, not {uuid!r}")
    if info.suspended:
        raise Refused(
            f"device-mapper device {dev} ({info.name}) is suspended",
            "somebody is changing it, or left it so",
            f"when nothing works on it: dmsetup resume {info.name}",
        )
    if info.inactive_present:
        inactive = control.table(dev, inactive=True)
        # Our own from an earlier life may be loaded over.
        if inactive is not None and not equal(inactive, new):
            raise _foreign(dev, "it has an inactive table that faultctl did not load")
    return info


def _is_live(control: DmControl, dev: DevNum, table: Table) -> bool:
    live = control.table(dev)
    return live is not None and equal(live, table)


def _check_live(control: DmControl, dev: DevNum, new: Table, expect: Table) -> None:
    if not _is_live(control, dev, expect):
        raise _foreign(dev, "its live table is not the one that was expected")
    size = size_sectors(dev)
    if size != new.length:
        raise Refused(
            f"will not resize device-mapper device {dev}",
            f"it has {size} sectors, the new table {new.length}",
            "plan again",
        )


def _load(control: DmControl, dev: DevNum, new: Table, readonly: bool) -> None:
    try:
        control.load(dev, new, readonly)
    except OSError as failed:
        raise BackendError(f"table refused for device {dev}", str(failed), _LOG) from failed


def _check_inactive(control: DmControl, dev: DevNum, new: Table) -> None:
    inactive = control.table(dev, inactive=True)
    if inactive is None or not equal(inactive, new):
        raise _foreign(dev, "somebody replaced the inactive table that faultctl had loaded")


def _resume(control: DmControl, dev: DevNum) -> None:
    try:
        control.resume(dev, skip_lockfs=True, noflush=True)
    except OSError as failed:
        raise BackendError(f"table swap failed on device {dev}", str(failed), _LOG) from failed


def _check_done(control: DmControl, dev: DevNum, new: Table) -> None:
    info = control.info(dev)
    if info.suspended or not _is_live(control, dev, new):
        raise BackendError(
            f"table swap failed on device {dev}",
            "suspended after resume" if info.suspended else "another table is live",
            _LOG,
        )


def _unwind(control: DmControl, dev: DevNum, ours: Sequence[Table]) -> None:
    """Empty the inactive slot if it is ours, and only then resume: a resume makes it live."""
    inactive = control.table(dev, inactive=True)
    if inactive is not None:
        if not any(equal(inactive, table) for table in ours):
            raise _foreign(dev, "its inactive table is not one that faultctl loaded")
        control.clear(dev)
    if control.info(dev).suspended:
        control.resume(dev)


def _foreign(dev: DevNum, why: str) -> ForeignState:
    return ForeignState(
        f"device-mapper device {dev} was changed by somebody else",
        why,
        "look at dmsetup table and dmsetup table --inactive; nothing was overwritten",
    )
