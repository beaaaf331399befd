"""How devices are addressed and described; what DmControl takes and gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from nodeagent.encode import dm_ioctl
from nodeagent.encode.dm import DevNum
from nodeagent.encode.dm_ioctl import Cmd, Flag, Header, Request
from nodeagent.model.errors import BackendError

Version = tuple[int, int, int]


class ByName(NamedTuple):
    """Address a device by its name."""

    name: str


class ByUuid(NamedTuple):
    """Address a device by its uuid: never hits another that took over the number."""

    uuid: str


Who = DevNum | ByName | ByUuid


@dataclass(frozen=True, slots=True)
class DmInfo:
    """State of one device. target_count: segments of the live table."""

    dev: DevNum
    name: str
    uuid: str
    open_count: int
    event_nr: int
    target_count: int
    suspended: bool
    read_only: bool
    active_present: bool
    inactive_present: bool
    deferred_remove: bool


class StatusLine(NamedTuple):
    """One segment of `dmsetup status`; text is the target's own."""

    start: int
    length: int
    target: str
    text: str


class DeviceBusy(BackendError):
    """A device that cannot be removed; `holders` says who has it open."""

    def __init__(self, dev: DevNum, found: list[str]) -> None:
        super().__init__(
            f"device-mapper device {dev} is in use",
            "held by " + ", ".join(found) if found else "the holder is not visible from here",
            "end what holds it, then revert again",
        )
        self.holders = found


def request_for(
    cmd: Cmd,
    who: Who,
    flags: Flag = dm_ioctl.NONE,
    event_nr: int = 0,
    target_count: int = 0,
    payload: bytes = b"",
) -> Request:
    """A request for one device."""
    return Request(
        cmd,
        dev=who if isinstance(who, DevNum) else None,
        name=who.name if isinstance(who, ByName) else "",
        uuid=who.uuid if isinstance(who, ByUuid) else "",
        flags=flags,
        event_nr=event_nr,
        target_count=target_count,
        payload=payload,
    )


def info_from(header: Header) -> DmInfo:
    """What a status answer says about its device."""
    return DmInfo(
        dev=header.dev,
        name=header.name,
        uuid=header.uuid,
        open_count=header.open_count,
        event_nr=header.event_nr,
        target_count=header.target_count,
        suspended=Flag.SUSPEND in header.flags,
        read_only=Flag.READONLY in header.flags,
        active_present=Flag.ACTIVE_PRESENT in header.flags,
        inactive_present=Flag.INACTIVE_PRESENT in header.flags,
        deferred_remove=Flag.DEFERRED_REMOVE in header.flags,
    )
