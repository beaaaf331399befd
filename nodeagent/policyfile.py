"""A node's policy, read again when its file changes; one that cannot be read allows nothing."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.plan import FaultRequest
from nodeagent.model.policy import Policy, check, namespace_of, policy_from_yaml


class PolicyFile:
    """Threads share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._policy: Policy | None = None

    def check(self, who: str, request: FaultRequest, hard_end: timedelta | None = None) -> None:
        """Raises Refused when the policy does not let `who` do it."""
        check(self._current(), who, request.kind, namespace_of(request.target), hard_end)

    def _current(self) -> Policy:
        with self._lock:
            try:
                status = self._path.stat()
                # A ConfigMap is changed by another inode below a symbolic link.
                now = (status.st_ino, status.st_mtime_ns, status.st_size)
                if self._policy is None or now != self._seen:
                    self._policy, self._seen = None, None
                    self._policy, self._seen = policy_from_yaml(self._path.read_bytes()), now
            except (OSError, InvalidSpec) as exc:
                raise Refused(
                    "no fault is allowed: the policy cannot be read", str(exc),
                    f"see --policy {self._path}",
                ) from exc  # fmt: skip
            return self._policy
