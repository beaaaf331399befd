"""The device-mapper control device: one method an ioctl, nothing decided here.

Errors are OSError with the command and the device in the message; ENXIO means
that there is no such device. Source: drivers/md/dm-ioctl.c, Linux 6.12.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time

from nodeagent.backends.dm_nodes import holders, open_control
from nodeagent.backends.dm_types import (
    ByName,
    ByUuid,
    DeviceBusy,
    DmInfo,
    StatusLine,
    Version,
    Who,
    info_from,
    request_for,
)
from nodeagent.crashpoint import crashpoint
from nodeagent.encode import dm_ioctl
from nodeagent.encode.dm import DevNum, Segment, Table, format_table
from nodeagent.encode.dm_ioctl import UDEV_PRIVATE, Cmd, DmName, Flag, Header, Request

__all__ = ["ByName", "ByUuid", "DeviceBusy", "DmControl", "DmInfo", "StatusLine", "Who"]

_FIRST_BUFFER = 16 * 1024
_LAST_BUFFER = 256 * 1024 * 1024
_CHANGING = frozenset(
    {
        Cmd.DEV_CREATE,
        Cmd.DEV_REMOVE,
        Cmd.DEV_SUSPEND,
        Cmd.TABLE_LOAD,
        Cmd.TABLE_CLEAR,
        Cmd.TARGET_MSG,
    }
)
_PROBES = {
    "error_reads": ("1", "error_reads"),
    "random_read_corrupt": ("2", "random_read_corrupt", "1"),
    "random_write_corrupt": ("2", "random_write_corrupt", "1"),
}


class DmControl:
    """An open /dev/mapper/control. Raises Refused when device-mapper is missing."""

    def __init__(self) -> None:
        self._fd = open_control()
        self._flakey: frozenset[str] | None = None

    def close(self) -> None:
        """Close the control device; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> DmControl:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def version(self) -> Version:
        """Version of the kernel's ioctl interface."""
        return self._ask(Request(Cmd.VERSION))[0].version

    def targets(self) -> dict[str, Version]:
        """Target types that are loaded now; modules not yet loaded are missing."""
        header, buffer = self._ask(Request(Cmd.LIST_VERSIONS), _FIRST_BUFFER)
        return dm_ioctl.unpack_versions(buffer, header)

    def target_version(self, target: str) -> Version | None:
        """Version of one target type; the kernel loads its module. None: has none."""
        try:
            header, buffer = self._ask(Request(Cmd.GET_TARGET_VERSION, name=target), _FIRST_BUFFER)
        except OSError as failed:
            if failed.errno == errno.EINVAL:
                return None
            raise
        return dm_ioctl.unpack_versions(buffer, header).get(target)

    def flakey_features(self) -> frozenset[str]:
        """Which of error_reads, random_read_corrupt, random_write_corrupt exist here.

        Their arrival did not change dm-flakey's version, so tables with a device
        that does not exist are offered: an unknown word fails with EINVAL, a known
        one later, in the device look-up. Leaves a line in the kernel log for each.
        """
        if self._flakey is None:
            name = f"faultctl-probe-{os.getpid()}"
            dev = self.create(name, f"FAULTCTL-{name}")
            try:
                self._flakey = frozenset(w for w, args in _PROBES.items() if self._knows(dev, args))
            finally:
                self.remove(dev)
        return self._flakey

    def _knows(self, dev: DevNum, features: tuple[str, ...]) -> bool:
        args = ("/dev/faultctl-no-such-device", "0", "0", "1", *features)
        try:
            self.load(dev, Table((Segment(0, 8, "flakey", args),)))
        except OSError as failed:
            return failed.errno != errno.EINVAL
        return True

    def list_devices(self) -> list[DmName]:
        """All device-mapper devices."""
        # With this flag the kernel adds each uuid to the list (list_devices()).
        request = Request(Cmd.LIST_DEVICES, flags=Flag.UUID)
        header, buffer = self._ask(request, _FIRST_BUFFER)
        return dm_ioctl.unpack_names(buffer, header, self.version())

    def info(self, who: Who) -> DmInfo:
        """State of a device; OSError ENXIO when there is none."""
        return info_from(self._ask(request_for(Cmd.DEV_STATUS, who))[0])

    def find(self, who: Who) -> DmInfo | None:
        """State of a device, None when there is none."""
        try:
            return self.info(who)
        except OSError as failed:
            if failed.errno == errno.ENXIO:
                return None
            raise

    def table(self, who: Who, inactive: bool = False) -> Table | None:
        """The live (or inactive) table as the kernel prints it, None for an empty slot.

        A crypt segment's text holds its key: do not log it.
        """
        flags = Flag.STATUS_TABLE | Flag.SECURE_DATA
        lines = self._status(who, flags | (Flag.QUERY_INACTIVE_TABLE if inactive else Flag(0)))
        if not lines:
            return None
        return Table(
            tuple(
                Segment(line.start, line.length, line.target, tuple(line.text.split()))
                for line in lines
            )
        )

    def status(self, who: Who) -> list[StatusLine]:
        """What each target of the live table reports, without making thin pools commit."""
        return self._status(who, Flag.NOFLUSH)

    def deps(self, who: Who) -> list[DevNum]:
        """Devices that the live table uses."""
        header, buffer = self._ask(request_for(Cmd.TABLE_DEPS, who), _FIRST_BUFFER)
        return dm_ioctl.unpack_deps(buffer, header)

    def create(self, name: str, uuid: str) -> DevNum:
        """A new device without a table: it becomes visible with its first one."""
        return self._ask(Request(Cmd.DEV_CREATE, name=name, uuid=uuid))[0].dev

    def load(self, who: Who, table: Table, readonly: bool = False) -> None:
        """Fill the inactive slot, over whatever is in it; the live table stays."""
        flags = Flag.READONLY if readonly else Flag(0)
        payload = dm_ioctl.pack_targets(table.segments)
        count = len(table.segments)
        self._ask(request_for(Cmd.TABLE_LOAD, who, flags, payload=payload, target_count=count))

    def clear(self, who: Who) -> None:
        """Empty the inactive slot; fine when it is empty already."""
        self._ask(request_for(Cmd.TABLE_CLEAR, who))

    def resume(
        self, who: Who, skip_lockfs: bool = True, noflush: bool = True, udev: int = 0
    ) -> None:
        """Make the inactive table live if there is one, and let I/O run.

        Suspends by itself for the swap. udev: UdevFlag bits for the uevent.
        """
        flags = Flag.SKIP_LOCKFS if skip_lockfs else Flag(0)
        flags |= Flag.NOFLUSH if noflush else Flag(0)
        self._ask(request_for(Cmd.DEV_SUSPEND, who, flags, event_nr=udev))

    def create_active(
        self, name: str, uuid: str, table: Table, readonly: bool = False, *, private: bool = True
    ) -> DevNum:
        """A device with a live table; about a private one udev is told not to look into it.

        Nothing is left behind when a step fails.
        """
        dev = self.create(name, uuid)
        done = False
        try:
            self.load(dev, table, readonly)
            self.resume(dev, udev=UDEV_PRIVATE if private else 0)
            done = True
        finally:
            if not done:
                self.remove(dev)
        return dev

    def remove(self, who: Who, deferred: bool = False, patience: float = 2.0) -> bool:
        """Remove a device. True: gone. False: will go when its last user closes it.

        patience: seconds to wait for short-lived holders such as blkid. deferred:
        what to do then; without it DeviceBusy is raised, naming the holders.
        """
        deadline = time.monotonic() + patience
        while True:
            try:
                self._ask(request_for(Cmd.DEV_REMOVE, who, event_nr=UDEV_PRIVATE))
                return True
            except OSError as failed:
                if failed.errno != errno.EBUSY:
                    raise
            if time.monotonic() >= deadline:
                break
            time.sleep(0.02)
        if not deferred:
            dev = self.info(who).dev
            raise DeviceBusy(dev, holders(dev))
        flags = Flag.DEFERRED_REMOVE
        header, _ = self._ask(request_for(Cmd.DEV_REMOVE, who, flags, event_nr=UDEV_PRIVATE))
        return Flag.DEFERRED_REMOVE not in header.flags

    def message(self, who: Who, sector: int, text: str) -> str:
        """Send a message to the live table's target at a sector; its answer, if any."""
        payload = dm_ioctl.pack_message(sector, text)
        header, buffer = self._ask(request_for(Cmd.TARGET_MSG, who, payload=payload), _FIRST_BUFFER)
        return dm_ioctl.unpack_message(buffer, header)

    def _status(self, who: Who, flags: Flag) -> list[StatusLine]:
        header, buffer = self._ask(request_for(Cmd.TABLE_STATUS, who, flags), _FIRST_BUFFER)
        return [StatusLine(*line) for line in dm_ioctl.unpack_targets(buffer, header)]

    def _ask(self, request: Request, size: int = 0) -> tuple[Header, bytearray]:
        """One ioctl, again with a larger buffer while the answer does not fit.

        A bare header stays below 1024 bytes, for which fcntl.ioctl lets go of
        the interpreter lock: a resume may wait for I/O.
        """
        while True:
            buffer = dm_ioctl.pack(request, size)
            try:
                fcntl.ioctl(self._fd, dm_ioctl.ioctl_number(request.cmd), buffer, True)
            except InterruptedError:
                continue  # the kernel has put everything back, see do_resume
            except OSError as failed:
                whom = request.dev or request.name or request.uuid
                what = f"device-mapper {request.cmd.name} {whom}: {failed.strerror}"
                raise OSError(failed.errno, what) from failed
            if request.cmd in _CHANGING:
                crashpoint(f"dm:{request.cmd.name}")
            header = dm_ioctl.unpack(buffer)
            if Flag.BUFFER_FULL not in header.flags:
                return header, buffer
            size = max(size, _FIRST_BUFFER) * 4
            if size > _LAST_BUFFER:
                raise OSError(errno.ENOBUFS, f"device-mapper {request.cmd.name}: answer too long")


def read_table(major: int, minor: int) -> tuple[str, ...]:
    """The live table of a device, a line a segment. Raises OSError, Refused.

    The text of a crypt segment holds its key: whoever shows or keeps it must redact it.
    """
    with DmControl() as control:
        table = control.table(DevNum(major, minor))
    return () if table is None else tuple(format_table(table).splitlines())
