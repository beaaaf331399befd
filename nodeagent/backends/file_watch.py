"""The step that watches a file: a fault on sectors ends when they are no longer the file's.

inotify(7) tells that something happened; what, is read from the file itself: its inode
and its extents. A file that is written to all the time is looked at twice a second at
most. No descriptor of the file is held, as that would keep the blocks of a deleted one.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Runtime
from nodeagent.bind.extents import fiemap
from nodeagent.clock import boottime_ns
from nodeagent.model.errors import Refused
from nodeagent.model.evidence import FileEvent, NodeEvent
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.block import FileWatch

PAUSE_S = 0.5
IN_MODIFY, IN_ATTRIB, IN_DELETE_SELF, IN_MOVE_SELF = 0x2, 0x4, 0x400, 0x800
IN_IGNORED = 0x8000
_MASK = IN_MODIFY | IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF
_EVENT = struct.Struct("=iIII")
_LIBC = ctypes.CDLL(None, use_errno=True)


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backends of this module."""
    return {FileWatch: FileWatchBackend(runtime.on_event)}


def look(step: FileWatch) -> str:
    """What became of the file: empty, gone, renamed or moved-blocks."""
    try:
        fd = os.open(step.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return "gone"
    try:
        info = os.fstat(fd)
        if info.st_ino != step.inode:
            return "gone"
        if info.st_size <= min(logical for logical, _, _ in step.extents):
            return "gone"
        for logical, physical, length in step.extents:
            if not _lies_there(fd, logical, physical, length):
                return "moved-blocks"
    except OSError as exc:
        return "gone" if exc.errno == errno.ESTALE else ""
    finally:
        os.close(fd)
    return ""


def _lies_there(fd: int, logical: int, physical: int, length: int) -> bool:
    at = logical
    for extent in fiemap(fd, logical, length, sync=False):
        if extent.logical > at or extent.physical - extent.logical != physical - logical:
            return False
        at = extent.logical + extent.length
    return at >= logical + length


class FileWatchBackend:
    """All file watches on one inotify descriptor; its thread starts with the first."""

    def __init__(self, tell: Callable[[str, NodeEvent], None] | None) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._fd = -1
        self._watches: dict[str, tuple[int, FileWatch]] = {}

    def observe(self, fault_id: str, step: FileWatch, peers: Sequence[Peer]) -> Prior:
        """Nothing is changed. Another fault may have the same step."""
        return {"fault": fault_id}

    def status(self, step: FileWatch, prior: Prior, peers: Sequence[Peer]) -> Status:
        """OURS while it is watched for this fault."""
        with self._lock:
            return Status.OURS if prior["fault"] in self._watches else Status.PRIOR

    def apply(self, fault_id: str, step: FileWatch, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        """Watch the file, then check that it is still what was planned. Raises Refused."""
        with self._lock:
            if self._fd < 0:
                self._fd = _LIBC.inotify_init1(os.O_CLOEXEC)
                if self._fd < 0:
                    raise OSError(ctypes.get_errno(), "inotify_init1")
                threading.Thread(target=self._run, name="file-watch", daemon=True).start()
            watch = _LIBC.inotify_add_watch(self._fd, os.fsencode(step.path), _MASK)
            if watch < 0:
                code = ctypes.get_errno()
                raise Refused(f"{step.path} cannot be watched", os.strerror(code), "plan again")
            self._watches[fault_id] = (watch, step)
        what = look(step)
        if what:
            self.undo(fault_id, step, prior, peers)
            raise Refused(f"{step.path} is not as it was planned", what, "plan again")
        return {}

    def undo(self, fault_id: str, step: FileWatch, prior: Prior, peers: Sequence[Peer]) -> None:
        """Stop watching; the descriptor is shared by faults on the same file."""
        with self._lock:
            found = self._watches.pop(fault_id, None)
            if found is not None and all(w != found[0] for w, _ in self._watches.values()):
                _LIBC.inotify_rm_watch(self._fd, found[0])

    def measure(self, fault_id: str, step: FileWatch, prior: Prior) -> dict[str, Any]:
        """Nothing is counted."""
        return {}

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            masks = self._read()
            with self._lock:
                touched = [
                    (fault_id, step, masks[watch])
                    for fault_id, (watch, step) in self._watches.items()
                    if watch in masks
                ]
            for fault_id, step, mask in touched:
                what = "renamed" if mask & IN_MOVE_SELF else look(step)
                if what and self._tell is not None:
                    event = FileEvent(boottime_ns=boottime_ns(), path=step.path, what=what)
                    self._tell(fault_id, event)
            pause.wait(PAUSE_S)

    def _read(self) -> dict[int, int]:
        """Watch descriptor -> what happened since the last read."""
        data = os.read(self._fd, 65536)
        masks: dict[int, int] = {}
        at = 0
        while at < len(data):
            watch, mask, _, size = _EVENT.unpack_from(data, at)
            if not mask & IN_IGNORED:
                masks[watch] = masks.get(watch, 0) | mask
            at += _EVENT.size + size
        return masks
