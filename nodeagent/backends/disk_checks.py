"""Steps that look at a disk or its page cache: an O_DIRECT read, an eviction."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Runtime
from nodeagent.backends.dm_nodes import past_the_device_filter, private_node
from nodeagent.backends.pagecache import evict
from nodeagent.bind.node import Node
from nodeagent.bind.procs import opened_by
from nodeagent.encode.dm import DevNum
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.block import CacheDrop, ReadCheck


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backends of this module."""
    return {ReadCheck: ReadCheckBackend(), CacheDrop: CacheDropBackend()}


PATIENCE_S = 1.0
DIFFERS_TRIES = 8
DELAY_TRIES = 3
JIFFY_MS = 10
"""The longest tick of a kernel (CONFIG_HZ=100): a timer may be early by one."""


def direct_read(path: Path, offset: int, length: int) -> int:
    """Read with O_DIRECT past every cache; 0, or the errno of a failed read.

    offset and length are bytes and whole logical blocks; a read that ends early at the
    end of a file is a good one. Raises OSError if the file cannot be opened.
    """
    return direct_bytes(path, offset, length)[0]


def direct_bytes(path: Path, offset: int, length: int) -> tuple[int, bytes]:
    """As direct_read, with what was read."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    try:
        return _read(fd, offset, length)
    finally:
        os.close(fd)


def _read(fd: int, offset: int, length: int) -> tuple[int, bytes]:
    with mmap.mmap(-1, length) as buffer:  # O_DIRECT wants aligned memory
        try:
            count = os.preadv(fd, [buffer], offset)
        except OSError as exc:
            return exc.errno or errno.EIO, b""
        return 0, buffer[:count]


def timed_read(path: Path, offset: int, length: int, at_least_ms: int) -> float:
    """Milliseconds that a direct read took; when it still waits after a second, those.

    The read then goes on by itself in a thread, so that nobody waits for minutes.
    Raises OSError if the file cannot be opened.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)

    def read() -> None:
        try:
            _read(fd, offset, length)
        finally:
            os.close(fd)

    started = time.monotonic()
    reader = threading.Thread(target=read, name="timed-read", daemon=True)
    reader.start()
    long = at_least_ms / 1000 > PATIENCE_S
    reader.join(PATIENCE_S if long else None)
    elapsed = (time.monotonic() - started) * 1000
    return elapsed if not (long and reader.is_alive()) else float(at_least_ms)


class _Look:
    """What steps have in common that change nothing which a workload could notice."""

    def observe(self, fault_id: str, step: Any, peers: Sequence[Peer]) -> Prior:
        """Nothing is captured, since nothing is changed."""
        return {}

    def status(self, step: Any, prior: Prior, peers: Sequence[Peer]) -> Status:
        """There is nothing to take back."""
        return Status.PRIOR

    def undo(self, fault_id: str, step: Any, prior: Prior, peers: Sequence[Peer]) -> None:
        """Never needed."""

    def measure(self, fault_id: str, step: Any, prior: Prior) -> dict[str, Any]:
        """What was found stays in the step's outcome."""
        return {}


class ReadCheckBackend(_Look):
    """Armed only when the kernel says so: the sector is read and must fail, or must not."""

    def apply(self, fault_id: str, step: ReadCheck, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        """Read the sectors. Raises BackendError when the read does not end as promised."""
        offset, length = step.sector * 512, step.sectors * 512
        with past_the_device_filter(), private_node(DevNum(step.major, step.minor)) as node:
            if step.at_least_ms:
                return self._late(step, self._slowest(step, node))
            if step.byte is not None:
                return self._byte(step, *direct_bytes(node, offset, length))
            if step.differs:
                reads = {direct_bytes(node, offset, length) for _ in range(DIFFERS_TRIES)}
                return self._differs(step, len(reads))
            code = direct_read(node, offset, length)
        if bool(code) != step.fails:
            ended = errno.errorcode.get(code, str(code)) if code else "success"
            raise BackendError(
                f"sector {step.sector} of {step.name} does not behave as it should",
                f"a direct read ended with {ended}",
            )
        return {"errno": errno.errorcode.get(code, "") if code else ""}

    @staticmethod
    def _slowest(step: ReadCheck, node: Path) -> float:
        """Of a few reads: dm-delay counts ticks, and where ticks were late it is early once."""
        took = 0.0
        for _ in range(DELAY_TRIES):
            took = max(
                took, timed_read(node, step.sector * 512, step.sectors * 512, step.at_least_ms)
            )
            if took + JIFFY_MS >= step.at_least_ms:
                break
        return took

    @staticmethod
    def _late(step: ReadCheck, took_ms: float) -> Outcome:
        if took_ms + JIFFY_MS < step.at_least_ms:
            raise BackendError(
                f"{step.name} is not slow",
                f"a direct read took {took_ms:.1f} ms, {step.at_least_ms} ms were asked",
            )
        return {"took_ms": round(took_ms, 1)}

    @staticmethod
    def _byte(step: ReadCheck, code: int, data: bytes) -> Outcome:
        nth, value = step.byte or (0, 0)
        if code or len(data) < nth or data[nth - 1] != value:
            found = "no such byte" if len(data) < nth else str(data[nth - 1])
            raise BackendError(
                f"reads of {step.name} are not corrupted",
                f"byte {nth} of a direct read is {found}, not {value}"
                + (f" ({errno.errorcode.get(code, code)})" if code else ""),
            )
        return {"byte": nth, "value": value}

    @staticmethod
    def _differs(step: ReadCheck, kinds: int) -> Outcome:
        if kinds < 2:
            raise BackendError(
                f"reads of {step.name} are not corrupted",
                f"{DIFFERS_TRIES} direct reads of sector {step.sector} were all the same",
            )
        return {"different_reads": kinds}


class CacheDropBackend(_Look):
    """Drops the cached copies of a file's ranges, and says what stayed."""

    def apply(self, fault_id: str, step: CacheDrop, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        """Evict range by range. Raises Refused if the file went away."""
        try:
            fd = os.open(step.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as exc:
            raise Refused(f"{step.path} cannot be opened any more", str(exc), "plan again") from exc
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise Refused(f"{step.path} is no regular file any more", "", "plan again")
            found = [evict(fd, offset, length) for offset, length in step.ranges]
            users = opened_by(Node(), info.st_dev, info.st_ino).pids
        finally:
            os.close(fd)
        before = sum(r.cached_before for r in found)
        after = sum(r.cached_after for r in found)
        said = [
            f"page cache: {before} of {sum(r.total_pages for r in found)} pages of the range were "
            f"cached, {after} are after the eviction"
        ]
        said += [r.note for r in found if r.note]
        others = [pid for pid in users if pid != os.getpid()]
        if others:
            names = ", ".join(_named(pid) for pid in others[:5])
            said.append(
                f"open in {names}: copies in a program's own memory "
                "(such as shared buffers) are not affected"
            )
        return {"statements": said, "cached_before": before, "cached_after": after}


def _named(pid: int) -> str:
    try:
        comm = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        comm = "?"
    return f"{comm} ({pid})"
