"""Where an operator hands things in: one line each in the run folder, while the run is played."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from controller.clock import boot_id, boottime_ns, wall
from controller.oracle_history import History
from controller.oracle_submit import settled
from controller.recorder import read_header, read_records
from controller.recorder_lock import is_locked
from controller.records import FILE_OF, OperatorAction, Record, Submission, record_line
from nodeagent.model.errors import InvalidSpec, Refused

MAX_DATA = 256 * 1024
"""Bytes of one submission."""
_FILE = FILE_OF["submission"]


def hand_in(
    folder: Path, kind: str, data: dict[str, Any], *, fault: str = "", actor: str = ""
) -> Submission:
    """Record a submission with the run's clock; accepted or not, it is kept.

    Raises Refused if no run is played there, InvalidSpec for something that is none.
    """
    at = {"t_ns": _now(folder), "wall": wall()}
    said = {"kind": kind, "actor": actor, "fault": fault, "data": data}
    try:
        made = Submission.model_validate(at | said)
    except ValidationError as exc:
        raise InvalidSpec("this is no submission", " ".join(str(exc).split())[:300]) from exc
    with _Operator(folder) as file:
        records = [r for name in ("faults.jsonl", _FILE) for r in read_records(folder, name)]
        checked = settled(History.of(records), made)
        file.append(checked)
    return checked


def note_action(
    folder: Path, act: str, *, service: str = "", executed: bool = True, actor: str = ""
) -> OperatorAction:
    """Record something that the operator did. Raises Refused."""
    made = OperatorAction(
        t_ns=_now(folder), wall=wall(), actor=actor, act=act, service=service, executed=executed
    )
    with _Operator(folder) as file:
        file.append(made)
    return made


def _now(folder: Path) -> int:
    header = read_header(folder)
    if not is_locked(folder):
        raise Refused(f"no run is played in {folder}", "it is over, or its controller is gone")
    if header.boot_id != boot_id():
        raise Refused(
            f"{folder} is a run of another machine or boot", "its clock means nothing here"
        )
    return boottime_ns() - header.origin_boottime_ns


class _Operator:
    """operator.jsonl under a lock of its own, so that two submissions see each other."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._fd = -1

    def __enter__(self) -> _Operator:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._fd)

    def append(self, record: Record) -> None:
        """One line, on disk. Raises InvalidSpec if it is too long, Refused if it cannot be."""
        line = record_line(record).encode() + b"\n"
        if len(line) > MAX_DATA:
            raise InvalidSpec("the submission is too long", f"{len(line)} of {MAX_DATA} bytes")
        size = os.fstat(self._fd).st_size
        try:
            if os.write(self._fd, line) != len(line):
                os.ftruncate(self._fd, size)
                raise Refused(f"{self._path} cannot be written", "the disk is full")
            os.fsync(self._fd)
        except OSError as exc:
            raise Refused(f"{self._path} cannot be written", exc.strerror or str(exc)) from exc
