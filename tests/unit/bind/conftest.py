from __future__ import annotations

from pathlib import Path

import pytest
from bind_fakes import FakeNode


@pytest.fixture
def fake(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)
