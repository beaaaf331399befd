"""Watching a run: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections import deque
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from controller.records import (
    FaultArmed,
    FaultDropped,
    FaultEnded,
    FaultLeft,
    FaultMoved,
    FaultWaits,
    Record,
    RunEvent,
    Verdict,
)
from controller.run_core import Core
from controller.run_state import ItemState, Life

KEPT_LINES = 12
MAX_ROWS = 30
_COLOURS = {"pass": "green", "fail": "red", "unknown": "yellow"}


def moment(t_ns: int) -> str:
    """`+01:02:03`, `-00:00:05`: from the origin of the run."""
    sign, seconds = ("-" if t_ns < 0 else "+"), abs(t_ns) // 1_000_000_000
    return f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def line_of(record: Record, names: dict[str, str]) -> str:
    """What a person should read of a record; empty for what only matters later."""
    head = moment(record.t_ns)
    if isinstance(record, FaultArmed):
        late = (record.sent_ns - record.start_ns) / 1e6
        again = ", taken over" if record.taken_over else f", {late:+.1f} ms"
        return (
            f"{head} armed    {names.get(record.fault, record.fault)} by {record.mechanism}{again}"
        )
    if isinstance(record, FaultEnded):
        error = f" ({record.error})" if record.error else ""
        name = names.get(record.fault, record.fault)
        return f"{head} {record.reason:8} {name}, by {record.by}{error}"
    if isinstance(record, FaultDropped):
        name = names.get(record.fault, record.fault)
        return f"{head} dropped  {name}: {record.reason}, {record.detail}"
    if isinstance(record, FaultMoved | FaultWaits | FaultLeft):
        return f"{head} {_on_its_way(record)}".format(names.get(record.fault, record.fault))
    if isinstance(record, RunEvent) and record.name != "noise-missing":
        where = f" {record.node}" if record.node else ""
        data = " ".join(f"{key}={value}" for key, value in record.data.items())
        return f"{head} {record.name}{where} {data}".rstrip()
    return ""


def _on_its_way(record: FaultMoved | FaultWaits | FaultLeft) -> str:
    if isinstance(record, FaultWaits):
        return f"waits    {{}}: {record.why}"
    if isinstance(record, FaultLeft):
        return f"left     {{}}: {record.node}, {record.reason}"
    word = "followed" if record.armed else "follows "
    return f"{word} {{}}: {record.pod} on {record.node} {record.why}"


def names_of(core: Core) -> dict[str, str]:
    """What to call each fault: slot, kind and target."""
    return {
        state.id: f"{state.item.role} {state.item.slot} ({state.item.kind} on "
        f"{state.item.target_name}, {state.item.node})"
        for state in core.order
    }


class PlainView:
    """One line for each thing that happens; nothing in between."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.names: dict[str, str] = {}

    def show(self, core: Core, health: dict[str, Verdict], now: int) -> None:
        """Nothing: lines say it all."""

    def record(self, record: Record) -> None:
        """Prints a line."""
        line = line_of(record, self.names)
        if line:
            self._console.print(line, markup=False, highlight=False)


class LiveView:
    """A picture that is drawn anew twice a second. A context manager."""

    def __init__(self, console: Console) -> None:
        self.names: dict[str, str] = {}
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def record(self, record: Record) -> None:
        """Keeps the last lines."""
        line = line_of(record, self.names)
        if line:
            self._lines.append(line)

    def show(self, core: Core, health: dict[str, Verdict], now: int) -> None:
        """Draws."""
        self._live.update(picture(core, health, now, list(self._lines)), refresh=True)


def picture(core: Core, health: dict[str, Verdict], now: int, lines: list[str]) -> Group:
    """What is armed where, how the probes are, when something happens next, the last lines."""
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("FAULT", "KIND", "NODE", "TARGET", "STATE", "LEFT"):
        grid.add_column(column)
    live = sorted(core.live(), key=lambda s: (s.item.role, s.end_ns))
    for state in live[:MAX_ROWS]:
        grid.add_row(*_row(state, now))
    parts: list[Table | Text] = [Text(_headline(core, now, len(live)), style="bold")]
    if live:
        parts.append(grid)
    if len(live) > MAX_ROWS:
        parts.append(Text(f"... and {len(live) - MAX_ROWS} more"))
    if health:
        probes = Text("probes: ")
        for name in sorted(health):
            probes.append(f"{name} {health[name]}  ", style=_COLOURS[health[name]])
        parts.append(probes)
    parts += [Text(line, style="dim") for line in lines]
    return Group(*parts)


def _headline(core: Core, now: int, live: int) -> str:
    done = sum(state.life.final for state in core.order)
    words = (
        f"{moment(now)} of {moment(core.end_ns)[1:]}, {live} live, {done} of {len(core.order)} over"
    )
    if core.stopping:
        return f"{words}, stopping: {core.stopping}"
    if core.paused_at is not None:
        return f"{words}, paused"
    due = core.next_start()
    if not core.started:
        return f"{words}, starts in {-now // 1_000_000_000} s"
    return words if due is None else f"{words}, next in {max(due - now, 0) // 1_000_000_000} s"


def _row(state: ItemState, now: int) -> tuple[str, ...]:
    word = "biting" if state.biting and state.life is Life.ARMED else str(state.life)
    left = f"{max(state.end_ns - now, 0) // 1_000_000_000} s"
    item = state.item
    name = item.slot if item.role == "fault" else f"{item.slot} (noise)"
    return (name, item.kind, item.node, item.target_name, word, left)
