"""Log probes: lines that were added lately, across rotation and truncation."""

from __future__ import annotations

import os
import re
from collections import deque
from dataclasses import replace
from pathlib import Path

from controller.probes.command import Agents, run
from controller.probes.outcome import Outcome, passed, unknown
from controller.probes.spec import LogProbe

MAX_READ = 4 << 20
"""Bytes that one sample reads; more than that between two samples is not measured."""

ON_NODE = (
    'set -- "$1" "$2" "$3" "$4" $(stat -c "%i %s" -- "$1"); '
    '[ "$5" = "$3" ] && [ "$6" -ge "$4" ] || set -- "$1" "$2" "$5" 0 "$5" "$6"; '
    'echo "$5 $6"; tail -c "+$(($4 + 1))" -- "$1" | head -c "$(($6 - $4))" | '
    'grep -acE -- "$2"; true'
)
"""path, pattern, inode, offset -> `inode size` and the number of matching new lines.

A line that was half written when it was read counts by its first half."""


class LogWatch:
    """Keeps the place in the log between samples. The first sample starts at its end."""

    def __init__(self, spec: LogProbe) -> None:
        self.spec = spec
        self._inode = 0
        self._offset: int | None = None
        self._part = b""
        self._hits: deque[tuple[float, int]] = deque()

    def measure(self, now: float, agents: Agents) -> Outcome:
        """One sample at a time in seconds, of a clock that never goes back."""
        found = self._node(agents) if self.spec.node else self._local()
        if isinstance(found, Outcome):
            return found
        if found:
            self._hits.append((now, found))
        since = now - self.spec.within.total_seconds()
        while self._hits and self._hits[0][0] < since:
            self._hits.popleft()
        matches = sum(count for _, count in self._hits)
        data = {"matches": matches}
        if (matches == 0) == (self.spec.expect == "absent"):
            return passed(**data)
        what = f"{matches} lines match" if matches else "no line matches"
        return Outcome("fail", f"{what} {self.spec.pattern!r}", data)

    def _local(self) -> int | Outcome:
        try:
            with Path(self.spec.path).open("rb") as file:
                return self._read(file.fileno())
        except OSError as exc:
            return unknown(f"{self.spec.path}: {exc.strerror}")

    def _read(self, fd: int) -> int | Outcome:
        info = os.fstat(fd)
        if self._offset is None:
            self._inode, self._offset = info.st_ino, info.st_size
        if info.st_ino != self._inode or info.st_size < self._offset:
            self._inode, self._offset, self._part = info.st_ino, 0, b""
        if info.st_size - self._offset > MAX_READ:
            self._offset, self._part = info.st_size, b""
            return unknown("more was logged than one sample can read")
        text = self._part + os.pread(fd, info.st_size - self._offset, self._offset)
        self._offset = info.st_size
        *lines, self._part = text.split(b"\n")
        pattern = re.compile(self.spec.pattern)
        return sum(1 for line in lines if pattern.search(line.decode(errors="replace")))

    def _node(self, agents: Agents) -> int | Outcome:
        first = self._offset is None
        place = (str(self._inode), str(self._offset or 0))
        command = ("/bin/sh", "-c", ON_NODE, "sh", self.spec.path, self.spec.pattern, *place)
        found = run(command, self.spec.timeout, self.spec.node, agents)
        if found.verdict != "pass":
            return replace(found, verdict="unknown", reason=f"not read: {found.reason}")
        words = str(found.data.get("stdout", "")).split()
        try:
            inode, size, count = (int(word) for word in words)
        except ValueError:
            return unknown(f"not read: {' '.join(words)[:80]!r}")
        self._inode, self._offset = inode, size
        return 0 if first else count
