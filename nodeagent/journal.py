"""The node's write-ahead journal: SQLite, WAL, synchronous=FULL.

An intent, with the prior state that a revert returns to, is on disk before the kernel
is touched. Rows are versioned data, never code. Writes that only record what the
kernel can be asked again (armed, evidence, events) are not waited for; losing them
leaves the intent, from which a revert works as well.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from nodeagent.clock import boottime_ns, wall
from nodeagent.crashpoint import crashpoint
from nodeagent.journal_schema import (
    HELD,
    SCHEMA,
    SCHEMA_VERSION,
    as_columns,
    fault_from,
    other_version,
    step_from,
    unusable,
)
from nodeagent.model.errors import BackendError, UnknownFault
from nodeagent.model.record import Event, FaultRow, FaultState, StepRow, StepState
from nodeagent.model.steps import StepBase
from nodeagent.statedir import JOURNAL_NAME, open_private

MAX_EVENTS = 20_000
MAX_SEQ = (1 << 63) - 1

T = TypeVar("T")


class Journal:
    """One node's journal. Safe to use from several threads; processes use their own."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / JOURNAL_NAME
        os.close(open_private(self.path, os.O_RDWR | os.O_CREAT))
        self._guard = threading.RLock()
        self.changed = threading.Condition(self._guard)
        self._db = sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, timeout=10
        )
        self._db.row_factory = sqlite3.Row
        self._open_schema()

    def _open_schema(self) -> None:
        try:
            version = self._version()
            if version in (0, SCHEMA_VERSION):
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA foreign_keys=ON")
            if version == 0:
                self._create()
                version = SCHEMA_VERSION
            damage = self.check() if version == SCHEMA_VERSION else ""
        except (sqlite3.Error, BackendError) as exc:
            self._db.close()
            raise unusable(self.path, str(exc)) from exc
        if version != SCHEMA_VERSION or damage:
            self._db.close()
            raise unusable(self.path, damage) if damage else other_version(self.path, version)

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def _create(self) -> None:
        with self._write(durable=True):
            if self._version() == 0:  # another process may have been quicker
                for statement in SCHEMA.split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    @contextmanager
    def _write(self, *, durable: bool) -> Iterator[None]:
        with self._guard:
            try:
                self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                self._db.execute("BEGIN IMMEDIATE")
                yield
                self._db.execute("COMMIT")
            except sqlite3.Error as exc:
                raise BackendError(
                    "the journal cannot be written",
                    f"{self.path}: {exc}",
                    "see that the state directory has free space and is writable",
                ) from exc
            finally:
                with suppress(sqlite3.Error):  # a full disk may have ended it already
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
            self.changed.notify_all()

    def _read(self, sql: str, values: Sequence[Any], make: Callable[[sqlite3.Row], T]) -> list[T]:
        """Rows of a query as models. Raises BackendError for what cannot be read."""
        try:
            with self._guard:
                rows = self._db.execute(sql, values).fetchall()
            return [make(row) for row in rows]
        except sqlite3.Error as exc:
            raise BackendError("the journal cannot be read", f"{self.path}: {exc}") from exc
        except ValueError as exc:
            raise BackendError(
                "the journal holds what this agent does not know",
                " ".join(str(exc).split())[:300],
                "start the agent that wrote it, and revert with it",
            ) from exc

    def wake(self) -> None:
        """Wake everybody who waits for a change."""
        with self.changed:
            self.changed.notify_all()

    def close(self) -> None:
        """Close the database."""
        with self._guard:
            self._db.close()

    def check(self) -> str:
        """Empty, or what SQLite's own check found (PRAGMA quick_check)."""
        with self._guard:
            answer = str(self._db.execute("PRAGMA quick_check").fetchone()[0])
        return "" if answer == "ok" else answer

    # --- meta -------------------------------------------------------------------

    def meta(self, key: str) -> str | None:
        """A value of the meta table."""
        found = self._read("SELECT value FROM meta WHERE key=?", (key,), lambda row: str(row[0]))
        return found[0] if found else None

    def set_meta(self, key: str, value: str) -> None:
        """Set a value of the meta table, on disk when this returns."""
        with self._write(durable=True):
            self._db.execute(
                "INSERT INTO meta VALUES (?, ?)"
                " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                (key, value),
            )

    def epoch(self) -> int:
        """The epoch of the agent that owns this node now."""
        return int(self.meta("epoch") or 0)

    def next_epoch(self) -> int:
        """Take the node over: agents with an older epoch may not change anything any more."""
        epoch = self.epoch() + 1
        self.set_meta("epoch", str(epoch))
        return epoch

    # --- faults -----------------------------------------------------------------

    def begin(self, fault: FaultRow, steps: Sequence[tuple[StepBase, dict[str, Any]]]) -> None:
        """INTENT: the fault and all its steps with their prior states, on disk at return."""
        crashpoint("journal.begin:before")
        with self._write(durable=True):
            left_out = {"end_reason", "armed_ns", "ended_ns"}
            values = as_columns(fault.model_dump(mode="json", exclude=left_out))
            columns = ", ".join(values)
            marks = ", ".join(f":{name}" for name in values)
            self._db.execute(f"INSERT INTO faults ({columns}) VALUES ({marks})", values)
            self._db.executemany(
                "INSERT INTO steps (fault_id, idx, key, step, prior, state)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (fault.id, i, s.key(), s.model_dump_json(), json.dumps(prior), StepState.INTENT)
                    for i, (s, prior) in enumerate(steps)
                ],
            )
            self._event(fault.id, "intent", {"kind": fault.kind})
        crashpoint("journal.begin:after")

    def update_fault(self, fault_id: str, *, only_in: Sequence[str] = (), **values: Any) -> bool:
        """Set columns of a fault, if it is in one of these states (none: any). Whether it was."""
        values = as_columns(values)
        sets = ", ".join(f"{name}=:{name}" for name in values)
        there = f" AND state IN ({','.join(map(repr, map(str, only_in)))})" if only_in else ""
        with self._write(durable=False):
            done = self._db.execute(
                f"UPDATE faults SET {sets} WHERE id=:fault_id{there}",
                {**values, "fault_id": fault_id},
            )
        crashpoint(f"journal.update_fault:{','.join(values)}")
        return done.rowcount == 1

    def set_state(
        self, fault_id: str, state: FaultState, event: dict[str, Any] | None = None, **values: Any
    ) -> None:
        """Move a fault to a state with an event; the end is waited for on disk."""
        durable = state is FaultState.ENDED
        sets = ", ".join(f"{name}=:{name}" for name in ("state", *values))
        with self._write(durable=durable):
            self._db.execute(
                f"UPDATE faults SET {sets} WHERE id=:fault_id",
                {**values, "state": state, "fault_id": fault_id},
            )
            self._event(fault_id, state, event or {})
        crashpoint(f"journal.state:{state}")

    def fault(self, fault_id: str) -> FaultRow:
        """One fault. Raises UnknownFault: an id that is not in the journal is never 'reverted'."""
        found = self.find_fault(fault_id)
        if found is None:
            raise UnknownFault(
                f"fault {fault_id!r} is not in this node's journal",
                "it was never applied here, or the journal was removed",
                "list faults with: faultctl ls; look for residue with: faultctl doctor",
            )
        return found

    def find_fault(self, fault_id: str) -> FaultRow | None:
        """One fault, or None."""
        found = self._read("SELECT * FROM faults WHERE id=?", (fault_id,), fault_from)
        return found[0] if found else None

    def faults(self, *, active_only: bool = False) -> list[FaultRow]:
        """Faults in the order of their beginning."""
        where = "WHERE state != 'ended'" if active_only else ""
        return self._read(f"SELECT * FROM faults {where} ORDER BY rowid", (), fault_from)

    # --- steps ------------------------------------------------------------------

    def steps(self, fault_id: str) -> list[StepRow]:
        """A fault's steps in their order."""
        return self._steps("fault_id=? ORDER BY idx", (fault_id,))

    def active_steps(self, keys: Iterable[str]) -> list[StepRow]:
        """Steps of active faults that hold one of these keys and are not reverted, oldest first."""
        wanted = tuple(keys)
        marks = ",".join("?" * len(wanted))
        return self._steps(f"{HELD} AND key IN ({marks}) ORDER BY seq", wanted)

    def _steps(self, where: str, values: Sequence[Any]) -> list[StepRow]:
        return self._read(f"SELECT * FROM steps WHERE {where}", values, step_from)

    def set_step(
        self, row: StepRow, state: StepState, outcome: dict[str, Any] | None = None
    ) -> None:
        """Move a step to a state; not waited for, since the kernel can be asked again."""
        with self._write(durable=False):
            self._db.execute(
                "UPDATE steps SET state=?, outcome=? WHERE seq=?",
                (state, json.dumps(outcome if outcome is not None else row.outcome), row.seq),
            )
        crashpoint(f"journal.step:{row.step.model_dump().get('op')}:{state}")

    def change_step(self, row: StepRow, new: StepBase) -> None:
        """INTENT of a reaction: the kernel may show the old step or the new, on disk at return."""
        with self._write(durable=True):
            self._db.execute(
                "UPDATE steps SET next_step=? WHERE seq=?", (new.model_dump_json(), row.seq)
            )
        crashpoint("journal.change_step")

    def settle_step(self, row: StepRow, step: StepBase) -> None:
        """End of a reaction: the kernel shows `step`."""
        with self._write(durable=False):
            self._db.execute(
                "UPDATE steps SET step=?, next_step=NULL WHERE seq=?",
                (step.model_dump_json(), row.seq),
            )
        crashpoint("journal.settle_step")

    # --- events -----------------------------------------------------------------

    def event(self, fault_id: str, type_: str, data: dict[str, Any] | None = None) -> None:
        """Append an event; not waited for."""
        with self._write(durable=False):
            self._event(fault_id, type_, data or {})

    def _event(self, fault_id: str, type_: str, data: dict[str, Any]) -> None:
        cursor = self._db.execute(
            "INSERT INTO events (fault_id, type, boottime_ns, wall, data) VALUES (?, ?, ?, ?, ?)",
            (fault_id, type_, boottime_ns(), wall(), json.dumps(data)),
        )
        if cursor.lastrowid and cursor.lastrowid % 1000 == 0:
            self._db.execute("DELETE FROM events WHERE seq <= ?", (cursor.lastrowid - MAX_EVENTS,))

    def events(self, after: int = 0, fault_id: str = "", limit: int = 1000) -> list[Event]:
        """Events with a sequence number above `after`, oldest first."""
        return self._read(
            "SELECT * FROM events WHERE seq > ? AND (? = '' OR fault_id = ?) ORDER BY seq LIMIT ?",
            (min(after, MAX_SEQ), fault_id, fault_id, limit),
            lambda row: Event(**{**dict(row), "data": json.loads(row["data"])}),
        )

    def last_event(self) -> int:
        """The sequence number of the newest event; 0 without any."""
        return sum(self._read("SELECT MAX(seq) FROM events", (), lambda row: int(row[0] or 0)))
