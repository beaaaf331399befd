"""Processes as a made-up /proc shows them; no root, no kernel of ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeagent.bind import clock
from nodeagent.bind import process as bp
from nodeagent.bind.kubelet import kubelets
from nodeagent.bind.node import Node
from nodeagent.model.errors import FaultError, InvalidSpec, Refused


def add(proc: Path, pid: int, parent: int, **more: str) -> None:
    """One process; the name has what breaks naive parsers of stat."""
    home = proc / str(pid)
    (home / "fd").mkdir(parents=True)
    flags, state, start = more.get("flags", "0"), more.get("state", "S"), more.get("start", "77")
    fields = [state, str(parent), "0", "0", "0", "0", flags, *["0"] * 12, start, "0"]
    (home / "stat").write_text(f"{pid} (a) b) c) {' '.join(fields)}\n")
    (home / "status").write_text(f"Name:\tx\nTgid:\t{more.get('tgid', pid)}\n")
    (home / "comm").write_text(more.get("comm", "worker") + "\n")
    elf = more.get("elf", "\x02")
    (home / "exe").write_bytes(b"\x7fELF" + elf.encode() + b"rest")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    add(tmp_path, 1, 0, comm="init")
    add(tmp_path, 100, 1)
    add(tmp_path, 101, 100, comm="pause")
    add(tmp_path, 102, 101, elf="\x01")
    add(tmp_path, 200, 1)
    return Node(proc=tmp_path)


def test_start_and_descendants(node: Node) -> None:
    assert bp.start_ticks(node, 100) == 77
    assert bp.descendants(node, 100) == (100, 101, 102)
    assert bp.descendants(node, 200) == (200,)


def test_a_binding_says_what_is_to_be_known(node: Node) -> None:
    os.symlink("anon_inode:[io_uring]", node.proc / "101/fd/5")
    tree = bp._bind_pid(node, 100, True, None)
    assert tree.scope.model_dump() == {"pid": 100, "start_ticks": 77, "tree": True}
    assert (tree.processes, tree.compat, tree.io_uring) == (3, (102,), (101,))
    assert tree.node_agents == ("pause (101)",)
    alone = bp._bind_pid(node, 100, False, None)
    assert (alone.processes, alone.compat, alone.node_agents) == (1, (), ())


def test_a_name_of_any_bytes_stops_nobody(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel cuts a name after 15 bytes, in the middle of a character too."""
    for file in ("comm", "stat", "status"):
        path = node.proc / "101" / file
        path.write_bytes(path.read_bytes().replace(b"pause", b"caf\xc3").replace(b"(a", b"(\xc3"))
    assert bp.descendants(node, 100) == (100, 101, 102)
    assert bp._bind_pid(node, 101, False, None).comm == "caf\\xc3"
    assert bp.agents_among(node, (1, 101)) == ()
    monkeypatch.setattr(clock.systemd, "is_running", lambda: False)
    assert clock._keepers(node) == ((), ())
    assert kubelets(node) == []


@pytest.mark.parametrize(
    ("pid", "more", "error", "words"),
    [
        (1, {}, Refused, "PID 1"),
        (999, {}, Refused, "no such process"),
        (300, {"flags": str(0x00200000)}, Refused, "kernel thread"),
        (301, {"state": "Z"}, Refused, "ended"),
        (302, {"tgid": "100"}, InvalidSpec, "thread of process 100"),
        (303, {"parent": "self"}, Refused, "faultd itself"),
    ],
)
def test_who_is_refused(
    node: Node, pid: int, more: dict[str, str], error: type[FaultError], words: str
) -> None:
    if more:
        parent = os.getpid() if more.get("parent") else 1
        add(node.proc, pid, parent, **{k: v for k, v in more.items() if k != "parent"})
    with pytest.raises(error, match=words):
        bp._bind_pid(node, pid, False, None)


def test_a_device_by_its_number_or_its_path(node: Node, tmp_path: Path) -> None:
    assert bp._bind_pid(node, 100, False, "259:3").device == (259, 3)
    assert bp._bind_pid(node, 100, False, None).device is None
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidSpec, match="no block device"):
        bp._bind_pid(node, 100, False, str(tmp_path / "file"))
    with pytest.raises(Refused, match="No such file"):
        bp._bind_pid(node, 100, False, "/dev/none")
