"""Who can still be hit: real processes, looked at through /proc."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nodeagent.bind import exposed as exposed_module
from nodeagent.bind.exposed import _of_file_system, _Things, exposed
from nodeagent.bind.node import Node
from nodeagent.bind.process import start_ticks

NODE = Node()
CODE = """
import mmap, os, sys
how, path = sys.argv[1:]
if how == "cwd":
    os.chdir(path)
elif how != "none":
    fd = os.open(path, os.O_RDONLY)
    if how == "mapped":
        held = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        os.close(fd)
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def user(how: str, path: Path) -> Iterator[int]:
    words = [sys.executable, "-c", CODE, how, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child.pid
        child.kill()


def plan(binding: dict[str, Any], target: str = "pid") -> dict[str, Any]:
    return {"kind": "sim", "binding": binding, "target": {"type": target}}


def pids(binding: dict[str, Any]) -> dict[int, str]:
    found = exposed(NODE, plan(binding))
    assert found.known
    return {w.pid: w.how for w in found.workloads}


@pytest.mark.parametrize(("how", "expected"), [("open", "file"), ("mapped", "file"), ("none", "")])
def test_who_has_the_file_open_or_mapped(tmp_path: Path, how: str, expected: str) -> None:
    path = tmp_path / "table"
    path.write_bytes(b"x" * 8192)
    status = path.stat()
    test = _of_file_system(_Things(frozenset(), (status.st_dev, status.st_ino)))
    with user(how, path) as pid:
        found = test(Path(f"/proc/{pid}"))
        assert (found or "") == expected


def test_a_directory_or_another_file_of_the_volume(tmp_path: Path) -> None:
    test = _of_file_system(_Things(frozenset({tmp_path.stat().st_dev}), (0, 1)))
    with user("cwd", tmp_path) as pid:
        assert test(Path(f"/proc/{pid}")) == "volume"
    elsewhere = _of_file_system(_Things(frozenset({1 << 40})))
    with user("cwd", tmp_path) as pid:
        assert elsewhere(Path(f"/proc/{pid}")) is None


def test_a_process_by_its_start_time_and_its_descendants(tmp_path: Path) -> None:
    with user("none", tmp_path) as pid:
        scope = {"pid": pid, "start_ticks": start_ticks(NODE, pid)}
        assert pids({"scope": scope}) == {pid: "scope"}
        assert pids({"scope": {**scope, "start_ticks": 1}}) == {}, "a later one of that pid"
        me = {"pid": os.getppid(), "start_ticks": start_ticks(NODE, os.getppid()), "tree": True}
        assert os.getpid() not in pids({"scope": me}), "the agent itself never counts"
    assert pids({"scope": scope}) == {}
    words = ["sh", "-c", "sleep 60 & echo $!; wait"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        alone = {"pid": parent.pid, "start_ticks": start_ticks(NODE, parent.pid)}
        assert pids({"scope": alone}) == {parent.pid: "scope"}
        both = {parent.pid: "scope", child: "scope"}
        assert pids({"scope": {**alone, "tree": True}}) == both
        os.kill(child, signal.SIGKILL)


def test_a_net_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposed_module, "MAX_WORKLOADS", 1 << 20)  # a host has many processes
    inode = os.stat("/proc/self/ns/net").st_ino
    with user("none", tmp_path) as pid:
        found = exposed(NODE, plan({"netns": {"inode": inode}}), seconds=60)
        assert (pid, "netns") in {(w.pid, w.how) for w in found.workloads}
    assert pids({"netns": {"inode": 1}}) == {}


def test_pids_of_ours_do_not_count(tmp_path: Path) -> None:
    with user("none", tmp_path) as pid:
        scope = {"scope": {"pid": pid, "start_ticks": start_ticks(NODE, pid)}}
        assert exposed(NODE, plan(scope), (pid,)).workloads == ()


def test_what_is_not_known_is_said_and_the_node_is_everybody() -> None:
    found = exposed(NODE, plan({"something": 1}))
    assert (found.known, found.workloads) == (False, ())
    everybody = exposed(NODE, plan({}, "node"))
    assert [w.how for w in everybody.workloads] == ["node"]


def test_a_scan_that_is_cut_short_says_so() -> None:
    assert not exposed(NODE, plan({"netns": {"inode": 1}}), seconds=-1.0).complete
