"""Cgroup files laid out in a folder: pids.max lowered to what is there, refused forks, PSI."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.backends.cgroup import CgroupWriteBackend, pids_refused, stalls
from nodeagent.backends.limits import PidsBackend
from nodeagent.bind import cgroup
from nodeagent.model.errors import Refused
from nodeagent.model.process import CgroupScope
from nodeagent.model.steps import Status
from nodeagent.model.steps.cgroup import CgroupWrite
from nodeagent.model.steps.limits import PidsLeave

FILES = {
    "pids.max": "500",
    "pids.current": "7",
    "pids.events": "max 2",
    "cpu.max": "max 100000",
    "cpu.stat": "usage_usec 5\nnr_throttled 1\nnew_key x\n",
    "cpu.pressure": "some avg10=0.00 total=1000\nfull avg10=0.00 total=0\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cgroup, "CGROUPS", tmp_path)
    made = tmp_path / "pod"
    (made / "inner").mkdir(parents=True)
    for name, text in FILES.items():
        (made / name).write_text(text)
    (made / "inner/pids.events").write_text("max 5")
    return made


def scope(folder: Path) -> CgroupScope:
    return CgroupScope(id=folder.stat().st_ino, level=1, path="/pod")


def test_pids_are_lowered_to_what_is_there_and_put_back(folder: Path) -> None:
    step, backend = PidsLeave(scope=scope(folder), leave=3), PidsBackend()
    prior = backend.observe("t", step, ())
    assert (prior["value"], prior["want"]) == ("500", "10")
    assert backend.status(step, prior, ()) is Status.PRIOR
    (folder / "pids.max").write_text("")  # the kernel's file does not keep what was there
    backend.apply("t", step, prior, ())
    assert backend.status(step, prior, ()) is Status.OURS
    (folder / "inner/pids.events").write_text("max 9")
    assert backend.measure("t", step, prior)["refused"] == 4
    (folder / "pids.max").write_text("40")
    assert backend.status(step, prior, ()) is Status.FOREIGN
    (folder / "pids.max").write_text("")
    backend.undo("t", step, prior, ())
    assert backend.status(step, prior, ()) is Status.PRIOR


def test_a_limit_that_holds_already_and_a_cgroup_that_went(folder: Path) -> None:
    step, backend = PidsLeave(scope=scope(folder), leave=493), PidsBackend()
    with pytest.raises(Refused, match="500 already"):
        backend.observe("t", step, ())
    other = step.model_copy(update={"scope": scope(folder).model_copy(update={"id": 1})})
    with pytest.raises(Refused, match="gone"):
        backend.observe("t", other, ())
    prior = {"value": "500", "want": "10", "refused": 0}
    assert backend.status(other, prior, ()) is Status.GONE
    backend.undo("t", other, prior, ())
    assert (folder / "pids.max").read_text() == "500", "another cgroup at that path is not touched"


def test_refused_forks_are_found_where_the_kernel_counts_them(folder: Path) -> None:
    assert pids_refused(scope(folder)) == 7, "until 6.10: where they failed"
    (folder / "pids.events.local").write_text("max 0")
    assert pids_refused(scope(folder)) == 2, "later: where the limit was"


def test_psi_and_unknown_keys(folder: Path) -> None:
    assert stalls(scope(folder)) == {"cpu": {"some": 1000, "full": 0}}
    step = CgroupWrite(scope=scope(folder), file="cpu.max", value="5 9")
    backend = CgroupWriteBackend()
    prior = backend.observe("t", step, ())
    (folder / "cpu.pressure").write_text("some avg10=9.00 total=4000 new=1\n")
    (folder / "cpu.stat").write_text("usage_usec 9\nnr_throttled 4\n")
    seen = backend.measure("t", step, prior)
    assert seen["stalls"] == {"cpu": {"some": 3000}}
    assert seen["counters"] == {"usage_usec": 4, "nr_throttled": 3}
    del prior["stalls"]  # as an older agent wrote it
    assert backend.measure("t", step, prior)["stalls"] == {}
