"""A cgroup that a user names, as a directory of the unified hierarchy."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.bind import process
from nodeagent.bind.process import cgroup_at, scope_at
from nodeagent.model.errors import Refused


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(process, "CGROUPS", tmp_path)
    (tmp_path / "a/b").mkdir(parents=True)
    for name in ("cgroup.controllers", "a/cgroup.procs", "a/b/cgroup.procs"):
        (tmp_path / name).touch()
    return tmp_path


def test_with_and_without_the_mount_point_it_is_the_same(root: Path) -> None:
    for asked in ("/a/b", "a/b", f"{root}/a/b", "/a/./b/"):
        scope = scope_at(cgroup_at(asked, "no"))
        assert (scope.id, scope.level, scope.path) == ((root / "a/b").stat().st_ino, 2, "/a/b")


@pytest.mark.parametrize(
    ("asked", "why"),
    [("/", "every process"), ("/a/..", "every process"), ("/../x", "not below"), ("/c", "no such")],
)
def test_what_is_no_cgroup_below_the_root_is_refused(root: Path, asked: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        cgroup_at(asked, "no")


def test_without_a_unified_hierarchy_it_is_refused(root: Path) -> None:
    (root / "cgroup.controllers").unlink()
    with pytest.raises(Refused, match="unified"):
        cgroup_at("/a", "no")
