"""What a fingerprint has of the clock and of systemd's units."""

from __future__ import annotations

import time

from nodeagent.backends.clock import adjtimex, rtc_s
from nodeagent.bind.systemd import is_running, systemctl
from nodeagent.encode.timex import STA_UNSYNC, Timex
from nodeagent.model.errors import BackendError


def clock() -> dict[str, int | None]:
    """How the wall clock runs, and how many minutes it is off the real-time clock."""
    now, rtc = adjtimex(Timex()), rtc_s()
    return {
        "minutes_off_rtc": None if rtc is None else round((time.time() - rtc) / 60),
        "tick": now.tick,
        "freq": now.freq,
        "unsynchronized": int(bool(now.status & STA_UNSYNC)),
    }


def units() -> list[str]:
    """Services, sockets, timers and paths of systemd that are loaded, with their states."""
    if not is_running():
        return []
    kinds = "--type=service,socket,timer,path"
    try:
        text = systemctl("list-units", "--all", "--plain", "--no-legend", kinds)
    except BackendError as exc:
        return [str(exc)]
    return sorted(" ".join(line.split()[:4]) for line in text.splitlines() if line.strip())
