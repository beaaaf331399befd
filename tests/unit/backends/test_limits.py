"""Limits of a real process and inodes of a real file system: lowered, read back, put back."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.backends import inodes
from nodeagent.backends.inodes import InodeBackend
from nodeagent.backends.limits import DescriptorBackend, lowest_with
from nodeagent.bind.node import Node
from nodeagent.bind.process import start_ticks
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.process import PidScope
from nodeagent.model.steps import Status
from nodeagent.model.steps.fill import InodeFill
from nodeagent.model.steps.limits import DescriptorLimit

OPENER = """import os, sys
for line in sys.stdin:
    try:
        print(os.open('/dev/null', 0), flush=True)
    except OSError as exc:
        print(exc.errno, 'failed', flush=True)
"""


@given(st.sets(st.integers(0, 60)), st.integers(0, 30))
def test_below_the_limit_just_so_many_numbers_are_free(used: set[int], leave: int) -> None:
    limit = lowest_with(sorted(used), leave)
    assert len(set(range(limit)) - used) == leave
    assert limit not in used, "one more that is free would be below a higher limit only"


@pytest.fixture
def opener() -> Iterator[subprocess.Popen[str]]:
    """A process that opens a file for each line that it gets."""
    with subprocess.Popen(
        [sys.executable, "-c", OPENER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        ask(child)
        yield child
        child.kill()


def ask(child: subprocess.Popen[str]) -> str:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    return child.stdout.readline().strip()


def test_a_process_can_open_just_so_many_more(opener: subprocess.Popen[str]) -> None:
    scope = PidScope(pid=opener.pid, start_ticks=start_ticks(Node(), opener.pid))
    step, backend = DescriptorLimit(scope=scope, leave=2, hard=False), DescriptorBackend()
    before = resource.prlimit(opener.pid, resource.RLIMIT_NOFILE)
    prior = backend.observe("t", step, ())
    assert backend.status(step, prior, ()) is Status.PRIOR
    backend.apply("t", step, prior, ())
    backend.apply("t", step, prior, ())
    assert backend.status(step, prior, ()) is Status.OURS
    assert backend.measure("t", step, prior)["left"] == 2
    assert [ask(opener).endswith("failed") for _ in range(3)] == [False, False, True]
    resource.prlimit(opener.pid, resource.RLIMIT_NOFILE, (90, before[1]))
    assert backend.status(step, prior, ()) is Status.FOREIGN
    backend.apply("t", step, prior, ())
    backend.undo("t", step, prior, ())
    backend.undo("t", step, prior, ())
    assert resource.prlimit(opener.pid, resource.RLIMIT_NOFILE) == before
    assert not ask(opener).endswith("failed")
    opener.kill()
    opener.wait()
    assert backend.status(step, prior, ()) is Status.GONE
    with pytest.raises(Refused, match="gone"):
        backend.observe("t", step, ())


def test_another_process_with_the_same_pid_is_not_touched(opener: subprocess.Popen[str]) -> None:
    born = start_ticks(Node(), opener.pid)
    step = DescriptorLimit(scope=PidScope(pid=opener.pid, start_ticks=born - 1), leave=0, hard=True)
    backend = DescriptorBackend()
    with pytest.raises(Refused, match="gone"):
        backend.observe("t", step, ())
    with pytest.raises(BackendError, match="gone"):
        backend.apply("t", step, {"limits": [1024, 4096], "want": 5}, ())
    assert not ask(opener).endswith("failed")


def test_a_hard_limit_that_could_not_be_put_back_is_left(opener: subprocess.Popen[str]) -> None:
    """As root with all capabilities it can be, as anybody else it is refused."""
    status = Path("/proc/self/status").read_text()
    able = int(status.split("CapEff:")[1].split()[0], 16) >> 24 & 1
    before = resource.prlimit(opener.pid, resource.RLIMIT_NOFILE)
    scope = PidScope(pid=opener.pid, start_ticks=start_ticks(Node(), opener.pid))
    step, backend = DescriptorLimit(scope=scope, leave=0, hard=True), DescriptorBackend()
    if not able:
        with pytest.raises(Refused, match="CAP_SYS_RESOURCE"):
            backend.observe("t", step, ())
    else:
        prior = backend.observe("t", step, ())
        backend.apply("t", step, prior, ())
        assert resource.prlimit(opener.pid, resource.RLIMIT_NOFILE) == (prior["want"],) * 2
        assert ask(opener).endswith("failed")
        backend.undo("t", step, prior, ())
    assert resource.prlimit(opener.pid, resource.RLIMIT_NOFILE) == before


def inode_step(folder: Path, **more: Any) -> InodeFill:
    known = {"folder": str(folder), "device": os.stat(folder).st_dev, "name": ".faultctl-t-1",
             "how": "take", "value": 300}  # fmt: skip
    return InodeFill.model_validate(known | more)


def test_inodes_are_taken_and_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [1000]
    monkeypatch.setattr(inodes, "EACH", 100)
    monkeypatch.setattr(inodes, "_inodes", lambda folder: (left[0] - made(tmp_path), 1000))
    step, backend = inode_step(tmp_path), InodeBackend()
    prior = backend.observe("t", step, ())
    assert prior["want"] == 700
    backend.apply("t", step, prior, ())
    assert made(tmp_path) == 300, "the directories count too"
    assert backend.status(step, prior, ()) is Status.OURS
    with pytest.raises(Refused, match="there already"):
        backend.observe("t", step, ())
    backend.apply("t", step, prior, ())  # cut short, and once more
    backend.undo("t", step, prior, ())
    backend.undo("t", step, prior, ())
    assert os.listdir(tmp_path) == []
    left[0] = 200
    with pytest.raises(Refused, match="are free"):
        backend.observe("t", step, ())


def made(folder: Path) -> int:
    return sum(len(folders) + len(files) for _, folders, files in os.walk(folder))


def test_the_reserve_of_the_node_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inodes, "_inodes", lambda folder: (500, 1000))
    with pytest.raises(Refused, match="node itself needs 400"):
        InodeBackend().observe("t", inode_step(tmp_path, reserve=400), ())


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    step, backend = inode_step(tmp_path), InodeBackend()
    prior = backend.observe("t", step, ())
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/kept").touch()
    (tmp_path / step.name).symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        backend.apply("t", step, prior, ())
    assert os.listdir(tmp_path / "victim") == ["kept"]
