from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import core_kit
import pytest
from core_kit import Core, FakeKernel
from hypothesis import HealthCheck, settings

# A slow generator on a busy machine is no finding.
settings.register_profile("busy", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("busy")


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
