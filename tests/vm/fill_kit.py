"""A file system for tests that fill it: made, mounted for everybody, empty of faults at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agentkit import Bench
from cgroup_kit import revert_all


@contextmanager
def mounted(bench: Bench, make: str, at: str) -> Iterator[None]:
    """make: the command that makes it and mounts it there."""
    bench.node.sh(f"mkdir -p {at} && {make} && chmod 777 {at}", timeout=60)
    try:
        yield
    finally:
        revert_all(bench)
        bench.node.sh(f"umount {at}", timeout=60)
