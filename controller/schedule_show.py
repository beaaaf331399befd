"""A schedule as text for people: a list, and a plot of lanes."""

from __future__ import annotations

from controller.live import moment
from controller.schedule import overlaps
from controller.schedule_model import Schedule

_MS = 1_000_000


def headline(schedule: Schedule) -> list[str]:
    """What it is, and what limits did to it."""
    most, mean = overlaps(schedule)
    delayed = sum(change.action == "delayed" for change in schedule.changes)
    dropped = len(schedule.changes) - delayed
    return [
        f"seed {schedule.seed}, preset {schedule.preset or '-'}, profile {schedule.profile}"
        f" ({'calibrated' if schedule.calibrated else 'not calibrated'})",
        f"{len(schedule.faults)} faults in {moment(schedule.window_ms * _MS)[1:]},"
        f" the last ends at {moment(schedule.end_ms * _MS)}",
        f"at most {most} at once, {mean} on average while there are any",
        f"limits delayed {delayed} and dropped {dropped}",
        f"kinds that no target takes: {', '.join(schedule.left_out) or 'none'}",
        f"SHA-256 {schedule.digest}",
    ]


def changes(schedule: Schedule) -> list[str]:
    """One line for everything that a limit changed."""
    return [
        f"{change.action} {change.slot} ({change.kind}), drawn for "
        f"{moment(change.arrival_ms * _MS)}: {change.rule}"
        + (f", by {change.by_ms / 1000:.1f} s" if change.by_ms else "")
        for change in schedule.changes
    ]


def plot(schedule: Schedule, width: int) -> list[str]:
    """One lane for each service, `#` where a fault lives, and how many live at once below."""
    end = max(schedule.end_ms, schedule.window_ms, 1)
    services = sorted({fault.service for fault in schedule.faults})
    label = max((len(name) for name in services), default=0)
    columns = max(width - label - 2, 20)
    lines = []
    counts = [0] * columns
    for service in services:
        lane = [" "] * columns
        for fault in schedule.faults:
            if fault.service == service:
                first = fault.start_ms * columns // end
                last = max(fault.end_ms * columns // end, first + 1)
                for column in range(first, min(last, columns)):
                    lane[column] = "#"
                    counts[column] += 1
        lines.append(f"{service:<{label}} |{''.join(lane)}".rstrip())
    digits = "".join(str(n) if n < 10 else chr(ord("a") + min(n - 10, 25)) for n in counts)
    lines.append(f"{'at once':<{label}} |{digits}")
    return lines
