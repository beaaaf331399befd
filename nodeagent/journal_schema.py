"""The journal's tables, and rows as models."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from nodeagent.model.errors import Refused
from nodeagent.model.record import FaultRow, StepRow, StepState
from nodeagent.model.steps import step_from_json

SCHEMA_VERSION = 1

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE faults (
  id TEXT PRIMARY KEY, kind TEXT NOT NULL, state TEXT NOT NULL, end_reason TEXT,
  plan TEXT NOT NULL, digest TEXT NOT NULL, owner TEXT NOT NULL, epoch INTEGER NOT NULL,
  boot_id TEXT NOT NULL, lease_ns INTEGER NOT NULL, lease_until_ns INTEGER NOT NULL,
  hard_end_ns INTEGER NOT NULL, created TEXT NOT NULL, armed_ns INTEGER, ended_ns INTEGER,
  error TEXT NOT NULL DEFAULT '', attempts INTEGER NOT NULL DEFAULT 0,
  evidence TEXT NOT NULL DEFAULT '{}') STRICT;
CREATE INDEX faults_active ON faults (state) WHERE state != 'ended';
CREATE TABLE steps (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, fault_id TEXT NOT NULL REFERENCES faults (id),
  idx INTEGER NOT NULL, key TEXT NOT NULL, step TEXT NOT NULL, next_step TEXT,
  prior TEXT NOT NULL, state TEXT NOT NULL, outcome TEXT NOT NULL DEFAULT '{}') STRICT;
CREATE INDEX steps_fault ON steps (fault_id);
CREATE TABLE events (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, fault_id TEXT NOT NULL, type TEXT NOT NULL,
  boottime_ns INTEGER NOT NULL, wall TEXT NOT NULL, data TEXT NOT NULL) STRICT;
"""

HELD = "state != 'reverted' AND fault_id IN (SELECT id FROM faults WHERE state != 'ended')"
"""Steps that hold something: a fault that has ended does not, though a step's end was not written
(the disk was full for a moment)."""


def as_columns(values: dict[str, Any]) -> dict[str, Any]:
    """A fault's values as the table has them."""
    return {k: json.dumps(v) if k in ("plan", "evidence") else v for k, v in values.items()}


def unusable(path: Path, why: str) -> Refused:
    """The error for a journal that is damaged or no journal at all."""
    return Refused(
        f"the journal {path} cannot be used",
        why,
        "keep the file in another place and start again: `faultctl doctor` then finds "
        "what is left in the kernel",
    )


def other_version(path: Path, version: int) -> Refused:
    """The error for a journal of another layout."""
    return Refused(
        f"the journal {path} was written by another version of the agent",
        f"its version is {version}, this agent knows {SCHEMA_VERSION}",
        "start that agent, or revert with it first",
    )


def fault_from(row: sqlite3.Row) -> FaultRow:
    """A fault from its row. Raises pydantic.ValidationError."""
    values = dict(row)
    values["plan"] = json.loads(values["plan"])
    values["evidence"] = json.loads(values["evidence"])
    return FaultRow.model_validate(values)


def step_from(row: sqlite3.Row) -> StepRow:
    """A step from its row. Raises ValueError for an op that this agent does not know."""
    next_step = row["next_step"]
    return StepRow(
        seq=row["seq"],
        fault_id=row["fault_id"],
        index=row["idx"],
        key=row["key"],
        step=step_from_json(row["step"]),
        next_step=None if next_step is None else step_from_json(next_step),
        prior=json.loads(row["prior"]),
        state=StepState(row["state"]),
        outcome=json.loads(row["outcome"]),
    )
