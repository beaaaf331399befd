"""The kubelet's own files in a node's fingerprint."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

_KUBELET = Path("/var/lib/kubelet")
_STATE = "_state"
"""Ends the names of the kubelet's notes on its pods (allocated_pods_state, cpu_manager_state,
...), which it writes anew with every pod."""


def kubelet_files() -> list[str]:
    """The kubelet's own files with all that a revert has to bring back, inode and mtime too."""
    found = []
    files = (p for p in _KUBELET.glob("*") if p.is_file() and not p.name.endswith(_STATE))
    for path in sorted(files):
        info, data = path.stat(), path.read_bytes()
        marks = sorted(f"{name}={os.getxattr(path, name)!r}" for name in os.listxattr(path))
        found.append(
            f"{path.name} {stat.filemode(info.st_mode)} {info.st_uid}:{info.st_gid} "
            f"{info.st_ino} {info.st_mtime_ns} {hashlib.sha256(data).hexdigest()} {' '.join(marks)}"
        )
    return found
