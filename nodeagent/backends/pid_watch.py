"""Tells when processes end, by pidfds (pidfd_open(2)); one thread for all, started with the first.

A tree ends with the last of its processes: once its root has ended, the others are looked
for once a second, as nothing tells of them all.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from dataclasses import dataclass

from nodeagent.bind.node import Node
from nodeagent.bind.process import lives
from nodeagent.clock import boottime_ns
from nodeagent.model.evidence import NodeEvent, ProcessEvent
from nodeagent.model.process import PidScope

PAUSE_S = 1.0


@dataclass(frozen=True)
class _Watch:
    fault_id: str
    scope: PidScope
    left: Callable[[], bool]
    """Whether descendants are still there."""


def _has_ended(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


class PidWatch:
    """Processes of armed faults; `tell` is called from the watch's own thread."""

    def __init__(self, tell: Callable[[str, NodeEvent], None] | None, node: Node) -> None:
        self._tell, self._node = tell, node
        self._lock = threading.Lock()
        self._epoll: select.epoll | None = None
        self._watches: dict[int, _Watch] = {}
        """By pidfd."""
        self._orphans: list[_Watch] = []

    def add(self, fault_id: str, scope: PidScope, left: Callable[[], bool]) -> None:
        """Watch a process. Raises ProcessLookupError when it has ended, or its pid is another's."""
        if self._tell is None:
            return
        fd = os.pidfd_open(scope.pid)
        watch = _Watch(fault_id, scope, left)
        with self._lock:
            self._watches[fd] = watch
            if self._epoll is None:
                self._epoll = select.epoll()
                threading.Thread(target=self._run, name="pid-watch", daemon=True).start()
        # Looked at with the descriptor in hand: the number may be another process's by now.
        if not lives(self._node, scope):
            self.remove(fault_id)
            raise ProcessLookupError(f"process {scope.pid} has ended")
        self._epoll.register(fd, select.EPOLLIN)

    def knows(self, scope: PidScope) -> bool:
        """Whether a process is watched for some fault."""
        with self._lock:
            return any(watch.scope == scope for watch in self._watches.values())

    def remove(self, fault_id: str) -> None:
        """Watch no process of this fault any more; harmless when there is none."""
        with self._lock:
            gone = [fd for fd, watch in self._watches.items() if watch.fault_id == fault_id]
            for fd in gone:
                del self._watches[fd]
                os.close(fd)  # which takes it out of the epoll set
            self._orphans = [w for w in self._orphans if w.fault_id != fault_id]

    def _run(self) -> None:
        assert self._epoll is not None  # noqa: S101 - set before the thread starts
        while True:
            ended = self._epoll.poll(PAUSE_S if self._orphans else None)
            self._say_ended([fd for fd, _ in ended])

    def _say_ended(self, fds: list[int]) -> None:
        with self._lock:
            for fd in fds:
                # Its number may be a later watch's by now: only a pidfd itself says who ended.
                if fd in self._watches and _has_ended(fd):
                    self._orphans.append(self._watches.pop(fd))
                    os.close(fd)
            over = [w for w in self._orphans if not (w.scope.tree and w.left())]
            self._orphans = [w for w in self._orphans if w not in over]
        for watch in over:
            self._say(watch)

    def _say(self, watch: _Watch) -> None:
        assert self._tell is not None  # noqa: S101 - nothing is watched without
        event = ProcessEvent(boottime_ns=boottime_ns(), pid=watch.scope.pid, what="ended")
        self._tell(watch.fault_id, event)
