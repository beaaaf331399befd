"""The kernel's log as evidence: lines about a disk's sectors since a fault was armed."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable

MAX_LINES = 50


def about_device(line: str, names: Iterable[str]) -> bool:
    """Whether a kernel log line tells of an error of one of these devices (`dm-0`, `vdb1`).

    The name stands alone, or as the journal's thread has it: `dm-0-8` (fs/jbd2/journal.c).
    """
    return "error" in line.lower() and any(
        re.search(rf"(?<![\w/-]){re.escape(name)}(?:-\d+)?(?![\w-])", line) is not None
        for name in names
    )


def message(record: str) -> str:
    """The text of a /dev/kmsg record (Documentation/ABI/testing/dev-kmsg)."""
    head, separator, text = record.partition(";")
    return text.split("\n", 1)[0] if separator else head


class KernelLog:
    """Reads /dev/kmsg from now on, when it is asked; nothing wakes up in between."""

    def __init__(self) -> None:
        self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self._fd, 0, os.SEEK_END)

    def read_new(self) -> list[str]:
        """Lines that have come since the last call."""
        lines = []
        while True:
            try:
                lines.append(message(os.read(self._fd, 8192).decode(errors="replace")))
            except BlockingIOError:
                return lines
            except OSError as exc:
                if exc.errno != errno.EPIPE:  # overwritten before it was read: go on
                    raise

    def close(self) -> None:
        """Close the log."""
        os.close(self._fd)
