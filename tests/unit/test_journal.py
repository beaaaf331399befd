"""The journal: on disk before the kernel is touched; never silently damaged, full or too new."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from core_kit import AddPart, Core, SetValue
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent.clock import boot_id
from nodeagent.journal import MAX_EVENTS, Journal
from nodeagent.journal_schema import SCHEMA_VERSION
from nodeagent.model.errors import BackendError, Refused, UnknownFault
from nodeagent.model.record import EndReason, FaultRow, FaultState, StepState
from nodeagent.statedir import JOURNAL_NAME, open_state_dir

pytestmark = pytest.mark.usefixtures("registered")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return open_state_dir(tmp_path / "state")


def row(fault_id: str, **more: Any) -> FaultRow:
    values: dict[str, Any] = {
        "id": fault_id,
        "kind": "t-steps",
        "state": FaultState.APPLYING,
        "plan": {"id": fault_id},
        "digest": "d",
        "owner": "o",
        "epoch": 1,
        "boot_id": boot_id(),
        "lease_ns": 10,
        "lease_until_ns": 20,
        "hard_end_ns": 30,
        "created": "2026-01-01T00:00:00Z",
    }
    return FaultRow.model_validate({**values, **more})


def test_an_intent_reads_back_as_it_was_written(state: Path) -> None:
    journal = Journal(state)
    steps = [
        (SetValue(name="a", value="x"), {"value": "é\n\0 ' \" \\"}),
        (AddPart(name="b", part=3), {}),
    ]
    journal.begin(row("f-1", owner="é ' ; --", evidence={"hits": 1}), steps)
    again = Journal(state)  # another connection sees only what was committed
    assert again.fault("f-1") == row("f-1", owner="é ' ; --", evidence={"hits": 1})
    found = again.steps("f-1")
    assert [(s.step, s.prior) for s in found] == steps
    assert [s.state for s in found] == [StepState.INTENT] * 2
    assert [s.index for s in found] == [0, 1]
    assert found[0].seq < found[1].seq


def test_sequence_numbers_are_never_used_again(state: Path) -> None:
    journal = Journal(state)
    seqs: list[int] = []
    for number in range(3):
        journal.begin(row(f"f-{number}"), [(SetValue(name="a", value="x"), {})])
        seqs += [s.seq for s in journal.steps(f"f-{number}")]
        journal._db.execute("DELETE FROM steps")
    assert seqs == sorted(set(seqs))


def test_a_fault_that_was_begun_twice_is_refused_and_the_first_stays(state: Path) -> None:
    journal = Journal(state)
    journal.begin(row("f-1"), [(SetValue(name="a", value="x"), {"value": 1})])
    with pytest.raises(BackendError, match="cannot be written"):
        journal.begin(row("f-1", owner="other"), [(SetValue(name="b", value="x"), {})])
    assert journal.fault("f-1").owner == "o"
    assert [s.key for s in journal.steps("f-1")] == ["t-set:a"]


def test_half_an_intent_is_never_on_disk(state: Path) -> None:
    journal = Journal(state)
    with pytest.raises(TypeError):
        journal.begin(
            row("f-1"),
            [(SetValue(name="a", value="x"), {}), (SetValue(name="b", value="x"), {"bad": {1}})],
        )
    assert journal.faults() == []
    assert journal._db.execute("SELECT count(*) FROM steps").fetchone()[0] == 0
    assert journal.events() == []
    journal.begin(row("f-1"), [])  # and the next transaction is not in its way


def test_an_unknown_id_is_an_error_of_its_own(state: Path) -> None:
    journal = Journal(state)
    with pytest.raises(UnknownFault) as caught:
        journal.fault("nobody")
    assert caught.value.exit_code == 3
    assert "faultctl" in caught.value.hint


def test_the_intent_is_synced_before_begin_returns(state: Path) -> None:
    """strace-free witness: SQLite tells the pragma that was in force for the commit."""
    journal = Journal(state)
    seen: list[str] = []
    journal._db.set_trace_callback(seen.append)
    journal.begin(row("f-1"), [(SetValue(name="a", value="x"), {})])
    journal._db.set_trace_callback(None)
    order = [s.split("(")[0].strip() for s in seen]
    assert order[0] == "PRAGMA synchronous=FULL"
    assert order[1] == "BEGIN IMMEDIATE"
    assert order[-1] == "COMMIT"
    assert journal._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


# --- bad files --------------------------------------------------------------------


def test_a_journal_of_a_newer_version_is_refused_and_not_touched(state: Path) -> None:
    journal = Journal(state)
    journal._db.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    journal.close()
    before = (state / JOURNAL_NAME).read_bytes()
    with pytest.raises(Refused, match="another version") as caught:
        Journal(state)
    assert caught.value.hint
    assert (state / JOURNAL_NAME).read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to have a header" * 40, b"\0" * 8192]
)
def test_a_file_that_is_no_journal_is_refused_and_kept(state: Path, content: bytes) -> None:
    path = state / JOURNAL_NAME
    path.write_bytes(content)
    with pytest.raises(Refused, match="cannot be used"):
        Journal(state)
    assert path.read_bytes() == content


def test_a_journal_with_a_broken_page_is_refused_and_kept(state: Path) -> None:
    journal = Journal(state)
    for number in range(200):
        journal.event(f"f-{number}", "noise", {"text": "x" * 200})
    journal.close()
    path = state / JOURNAL_NAME
    data = bytearray(path.read_bytes())
    assert len(data) > 5 * 4096
    data[-3 * 4096 : -2 * 4096] = os.urandom(4096)
    path.write_bytes(data)
    with pytest.raises(Refused, match="cannot be used") as caught:
        Journal(state)
    assert "doctor" in caught.value.hint
    assert path.read_bytes() == bytes(data)


def test_a_step_of_an_unknown_sort_is_an_error_with_a_way_out(state: Path) -> None:
    journal = Journal(state)
    journal.begin(row("f-1"), [(SetValue(name="a", value="x"), {})])
    journal._db.execute("UPDATE steps SET step=?", ('{"op": "from_the_future", "v": 9}',))
    with pytest.raises(BackendError, match="does not know") as caught:
        journal.steps("f-1")
    assert "from_the_future" in caught.value.why


def test_a_closed_journal_is_an_error_and_no_crash(state: Path) -> None:
    journal = Journal(state)
    journal.close()
    with pytest.raises(BackendError):
        journal.faults()
    with pytest.raises(BackendError):
        journal.event("", "x")


# --- a full disk ------------------------------------------------------------------


def fill(journal: Journal) -> None:
    """No page can be added any more: SQLITE_FULL, as on a full disk."""
    pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
    journal._db.execute(f"PRAGMA max_page_count={pages}")


def free(journal: Journal) -> None:
    journal._db.execute("PRAGMA max_page_count=1000000")


BIG = {"text": "x" * 100_000}


def test_a_full_disk_is_said_as_such_and_leaves_the_journal_usable(state: Path) -> None:
    journal = Journal(state)
    fill(journal)
    with pytest.raises(BackendError, match="cannot be written") as caught:
        journal.event("f-1", "big", BIG)
    assert "full" in caught.value.why
    assert journal.events() == []
    free(journal)
    journal.event("f-1", "big", BIG)
    assert [e.type for e in journal.events()] == ["big"]


def test_with_a_full_disk_a_fault_is_refused_and_nothing_is_changed(core: Core) -> None:
    before = core.kernel.fingerprint()
    fill(core.journal)
    with pytest.raises(BackendError, match="cannot be written"):
        core.apply("f-1", SetValue(name="a", value="x" * 100_000))
    assert core.kernel.fingerprint() == before
    assert not any(call.startswith("apply") for call in core.kernel.calls)
    assert core.journal.faults() == []


def test_with_a_full_disk_a_revert_still_cleans_the_kernel(core: Core) -> None:
    before = core.kernel.fingerprint()
    core.apply("f-1", SetValue(name="a", value="x"), AddPart(name="b", part=1))
    core.journal._db.execute(
        "CREATE TEMP TRIGGER no_space BEFORE UPDATE ON main.faults"
        " BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
    )
    core.journal._db.execute(
        "CREATE TEMP TRIGGER no_room BEFORE UPDATE ON main.steps"
        " BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
    )
    with pytest.raises(BackendError, match="cannot be written"):
        core.executor.revert("f-1")
    assert core.kernel.fingerprint() == before
    assert core.state("f-1") == "armed"  # the journal could not be told
    core.journal._db.execute("DROP TRIGGER no_space")
    core.journal._db.execute("DROP TRIGGER no_room")
    results = core.executor.revert("f-1")
    assert {r.result for r in results} == {"already"}
    assert core.state("f-1") == "ended"


FULL_TMPFS = """
import sys, pathlib, subprocess
from core_kit import *
home = pathlib.Path(sys.argv[1])
with registered():
    kernel = FakeKernel(home.parent / "kernel.json")
    kernel.put("a", "a0")
    for number in range(40):
        kernel.put(f"b{number}", "b0")
    core = Core(home, kernel)
    before = kernel.fingerprint()
    core.apply("held-1", SetValue(name="a", value="x"))
    ballast = (home / "ballast").open("wb", buffering=0)
    try:
        while True:
            ballast.write(bytes(4096))
    except OSError as exc:
        print("full", exc.errno)
    refused = 0
    for number in range(40):
        armed = kernel.fingerprint()
        try:
            core.apply(f"more-{number}", SetValue(name=f"b{number}", value="y" * 3000))
        except BackendError:
            refused += 1
            break
    print("refused", refused, kernel.fingerprint() == armed)
    said = set()
    for fault in core.journal.faults(active_only=True):
        try:
            core.executor.revert(fault.id)
            said.add("told")
        except BackendError as exc:
            said.add(exc.why.rpartition(": ")[2])
    print(sorted(said))
    print("clean", kernel.fingerprint() == before)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_on_a_file_system_that_is_full_faults_are_refused_and_reverts_work(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", mount]).returncode:
        pytest.skip("tmpfs cannot be mounted here")
    script = "from nodeagent.model.errors import BackendError\n" + FULL_TMPFS
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    try:
        done = subprocess.run(
            [sys.executable, "-c", script, str(mount)],
            capture_output=True, text=True, timeout=60, env=env,
        )  # fmt: skip
    finally:
        subprocess.run(["umount", "-l", mount], check=True)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0] == "full 28"
    assert said[1] == "refused 1 True"
    assert said[2] in ("['told']", "['database or disk is full']")
    assert said[3] == "clean True"


# --- events -----------------------------------------------------------------------


def test_events_come_in_order_and_by_fault(state: Path) -> None:
    journal = Journal(state)
    for number in range(10):
        journal.event(f"f-{number % 2}", "tick", {"n": number})
    assert [e.data["n"] for e in journal.events()] == list(range(10))
    assert [e.data["n"] for e in journal.events(fault_id="f-1")] == [1, 3, 5, 7, 9]
    seqs = [e.seq for e in journal.events()]
    assert [e.seq for e in journal.events(after=seqs[6])] == seqs[7:]
    assert journal.events(after=1 << 64) == []
    assert len(journal.events(limit=3)) == 3


def test_events_do_not_grow_without_bound(state: Path) -> None:
    journal = Journal(state)
    journal._db.execute("UPDATE sqlite_sequence SET seq=?", (MAX_EVENTS * 2 - 5,))
    journal.event("f", "first")
    journal._db.execute(
        "UPDATE sqlite_sequence SET seq=? WHERE name='events'", (MAX_EVENTS * 2 - 1,)
    )
    journal._db.execute("UPDATE events SET seq=7")
    journal.event("f", "second")
    assert [e.type for e in journal.events()] == ["second"]


@settings(
    max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    data=st.dictionaries(
        st.text(), st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists)
    )
)
def test_any_json_data_survives_in_events(state: Path, data: dict[str, Any]) -> None:
    journal = Journal(state)
    try:
        journal.event("f", "data", data)
        assert journal.events()[-1].data == json.loads(json.dumps(data))
    finally:
        journal.close()


def test_waiters_are_woken_by_every_write(state: Path) -> None:
    journal = Journal(state)
    woken = threading.Event()

    def wait() -> None:
        with journal.changed:
            ready.set()
            journal.changed.wait(10)
        woken.set()

    ready = threading.Event()
    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait(10)
    journal.event("f", "tick")
    assert woken.wait(10)
    thread.join()


def test_two_processes_write_at_the_same_time(state: Path) -> None:
    Journal(state).close()
    script = (
        "import sys, pathlib\nfrom nodeagent.journal import Journal\n"
        "j = Journal(pathlib.Path(sys.argv[1]))\n"
        "for n in range(40): j.event(sys.argv[2], 'tick', {'n': n})\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", script, str(state), name]) for name in ("x", "y")
    ]
    assert [child.wait(60) for child in children] == [0, 0]
    journal = Journal(state)
    for name in ("x", "y"):
        assert [e.data["n"] for e in journal.events(fault_id=name)] == list(range(40))


def test_epochs_only_grow(state: Path) -> None:
    journal = Journal(state)
    assert journal.epoch() == 0
    assert [journal.next_epoch() for _ in range(3)] == [1, 2, 3]
    assert Journal(state).epoch() == 3


def test_states_move_with_an_event_each(state: Path) -> None:
    journal = Journal(state)
    journal.begin(row("f-1"), [])
    journal.set_state("f-1", FaultState.ARMED, {"mechanism": "t"}, armed_ns=5)
    journal.set_state("f-1", FaultState.ENDED, end_reason=EndReason.REVERTED, ended_ns=9)
    found = journal.fault("f-1")
    assert (found.state, found.end_reason, found.armed_ns, found.ended_ns) == (
        FaultState.ENDED, EndReason.REVERTED, 5, 9,
    )  # fmt: skip
    assert [e.type for e in journal.events()] == ["intent", "armed", "ended"]
    assert journal.faults(active_only=True) == []


def test_the_database_is_no_code(state: Path) -> None:
    """Rows are JSON and plain columns: an independent reader understands them."""
    journal = Journal(state)
    journal.begin(row("f-1"), [(SetValue(name="a", value="x"), {"value": "a0"})])
    journal.close()
    with sqlite3.connect(state / JOURNAL_NAME) as db:
        step, prior = db.execute("SELECT step, prior FROM steps").fetchone()
    assert json.loads(step) == {"v": 1, "op": "t_set", "name": "a", "value": "x"}
    assert json.loads(prior) == {"value": "a0"}
