"""The hidden file on a real file system: allocated, found again, removed, never another's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from nodeagent.backends import fill
from nodeagent.backends.fill import FillBackend
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.steps import Status
from nodeagent.model.steps.fill import FileFill

MIB = 1 << 20


def step_in(folder: Path, **more: Any) -> FileFill:
    known = {"folder": str(folder), "device": os.stat(folder).st_dev, "name": ".faultctl-t-1",
             "how": "take", "value": 3 * MIB}  # fmt: skip
    return FileFill.model_validate(known | more)


def test_bytes_are_allocated_and_removed_twice(tmp_path: Path) -> None:
    step, backend = step_in(tmp_path), FillBackend()
    prior = backend.observe("t", step, ())
    assert backend.status(step, prior, ()) is Status.PRIOR
    backend.apply("t", step, prior, ())
    taken = os.stat(tmp_path / step.name).st_blocks * 512
    assert taken > 0
    assert oct(os.stat(tmp_path / step.name).st_mode & 0o777) == "0o600"
    assert backend.status(step, prior, ()) is Status.OURS
    assert backend.measure("t", step, prior)["file"] == taken
    with pytest.raises(Refused, match="there already"):
        backend.observe("t", step, ())
    backend.undo("t", step, prior, ())
    backend.undo("t", step, prior, ())
    assert backend.status(step, prior, ()) is Status.PRIOR


def test_another_file_system_at_that_place_is_not_looked_at(tmp_path: Path) -> None:
    step, backend = step_in(tmp_path), FillBackend()
    prior = backend.observe("t", step, ())
    (tmp_path / step.name).write_bytes(b"not ours")
    other = step.model_copy(update={"device": step.device + 1})
    with pytest.raises(BackendError, match="not mounted"):
        backend.undo("t", other, prior, ())
    assert (tmp_path / step.name).exists()
    gone = step.model_copy(update={"folder": str(tmp_path / "none")})
    with pytest.raises(BackendError, match="not mounted"):
        backend.status(gone, prior, ())


def test_after_a_boot_it_must_be_mounted_whatever_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, backend = step_in(tmp_path), FillBackend()
    prior = backend.observe("t", step, ()) | {"boot_id": "an earlier one"}
    (tmp_path / step.name).write_bytes(b"x")
    renumbered = step.model_copy(update={"device": step.device + 1})
    with pytest.raises(BackendError, match="not mounted"):
        backend.status(renumbered, prior, ())
    monkeypatch.setattr(fill.os.path, "ismount", lambda path: path == str(tmp_path))
    assert backend.status(renumbered, prior, ()) is Status.OURS
    backend.undo("t", renumbered, prior, ())
    assert not (tmp_path / step.name).exists()


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    step, backend = step_in(tmp_path), FillBackend()
    prior = backend.observe("t", step, ())
    victim = tmp_path / "victim"
    victim.write_bytes(b"kept")
    (tmp_path / step.name).symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        backend.apply("t", step, prior, ())
    assert victim.read_bytes() == b"kept"


def test_the_reserve_of_the_node_is_left(tmp_path: Path) -> None:
    backend = FillBackend()
    with pytest.raises(Refused, match="the node itself needs"):
        backend.observe("t", step_in(tmp_path, how="leave", value=0, reserve=MIB), ())
    with pytest.raises(Refused, match="it is done"):
        backend.observe("t", step_in(tmp_path, how="leave", value=1 << 61), ())
