"""A file that is replaced for a while: the same inode comes back, wherever it was cut short."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from nodeagent.backends import kept_file
from nodeagent.backends.kept_file import KeptFile
from nodeagent.model.errors import BackendError, Refused


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "config.yaml"
    made.write_bytes(b"a: \xff\x00b\n")
    made.chmod(0o640)
    os.utime(made, ns=(1_000_000_007, 2_000_000_009))
    return made


def all_of(path: Path) -> tuple[Any, ...]:
    info = path.stat()
    return (path.read_bytes(), info.st_mode, info.st_mtime_ns, info.st_ino, info.st_nlink,
            sorted(os.listdir(path.parent)))  # fmt: skip


def test_there_and_back_twice(path: Path) -> None:
    before, file = all_of(path), KeptFile(str(path), "t-1")
    prior = file.observe()
    for _ in range(2):
        file.replace(b"ours", prior)
        assert path.read_bytes() == b"ours"
        assert path.stat().st_mode == before[1]
        assert not file.is_as_before(prior)
    with pytest.raises(Refused, match="there already"):
        file.observe()
    for _ in range(2):
        file.put_back(prior)
        assert file.is_as_before(prior)
        assert file.kept.exists()
    for _ in range(2):
        file.release()
    assert all_of(path) == before


@pytest.mark.parametrize("call", ["link", "rename", "fsync", "unlink"])
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("phase", ["replace", "put_back"])
def test_cut_short_anywhere_it_comes_back(
    path: Path, call: str, nth: int, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, file = all_of(path), KeptFile(str(path), "t-1")
    prior = file.observe()
    if phase == "put_back":
        file.replace(b"ours", prior)
    seen, real = [0], getattr(os, call)

    def dies(*args: Any, **more: Any) -> Any:
        seen[0] += 1
        if seen[0] == nth:
            raise KeyboardInterrupt
        return real(*args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(kept_file.os, call, dies)
        try:
            if phase == "replace":
                file.replace(b"ours", prior)
            else:
                file.put_back(prior)
        except KeyboardInterrupt:
            assert path.read_bytes() in (before[0], b"ours"), "never in between"
    file.put_back(prior)
    file.release()
    assert all_of(path) == before


def test_a_copy_that_was_removed_or_edited_comes_from_the_journal(path: Path) -> None:
    before, file = all_of(path), KeptFile(str(path), "t-1")
    prior = file.observe()
    file.replace(b"ours", prior)
    file.kept.write_bytes(b"edited")
    file.put_back(prior)
    file.release()
    assert all_of(path)[:3] == before[:3]
    assert all_of(path)[4:] == before[4:]
    file.replace(b"ours", prior)
    file.kept.unlink()
    file.put_back(prior)
    file.release()
    assert all_of(path)[:3] == before[:3]


def test_what_cannot_be_kept_is_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be read"):
        KeptFile(str(tmp_path / "none"), "t-1").observe()
    with pytest.raises(Refused, match="cannot be read"):
        KeptFile(str(tmp_path), "t-1").observe()
    path.write_bytes(b"x" * (kept_file.MOST + 1))
    with pytest.raises(Refused, match="larger"):
        KeptFile(str(path), "t-1").observe()
    prior: dict[str, Any] = {"xattrs": {}, "owner": [0, 0], "mode": 0o600}
    with pytest.raises(BackendError, match="was not changed"):
        KeptFile(str(tmp_path / "none"), "t-1").replace(b"x", prior)
