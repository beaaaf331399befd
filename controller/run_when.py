"""A start at a time of day: said with its zone, and waited for by the wall clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from nodeagent.model.errors import InvalidSpec

LONGEST_SLEEP_S = 10.0
"""Between two looks at the wall clock, which may be set meanwhile."""
MAX_AHEAD = timedelta(days=366)


def parse_at(text: str, zone: str | None, now: datetime) -> datetime:
    """A moment from RFC 3339 with its offset, or from a local time and a zone by name.

    Raises InvalidSpec for a moment that is past, ambiguous or missing (the hours at which
    summer time begins and ends), or without a zone.
    """
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as exc:
        raise InvalidSpec(f"{text!r} is not a time", "write 2026-12-01T00:00:00+01:00") from exc
    if found.tzinfo is None:
        found = _local(found, text, zone)
    elif zone is not None:
        raise InvalidSpec(f"{text!r} has an offset already", "leave --zone out")
    if found <= now:
        raise InvalidSpec(f"{text} is past", f"it is {now.astimezone(UTC).isoformat()} now")
    if found - now > MAX_AHEAD:
        raise InvalidSpec(f"{text} is more than a year away")
    return found


def _local(found: datetime, text: str, zone: str | None) -> datetime:
    if zone is None:
        raise InvalidSpec(
            f"{text!r} has no zone",
            "the same words mean many moments",
            "add +01:00, or --zone NAME",
        )
    try:
        where = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise InvalidSpec(f"there is no time zone {zone!r}", str(exc)) from exc
    first, second = found.replace(tzinfo=where), found.replace(tzinfo=where, fold=1)
    if first.utcoffset() != second.utcoffset():
        there = first.astimezone(UTC).astimezone(where).replace(tzinfo=None) == found
        why = "it comes twice on that day" if there else "it does not exist on that day"
        raise InvalidSpec(
            f"{text} in {zone} is not one moment", why, "write the time with its offset"
        )
    return first


def wait_until(
    moment: datetime,
    say: Callable[[str], None],
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Returns at the moment, by the wall clock, whatever happens to it meanwhile."""
    say(f"waiting until {moment.isoformat()} ({moment.astimezone(UTC).isoformat()})")
    while (left := (moment - now()).total_seconds()) > 0:
        sleep(min(left, LONGEST_SLEEP_S))
