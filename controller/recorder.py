"""The run folder: written line by line, by one controller at a time, readable after any crash."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO

from pydantic import ValidationError

from controller.recorder_lock import lock_folder
from controller.records import (
    EXPERIMENT_FILE,
    FILE_OF,
    FORMAT_VERSION,
    HEADER_FILE,
    PLAN_FILE,
    AnyRecord,
    Record,
    RunHeader,
    parse_record,
    record_line,
)
from controller.run_plan import RunPlan
from nodeagent.model.errors import FaultError, InvalidSpec, Refused

BALLAST_FILE = ".ballast"
BALLAST_BYTES = 1 << 20
"""Kept free for the last lines of a run whose disk fills up."""


class RecordLost(FaultError):
    """The run folder cannot be written any more: the run must end."""

    code = "refused"
    exit_code = 3


class Recorder:
    """Writes a run folder. Threads may write at the same time."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder = folder
        self._lock_fd = lock
        self._mutex = threading.Lock()
        self._files: dict[str, IO[bytes]] = {}
        self._dirty: set[str] = set()
        self.failed: OSError | None = None

    # --- opening ----------------------------------------------------------------------

    @classmethod
    def create(cls, folder: Path, header: RunHeader, experiment: bytes, plan: RunPlan) -> Recorder:
        """A new run folder, for its owner alone. Raises Refused if there is one already."""
        try:
            folder.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            raise Refused(
                f"{folder} is there already", "a run never writes into another's folder"
            ) from None
        except OSError as exc:
            raise Refused(f"{folder} cannot be made", os.strerror(exc.errno or 0)) from exc
        recorder = cls(folder, lock_folder(folder))
        try:
            _reserve(folder / BALLAST_FILE)
            recorder.put(EXPERIMENT_FILE, experiment)
            recorder.put(PLAN_FILE, plan.text().encode())
            recorder.put(HEADER_FILE, (header.model_dump_json(indent=1) + "\n").encode())
        except OSError as exc:
            recorder.close()
            raise RecordLost(f"{folder} cannot be written", os.strerror(exc.errno or 0)) from exc
        return recorder

    @classmethod
    def resume(cls, folder: Path) -> Recorder:
        """An existing run folder; a line that a crash cut short is removed. Raises Refused."""
        recorder = cls(folder, lock_folder(folder))
        for name in sorted(set(FILE_OF.values())):
            _mend(folder / name)
        return recorder

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- writing ----------------------------------------------------------------------

    def put(self, name: str, data: bytes) -> None:
        """Write a whole file so that it is there in full or not at all. Raises OSError."""
        path = self.folder / name
        part = path.with_name(f".{name}.part")
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)

    def write(self, record: Record) -> None:
        """Append a record. Raises RecordLost once when the disk is full; the ballast is then
        given up, so that the records of the way back still fit."""
        name = FILE_OF[str(record.type)]  # type: ignore[attr-defined]
        line = record_line(record).encode() + b"\n"
        with self._mutex:
            try:
                self._append(name, line)
            except OSError as exc:
                first, self.failed = self.failed is None, exc
                (self.folder / BALLAST_FILE).unlink(missing_ok=True)
                self._again(name, line)
                if first:
                    raise RecordLost(
                        f"the run folder {self.folder} cannot be written",
                        os.strerror(exc.errno or errno.EIO),
                        "everything is being reverted; make room and run again",
                    ) from exc

    def _append(self, name: str, line: bytes) -> None:
        file = self._files.get(name)
        if file is None:
            # Unbuffered: a line is in the kernel's hands when write returns.
            file = self._files[name] = open(self.folder / name, "ab", buffering=0)  # noqa: SIM115
        start = file.tell()
        done = file.write(line)
        if done != len(line):
            os.ftruncate(file.fileno(), start)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._dirty.add(name)

    def _again(self, name: str, line: bytes) -> None:
        try:
            self._append(name, line)
        except OSError as exc:
            self.failed = exc

    def sync(self) -> None:
        """Bring what was written since the last call to the disk."""
        with self._mutex:
            names, self._dirty = sorted(self._dirty), set()
            files = [self._files[name] for name in names]
        for file in files:
            try:
                os.fsync(file.fileno())
            except OSError as exc:
                self.failed = exc

    def close(self) -> None:
        """Sync and give the folder free."""
        self.sync()
        for file in self._files.values():
            file.close()
        self._files.clear()
        (self.folder / BALLAST_FILE).unlink(missing_ok=True)
        os.close(self._lock_fd)


def _reserve(path: Path) -> None:
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, BALLAST_BYTES)


def _mend(path: Path) -> None:
    if not path.exists():
        return
    raw = path.read_bytes()
    whole = raw.rfind(b"\n") + 1
    if whole != len(raw):
        with open(path, "r+b") as file:
            file.truncate(whole)


# --- reading -----------------------------------------------------------------------------------


def read_header(folder: Path) -> RunHeader:
    """run.json of a folder. Raises Refused: no run folder, or one of another version."""
    try:
        raw = (folder / HEADER_FILE).read_bytes()
    except OSError as exc:
        raise Refused(f"{folder} is no run folder", f"{HEADER_FILE}: {exc.strerror}") from exc
    return header_from(raw, str(folder))


def header_from(raw: bytes, name: str) -> RunHeader:
    """run.json. Raises Refused for another version, InvalidSpec for garbage."""

    try:
        data = json.loads(raw)
        version = data.get("format")
        if version != FORMAT_VERSION:
            raise Refused(
                f"{name} is a run of format {version!r}",
                f"this faultctl reads format {FORMAT_VERSION}",
                "use the faultctl that wrote it",
            )
        return RunHeader.model_validate(data)
    except (ValueError, AttributeError, ValidationError) as exc:
        raise InvalidSpec(f"{HEADER_FILE} of {name} is not valid", str(exc)) from exc


def read_records(folder: Path, name: str) -> Iterator[AnyRecord]:
    """The records of one file; a last line without its end is left out. Raises InvalidSpec."""
    try:
        raw = (folder / name).read_bytes()
    except FileNotFoundError:
        return
    yield from records_in(raw, name)


def records_in(raw: bytes, name: str) -> Iterator[AnyRecord]:
    """The records in a file's bytes. Raises InvalidSpec naming the line."""
    for number, line in enumerate(raw.split(b"\n")[:-1], 1):
        try:
            yield parse_record(line)
        except ValidationError as exc:
            raise InvalidSpec(f"line {number} of {name} is not a record", str(exc)) from exc


class Tail:
    """Reads a file of records that somebody else appends to, a call at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def more(self) -> list[AnyRecord]:
        """What came since the last call; a line without its end waits. Raises InvalidSpec."""
        try:
            if self._path.stat().st_size <= self._offset:
                return []
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                raw = file.read()
        except FileNotFoundError:
            return []
        whole = raw[: raw.rfind(b"\n") + 1]
        self._offset += len(whole)
        return list(records_in(whole, self._path.name))
