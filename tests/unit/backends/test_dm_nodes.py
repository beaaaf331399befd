"""Device nodes that the agent may not open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeagent.backends import dm_nodes
from nodeagent.model.errors import Refused


def test_a_device_filter_is_a_refusal_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EPERM also where root may open everything else."""
    node = tmp_path / "node"
    node.touch()
    dm_nodes.may_be_opened(node)

    def filtered(path: Path, flags: int) -> int:
        raise PermissionError(1, os.strerror(1), str(path))

    monkeypatch.setattr(dm_nodes.os, "open", filtered)
    with pytest.raises(Refused, match="may not open block devices") as caught:
        dm_nodes.may_be_opened(node)
    assert "device filter" in caught.value.hint
