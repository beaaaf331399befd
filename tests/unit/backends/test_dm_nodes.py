"""Device nodes that the agent may not open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent.backends import disk_checks
from nodeagent.backends.disk_checks import ReadCheckBackend
from nodeagent.model.errors import Refused
from nodeagent.model.steps.block import ReadCheck

CHECK = ReadCheck(major=8, minor=0, name="sda", sector=0, sectors=8, fails=True)


@pytest.mark.parametrize("more", [{}, {"differs": True}, {"fails": False, "at_least_ms": 5}])
def test_a_device_filter_is_a_refusal_with_its_reason(
    more: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EPERM also where root may open everything else."""

    @contextmanager
    def private_node(dev: object) -> Iterator[Path]:
        yield tmp_path / "node"

    def filtered(path: Path, flags: int) -> int:
        raise PermissionError(1, os.strerror(1), str(path))

    monkeypatch.setattr(disk_checks, "private_node", private_node)
    monkeypatch.setattr(disk_checks.os, "open", filtered)
    with pytest.raises(Refused, match="may not open block devices") as caught:
        ReadCheckBackend().apply("f-1", CHECK.model_copy(update=more), {}, ())
    assert "device filter" in caught.value.hint
