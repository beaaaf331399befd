from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import core_kit
import pytest
from core_kit import Core, FakeKernel


@pytest.fixture
def registered() -> Iterator[None]:
    with core_kit.registered():
        yield


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    found = FakeKernel(tmp_path / "kernel.json")
    for name in ("a", "b", "c"):
        found.put(name, f"{name}0")
    return found


@pytest.fixture
def core(tmp_path: Path, kernel: FakeKernel, registered: None) -> Iterator[Core]:
    found = Core(tmp_path, kernel)
    yield found
    found.close()
