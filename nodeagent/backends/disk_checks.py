"""Steps that look at a disk or its page cache: an O_DIRECT read, an eviction."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Runtime
from nodeagent.backends.dm_nodes import private_node
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


def direct_read(path: Path, offset: int, length: int) -> int:
    """Read with O_DIRECT past every cache; 0, or the errno of a failed read.

    offset and length are bytes and whole logical blocks; a read that ends early at the
    end of a file is a good one. Raises OSError if the file cannot be opened.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    try:
        with mmap.mmap(-1, length) as buffer:  # O_DIRECT wants aligned memory
            try:
                os.preadv(fd, [buffer], offset)
            except OSError as exc:
                return exc.errno or errno.EIO
            return 0
    finally:
        os.close(fd)


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
        with private_node(DevNum(step.major, step.minor)) as node:
            code = direct_read(node, step.sector * 512, step.sectors * 512)
        if bool(code) != step.fails:
            ended = errno.errorcode.get(code, str(code)) if code else "success"
            raise BackendError(
                f"sector {step.sector} of {step.name} does not behave as it should",
                f"a direct read ended with {ended}",
            )
        return {"errno": errno.errorcode.get(code, "") if code else ""}


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
