"""No QEMU outlives its owner: the supervisor, with a stand-in for QEMU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from controller.lab import store, supervise
from nodeagent.model.errors import InvalidSpec, Refused

SCRIPT = Path(supervise.__file__)


def alive(pid: int) -> bool:
    try:
        supervise.start_time(pid)
    except (ProcessLookupError, FileNotFoundError):
        return False
    return True


def wait_for(check: Any, what: str, seconds: float = 15.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := check():
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {seconds} s")


def begin(home: Path, **launch: Any) -> dict[str, int]:
    """Start a supervisor on `sleep`, as node.py would; returns its pids.json."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "launch.json").write_text(json.dumps({"argv": ["sleep", "600"], **launch}))
    subprocess.Popen([sys.executable, "-E", "-s", "-S", str(SCRIPT), str(home)])
    pids: dict[str, int] = json.loads(
        wait_for(lambda: (home / "pids.json").exists() and (home / "pids.json").read_text(), "pids")
    )
    assert alive(pids["qemu"]) and alive(pids["supervisor"])
    return pids


def test_dies_with_its_owner_and_cleans_up(tmp_path: Path) -> None:
    owner = subprocess.Popen(["sleep", "600"])
    start = supervise.start_time(owner.pid)
    pids = begin(tmp_path / "n", owner={"pid": owner.pid, "start": start})
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    wait_for(lambda: not alive(pids["qemu"]), "QEMU's end")
    wait_for(lambda: not (tmp_path / "n").exists(), "the folder's end")


def test_another_process_with_the_owners_pid_is_no_owner(tmp_path: Path) -> None:
    home = tmp_path / "n"
    home.mkdir()
    owner = {"pid": os.getpid(), "start": 1}
    (home / "launch.json").write_text(json.dumps({"argv": ["sleep", "600"], "owner": owner}))
    argv = [sys.executable, "-E", "-s", "-S", str(SCRIPT), str(home)]
    done = subprocess.run(argv, capture_output=True, timeout=20)
    assert done.returncode != 0 and b"another process" in done.stderr
    assert not (home / "pids.json").exists()


def test_qemu_dies_with_a_killed_supervisor(tmp_path: Path) -> None:
    pids = begin(tmp_path / "n", ttl=600)
    os.kill(pids["supervisor"], signal.SIGKILL)
    wait_for(lambda: not alive(pids["qemu"]), "QEMU's end")


def test_time_to_live(tmp_path: Path) -> None:
    pids = begin(tmp_path / "n", ttl=0.5)
    wait_for(lambda: not alive(pids["qemu"]), "QEMU's end")
    end = wait_for(lambda: store.Entry(tmp_path / "n").read("end.json"), "end.json")
    assert end["reason"] == "its time to live was over"


def test_stop_and_state(tmp_path: Path) -> None:
    entry = store.Entry(tmp_path / "n")
    pids = begin(entry.home, ttl=600)
    assert entry.supervisor == pids["supervisor"] and entry.state == "running"
    entry.stop()
    assert not alive(pids["qemu"]) and entry.supervisor is None
    assert entry.state == "ended: it was asked to end"
    entry.stop()


def test_says_how_qemu_ended(tmp_path: Path) -> None:
    entry = store.Entry(tmp_path / "n")
    pids = begin(entry.home, ttl=600)
    os.kill(pids["qemu"], signal.SIGKILL)
    wait_for(lambda: entry.supervisor is None, "the supervisor's end")
    assert entry.state == "ended: QEMU ended with -9"


def test_names_are_taken_once(monkeypatch: pytest.MonkeyPatch, short_path: Path) -> None:
    monkeypatch.setenv("FAULTCTL_STATE", str(short_path))
    me = {"pid": os.getpid(), "start": supervise.start_time(os.getpid())}
    store.create("n", {"maker": me})
    with pytest.raises(Refused, match="runs already"):
        store.create("n", {"maker": me})
    store.find("n").remove()
    store.create("n", {"maker": {"pid": os.getpid(), "start": 1}})  # its maker is dead
    entry = store.create("n", {"maker": me})
    begin(entry.home, ttl=600)
    with pytest.raises(Refused, match="runs already"):
        store.create("n", {"maker": me})
    entry.stop()
    store.create("n", {"maker": me}), "a dead namesake makes room"


@pytest.mark.parametrize("name", ["none", "../lab/n", "..", ""])
def test_unknown_names(monkeypatch: pytest.MonkeyPatch, short_path: Path, name: str) -> None:
    monkeypatch.setenv("FAULTCTL_STATE", str(short_path))
    with pytest.raises(InvalidSpec):
        store.find(name)
