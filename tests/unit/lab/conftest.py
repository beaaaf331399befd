"""A folder with a short path: Unix sockets are made in it (107 bytes, unix(7))."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        yield Path(folder)
