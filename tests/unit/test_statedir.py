"""The state directory: root's alone, no links, one lock that the kernel drops with its holder."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nodeagent.journal import Journal
from nodeagent.model.errors import Refused
from nodeagent.statedir import (
    JOURNAL_NAME,
    LOCK_NAME,
    OWNER_NAME,
    MutationLock,
    OwnerLock,
    open_private,
    open_state_dir,
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_new_state_directory_is_for_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        state = open_state_dir(tmp_path / "deep" / "state")
        Journal(state).close()
        MutationLock(state).close()
        OwnerLock(state).close()
    finally:
        os.umask(before)
    assert mode(state) == 0o700
    files = {path.name: mode(path) for path in state.iterdir()}
    assert set(files) >= {JOURNAL_NAME, LOCK_NAME, OWNER_NAME}
    assert set(files.values()) == {0o600}


def test_a_directory_that_is_too_open_is_closed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    open_state_dir(state)
    assert mode(state) == 0o700


def test_a_link_in_place_of_the_state_directory_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "state").symlink_to(other)
    with pytest.raises(Refused, match="cannot hold the journal"):
        open_state_dir(tmp_path / "state")
    assert list(other.iterdir()) == []


def test_a_file_in_place_of_the_state_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("mine")
    with pytest.raises(Refused):
        open_state_dir(tmp_path / "state")
    assert (tmp_path / "state").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, 65534, 65534)
    with pytest.raises(Refused, match="65534"):
        open_state_dir(state)


@pytest.mark.parametrize("name", [JOURNAL_NAME, LOCK_NAME, OWNER_NAME])
@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_in_place_of_a_file_is_refused(tmp_path: Path, name: str, dangling: bool) -> None:
    state = open_state_dir(tmp_path / "state")
    victim = tmp_path / "victim"
    if not dangling:
        victim.write_text("precious")
    (state / name).symlink_to(victim)
    opener = {JOURNAL_NAME: Journal, LOCK_NAME: MutationLock, OWNER_NAME: OwnerLock}[name]
    with pytest.raises(Refused, match="symbolic link"):
        opener(state)
    assert victim.exists() != dangling
    assert dangling or victim.read_text() == "precious"


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_a_link_in_place_of_sqlites_own_files_never_leads_out(tmp_path: Path, suffix: str) -> None:
    state = open_state_dir(tmp_path / "state")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (state / f"{JOURNAL_NAME}{suffix}").symlink_to(victim)
    with contextlib.suppress(Refused):
        Journal(state).close()
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("kind", ["fifo", "directory", "hard link"])
def test_what_is_no_plain_file_of_ours_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        (tmp_path / "victim").write_text("precious")
        os.link(tmp_path / "victim", path)
    with pytest.raises(Refused):
        open_private(path, os.O_RDWR | os.O_CREAT)


def test_a_file_that_is_too_open_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    path.chmod(0o666)
    os.close(open_private(path, os.O_RDWR))
    assert mode(path) == 0o600


# --- locks ------------------------------------------------------------------------

HOLD = """
import sys, pathlib
from nodeagent.statedir import MutationLock, OwnerLock
state = pathlib.Path(sys.argv[1])
lock = MutationLock(state)
owner = OwnerLock(state)
with lock.held():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_lock_of_another_process_is_respected_and_goes_with_its_death(tmp_path: Path) -> None:
    state = open_state_dir(tmp_path / "state")
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(state)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    lock = MutationLock(state)
    with pytest.raises(Refused, match="another process holds"), lock.held(deadline_s=0.05):
        pass
    with pytest.raises(Refused, match="another agent") as caught:
        OwnerLock(state, deadline_s=0.05)
    assert str(child.pid) in caught.value.why
    child.kill()
    child.wait()
    with lock.held(deadline_s=5):
        OwnerLock(state, deadline_s=5).close()
    lock.close()


def test_a_lock_taken_twice_by_its_holder_is_held_until_the_outer_end(tmp_path: Path) -> None:
    state = open_state_dir(tmp_path / "state")
    lock, rival = MutationLock(state), MutationLock(state)
    with lock.held():
        with lock.held():
            pass
        with pytest.raises(Refused), rival.held(deadline_s=0.02):
            pass
    with rival.held(deadline_s=0.02):
        pass


def test_waiting_for_the_lock_ends_as_soon_as_it_is_free(tmp_path: Path) -> None:
    state = open_state_dir(tmp_path / "state")
    lock, rival = MutationLock(state), MutationLock(state)
    taken, free = threading.Event(), threading.Event()

    def hold() -> None:
        with lock.held():
            taken.set()
            free.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(10)
    threading.Timer(0.05, free.set).start()
    with rival.held(deadline_s=10):
        assert free.is_set()
    thread.join()
