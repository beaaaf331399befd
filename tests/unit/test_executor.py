"""The executor: intent, act, read back; partial application is undone; conflicts; leases."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from core_kit import FACTS, KIND, AddPart, Core, FakeKernel, HoldLink, Look, SetValue, request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent import reactor as reactor_module
from nodeagent.clock import LONGEST_WAIT_S, lease_ns
from nodeagent.faults import kinds
from nodeagent.model.errors import (
    BackendError,
    Conflict,
    FaultError,
    InvalidSpec,
    Refused,
    StalePlan,
    UnknownFault,
)
from nodeagent.model.evidence import Evidence, FileEvent, IoRecord
from nodeagent.model.plan import Lease
from nodeagent.model.record import EndReason, FaultRow, FaultState
from nodeagent.reactor import Reactor
from nodeagent.watcher import LeaseKeeper, collect

EIO = OSError(5, "Input/output error")


def wait_for(core: Core, fault_id: str, state: str = "ended", seconds: float = 20) -> None:
    """Until the journal says so; fails rather than waits for ever."""
    end = time.monotonic() + seconds
    with core.journal.changed:
        while core.state(fault_id) != state:
            left = end - time.monotonic()
            assert left > 0, f"{fault_id} is {core.state(fault_id)}, not {state}"
            core.journal.changed.wait(min(left, 0.2))


@pytest.fixture
def keeper(core: Core) -> Iterator[LeaseKeeper]:
    found = LeaseKeeper(core.executor, core.journal)
    found.start()
    yield found
    found.stop()


# --- the way of a fault -----------------------------------------------------------


def test_a_plan_touches_nothing(core: Core) -> None:
    before = core.kernel.fingerprint()
    core.executor.plan(request("f-1", SetValue(name="a", value="x"), HoldLink(name="l")))
    assert core.kernel.fingerprint() == before
    assert core.kernel.calls == []
    assert core.journal.faults() == []


def test_the_intent_is_in_the_journal_before_the_kernel_is_touched(core: Core) -> None:
    seen: list[tuple[str, object]] = []

    class Witness(FakeKernel):
        def put(self, name: str, value: object) -> None:
            rows = core.journal.steps("f-1")
            seen.append((core.state("f-1"), rows[0].prior))
            super().put(name, value)

    core.kernel.__class__ = Witness
    core.apply("f-1", SetValue(name="a", value="x"))
    assert seen == [("applying", {"value": "a0"})]


def test_the_guardian_is_told_of_a_deadline_before_the_kernel_is_touched(core: Core) -> None:
    """An agent that hangs in the middle of its first fault is overdue one day as well."""
    seen: list[tuple[str, list[str]]] = []
    core.executor.after_begin = lambda: seen.append((core.state("f-1"), list(core.kernel.calls)))
    core.apply("f-1", SetValue(name="a", value="x"))
    assert [state for state, _ in seen] == ["applying"]
    assert not [call for call in seen[0][1] if call.startswith("apply")]


def test_armed_only_when_the_kernel_says_so(core: Core) -> None:
    class Deaf(FakeKernel):
        def put(self, name: str, value: object) -> None:
            pass

    core.kernel.__class__ = Deaf
    with pytest.raises(BackendError, match="was not armed"):
        core.apply("f-1", SetValue(name="a", value="x"))
    fault = core.journal.fault("f-1")
    assert (fault.state, fault.end_reason) == (FaultState.ENDED, EndReason.FAILED)
    assert "not armed" in fault.error


@pytest.mark.parametrize("error", [EIO, BackendError("no"), KeyError("bug"), ValueError("bug")])
@pytest.mark.parametrize("at", ["apply:b", "applied:b", "status:b", "apply:look"])
def test_partial_application_is_undone_at_once(core: Core, error: Exception, at: str) -> None:
    before = core.kernel.fingerprint()
    core.kernel.fail[at] = [error]
    steps = (
        SetValue(name="a", value="x"),
        AddPart(name="c", part=1),
        HoldLink(name="l"),
        SetValue(name="b", value="y"),
        Look(name="look"),
    )
    with pytest.raises(type(error)):
        core.apply("f-1", *steps)
    assert core.kernel.fingerprint() == before
    fault = core.journal.fault("f-1")
    assert (fault.state, fault.end_reason) == (FaultState.ENDED, EndReason.FAILED)
    assert fault.error
    core.apply("f-2", *steps)  # nothing is in the way of the next one
    assert core.state("f-2") == "armed"


def test_a_refusal_while_observing_leaves_no_trace(core: Core) -> None:
    before = core.kernel.fingerprint()
    with pytest.raises(Refused, match="no object"):
        core.apply("f-1", SetValue(name="a", value="x"), SetValue(name="nothing", value="x"))
    assert core.kernel.fingerprint() == before
    assert core.journal.faults() == []


def test_a_journal_that_cannot_say_armed_undoes_the_fault(core: Core) -> None:
    before = core.kernel.fingerprint()
    core.journal._db.execute(
        "CREATE TEMP TRIGGER no_space BEFORE UPDATE ON main.faults WHEN NEW.state = 'armed'"
        " BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
    )
    with pytest.raises(BackendError, match="cannot be written"):
        core.apply("f-1", SetValue(name="a", value="x"))
    assert core.kernel.fingerprint() == before
    assert core.state("f-1") == "ended"


def test_a_journal_that_takes_no_event_undoes_the_fault_all_the_same(core: Core) -> None:
    before = core.kernel.fingerprint()
    core.kernel.fail["applied:a"] = [EIO]
    core.journal._db.execute(
        "CREATE TEMP TRIGGER no_space BEFORE INSERT ON main.events WHEN NEW.type = 'apply-failed'"
        " BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
    )
    with pytest.raises(OSError, match="Input/output"):
        core.apply("f-1", SetValue(name="a", value="x"))
    assert core.kernel.fingerprint() == before


# --- ids, digests, conflicts --------------------------------------------------------


def test_the_same_id_and_digest_again_is_the_fault_that_is_there(core: Core) -> None:
    one = core.apply("f-1", SetValue(name="a", value="x"))
    asked = request("f-1", SetValue(name="a", value="x"))
    core.kernel.calls.clear()
    assert core.executor.apply(asked, Lease(), one.digest) == one
    assert core.kernel.calls == []


def test_the_same_id_again_after_its_end_is_no_success(core: Core) -> None:
    """Nothing is armed: who gets the old fault as an answer takes it for the new one."""
    one = core.apply("f-1", SetValue(name="a", value="x"))
    asked = request("f-1", SetValue(name="a", value="x"))
    core.executor.revert("f-1")
    with pytest.raises(Conflict, match=r"taken: .* is ended \(reverted\)"):
        core.executor.apply(asked, Lease(), one.digest)
    core.apply("f-2", SetValue(name="b", value="x"))
    core.kernel.put("b", "foreign")
    with pytest.raises(FaultError):
        core.executor.revert("f-2")
    with pytest.raises(Conflict, match="is reverting"):
        core.executor.apply(
            request("f-2", SetValue(name="b", value="x")), Lease(), core.journal.fault("f-2").digest
        )


def test_the_same_id_for_something_else_is_refused(core: Core) -> None:
    core.apply("f-1", SetValue(name="a", value="x"))
    with pytest.raises(Conflict, match="taken"):
        core.executor.apply(request("f-1", SetValue(name="b", value="x")), Lease(), "other")
    core.executor.revert("f-1")
    with pytest.raises(Conflict, match="taken"):
        core.executor.apply(request("f-1", SetValue(name="b", value="x")), Lease(), "other")


@pytest.mark.parametrize("digest", ["", "0" * 64, "é"])
def test_a_plan_that_would_be_another_now_is_stale(core: Core, digest: str) -> None:
    before = core.kernel.fingerprint()
    with pytest.raises(StalePlan):
        core.executor.apply(request("f-1", SetValue(name="a", value="x")), Lease(), digest)
    assert core.kernel.fingerprint() == before
    assert core.journal.faults() == []


def test_two_faults_on_one_object_conflict_by_name(core: Core) -> None:
    core.apply("first", SetValue(name="a", value="x"))
    with pytest.raises(Conflict, match="first") as caught:
        core.executor.plan(request("second", SetValue(name="a", value="y")))
    assert "faultctl revert first" in caught.value.hint
    with pytest.raises(Conflict, match="first"):
        core.apply("second", SetValue(name="a", value="y"))
    core.executor.revert("first")
    core.apply("second", SetValue(name="a", value="y"))


def test_two_faults_compose_only_where_they_do_not_overlap(core: Core) -> None:
    core.apply("first", AddPart(name="a", part=1))
    with pytest.raises(Conflict, match="first"):
        core.apply("second", AddPart(name="a", part=1))
    core.apply("second", AddPart(name="a", part=2))
    assert core.kernel.get("a") == "a0+1x+2x"


def test_one_plan_never_changes_one_object_twice(core: Core) -> None:
    """Cut short between the two, nobody could tell the state from a foreign one."""
    with pytest.raises(FaultError, match="twice"):
        core.executor.plan(
            request("f-1", SetValue(name="a", value="x"), SetValue(name="a", value="y"))
        )


def test_two_controllers_at_once_get_one_fault(core: Core) -> None:
    asked = [request(f"f-{n}", SetValue(name="a", value=f"v{n}")) for n in range(8)]
    digests = [core.executor.plan(a).digest for a in asked]
    outcomes: list[str] = []

    def apply(n: int) -> None:
        try:
            core.executor.apply(asked[n], Lease(), digests[n])
            outcomes.append(f"f-{n}")
        except Conflict:
            outcomes.append("conflict")

    threads = [threading.Thread(target=apply, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [o for o in outcomes if o != "conflict"]
    assert len(outcomes) == 8
    assert len(winners) == 1
    assert core.kernel.get("a") == f"v{winners[0][2:]}"


def test_a_guard_holds_until_it_is_named(core: Core) -> None:
    asked = request("f-1", SetValue(name="a", value="x"), spec={"guarded": True})
    with pytest.raises(Refused, match="guard rail") as caught:
        core.executor.plan(asked)
    assert "--i-know root" in caught.value.hint
    known = asked.model_copy(update={"acknowledge": ("root",)})
    assert core.executor.plan(known).guards == ("root",)


def test_an_unknown_kind_lists_the_known_ones(core: Core) -> None:
    asked = request("f-1").model_copy(update={"kind": "nonsense"})
    with pytest.raises(InvalidSpec, match="nonsense") as caught:
        core.executor.plan(asked)
    assert "latent-sector" in caught.value.why


# --- epochs -----------------------------------------------------------------------


def test_an_agent_that_was_taken_over_can_change_nothing(core: Core, tmp_path: Path) -> None:
    core.apply("f-1", SetValue(name="a", value="x"))
    asked = request("f-2", SetValue(name="b", value="x"))
    digest = core.executor.plan(asked).digest
    successor = Core(tmp_path, core.kernel)
    before = core.kernel.fingerprint()
    lease = core.journal.fault("f-1").lease_until_ns
    for act in (
        lambda: core.executor.apply(asked, Lease(), digest),
        lambda: core.executor.revert("f-1"),
        lambda: core.executor.renew("f-1"),
        lambda: core.executor.recover(),
        lambda: core.executor.replace_step("f-1", 0, SetValue(name="a", value="z")),
    ):
        with pytest.raises(Refused, match="no longer owns"):
            act()
    assert core.kernel.fingerprint() == before
    assert core.journal.fault("f-1").lease_until_ns == lease
    assert successor.executor.recover() == []
    assert core.state("f-1") == "ended"
    assert core.journal.fault("f-1").end_reason is EndReason.AGENT_LOST
    successor.close()


def test_a_guardian_never_touches_the_faults_of_a_successor(core: Core, tmp_path: Path) -> None:
    core.apply("old", SetValue(name="a", value="x"))
    successor = Core(tmp_path, core.kernel)
    successor.apply("new", SetValue(name="b", value="x"))
    assert core.guardian().revert_all(EndReason.AGENT_LOST, core.epoch) == []
    assert (core.state("old"), core.state("new")) == ("ended", "armed")
    assert core.kernel.get("b") == "x"
    successor.close()


# --- leases -----------------------------------------------------------------------


def shorten(core: Core, fault_id: str, lease: float = 3600, hard: float = 3600) -> None:
    now = lease_ns()
    core.journal.update_fault(
        fault_id,
        lease_until_ns=now + int(lease * 1e9),
        hard_end_ns=now + int(hard * 1e9),
    )


def test_a_fault_ends_with_its_lease(core: Core, keeper: LeaseKeeper) -> None:
    before = core.kernel.fingerprint()
    core.apply("f-1", SetValue(name="a", value="x"))
    shorten(core, "f-1", lease=0.05)
    wait_for(core, "f-1")
    assert core.kernel.fingerprint() == before
    assert core.journal.fault("f-1").end_reason is EndReason.EXPIRED


def test_a_renewed_fault_ends_with_its_hard_end(core: Core, keeper: LeaseKeeper) -> None:
    core.apply("f-1", SetValue(name="a", value="x"))
    shorten(core, "f-1", lease=3600, hard=0.3)
    for _ in range(3):
        core.executor.renew("f-1")
    assert core.journal.fault("f-1").lease_until_ns > lease_ns()
    wait_for(core, "f-1")
    assert core.journal.fault("f-1").end_reason is EndReason.EXPIRED


def test_word_from_the_owner_keeps_a_fault(core: Core, keeper: LeaseKeeper) -> None:
    core.apply("f-1", SetValue(name="a", value="x"), lease="1s")
    start = lease_ns()
    while lease_ns() - start < 1_600_000_000:
        core.executor.renew("f-1")
        time.sleep(0.1)
    assert core.state("f-1") == "armed"
    wait_for(core, "f-1")


def test_word_that_comes_while_a_slow_mutation_holds_up_the_end_keeps_a_fault(
    core: Core, keeper: LeaseKeeper
) -> None:
    """Who was told that the lease is renewed can rely on it."""
    core.apply("f-1", SetValue(name="a", value="x"))
    with core.executor.mutation():
        core.journal.update_fault("f-1", lease_until_ns=lease_ns())
        time.sleep(0.3)  # the keeper waits for its turn by now
        core.executor.renew("f-1")
    time.sleep(0.5)  # it has had it
    assert core.state("f-1") == "armed"
    core.journal.update_fault("f-1", lease_until_ns=lease_ns())
    wait_for(core, "f-1")
    assert core.journal.fault("f-1").end_reason is EndReason.EXPIRED


def test_a_lease_is_not_renewed_when_the_revert_was_quicker(core: Core) -> None:
    """Between the look and the write the keeper may have begun."""
    core.apply("f-1", SetValue(name="a", value="x"))
    real = core.journal.fault

    def quicker(fault_id: str) -> FaultRow:
        found = real(fault_id)
        core.journal.fault = real  # type: ignore[method-assign]
        core.executor.revert("f-1")
        return found

    core.journal.fault = quicker  # type: ignore[method-assign]
    with pytest.raises(Refused, match="cannot be renewed"):
        core.executor.renew("f-1")


def test_an_ended_fault_cannot_be_renewed(core: Core) -> None:
    core.apply("f-1", SetValue(name="a", value="x"))
    core.executor.revert("f-1")
    with pytest.raises(Refused, match="cannot be renewed"):
        core.executor.renew("f-1")
    with pytest.raises(UnknownFault):
        core.executor.renew("f-2")


def test_leases_and_hard_ends_have_bounds() -> None:
    for bad in ("0s", "999ms", "8d", "-1s", "5"):
        with pytest.raises(ValueError):
            Lease.model_validate({"duration": bad})
        with pytest.raises(ValueError):
            Lease.model_validate({"hard_end": bad})


def test_a_failed_revert_is_seen_and_tried_again_until_it_works(
    core: Core, keeper: LeaseKeeper
) -> None:
    before = core.kernel.fingerprint()
    core.apply("f-1", SetValue(name="a", value="x"))
    core.kernel.fail["undo:a"] = [EIO, EIO, EIO]
    with pytest.raises(BackendError):
        core.executor.revert("f-1")
    fault = core.journal.fault("f-1")
    assert fault.state is FaultState.REVERTING
    assert "Input/output error" in fault.error
    assert fault.attempts >= 1
    wait_for(core, "f-1")
    ended = core.journal.fault("f-1")
    assert core.kernel.calls.count("undo:a") == 4
    assert core.kernel.fingerprint() == before
    assert ended.error == ""
    assert ended.end_reason is EndReason.REVERTED  # asked for by its owner, whoever did it


def test_retries_back_off(core: Core, keeper: LeaseKeeper) -> None:
    core.apply("f-1", SetValue(name="a", value="x"))
    core.kernel.fail["undo:a"] = [OSError(5, "Input/output error") for _ in range(10_000)]
    shorten(core, "f-1", lease=0)
    time.sleep(1.5)
    tries = core.kernel.calls.count("undo:a")
    assert 2 <= tries <= 6  # at 0, 0.1, 0.3, 0.7, 1.5 s
    core.kernel.fail.clear()
    wait_for(core, "f-1")


def test_retries_do_not_spin_when_the_journal_takes_nothing(
    core: Core, keeper: LeaseKeeper
) -> None:
    core.apply("f-1", SetValue(name="a", value="x"))
    with core.journal._guard:
        core.journal._db.execute(
            "CREATE TEMP TRIGGER no_space BEFORE UPDATE ON main.faults WHEN NEW.state != 'armed'"
            " BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
        )
    shorten(core, "f-1", lease=0)
    time.sleep(1.0)
    with core.journal._guard:
        looks = core.kernel.calls.count("status:a")
        core.journal._db.execute("DROP TRIGGER no_space")
    assert looks <= 12
    assert core.kernel.get("a") == "a0"
    wait_for(core, "f-1")


def test_an_idle_keeper_sleeps(core: Core, keeper: LeaseKeeper) -> None:
    core.apply("f-1", SetValue(name="a", value="x"))
    waits: list[float | None] = []
    real = core.journal.changed.wait

    def counted(timeout: float | None = None) -> bool:
        waits.append(timeout)
        return real(timeout)

    core.journal.changed.wait = counted  # type: ignore[method-assign]
    core.journal.event("", "wake")
    time.sleep(0.5)
    assert len(waits) <= 2
    assert all(w == LONGEST_WAIT_S for w in waits)


# --- reactions --------------------------------------------------------------------


def record(sector: int, op: str = "write", status: int = 0) -> IoRecord:
    return IoRecord(
        boottime_ns=1, device="1:1", sector=sector, sectors=1, op=op, status=status, comm="dd"
    )


@pytest.fixture
def reactor(core: Core) -> Iterator[Reactor]:
    found = Reactor(
        core.executor,
        core.journal,
        lambda fault: collect(core.executor, core.journal, core.backends, fault),
    )
    found.start()
    yield found
    found.stop()


def wait_event(core: Core, type_: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    with core.journal.changed:
        while type_ not in [e.type for e in core.journal.events()]:
            left = end - time.monotonic()
            assert left > 0, [e.type for e in core.journal.events()]
            core.journal.changed.wait(min(left, 0.2))


def test_a_reaction_changes_a_step_and_a_revert_still_returns(core: Core, reactor: Reactor) -> None:
    before = core.kernel.fingerprint()
    core.apply("f-1", AddPart(name="a", part=1), AddPart(name="a", part=2))
    reactor.on_event("f-1", record(2))
    wait_event(core, "healed")
    assert core.kernel.get("a") == "a0+1x+2y"
    core.executor.revert("f-1")
    assert core.kernel.fingerprint() == before


def test_a_remedy_ends_the_fault_as_remedied(core: Core, reactor: Reactor) -> None:
    core.apply("f-1", AddPart(name="a", part=1))
    reactor.on_event("f-1", FileEvent(boottime_ns=1, path="/x", what="gone"))
    wait_for(core, "f-1")
    assert core.journal.fault("f-1").end_reason is EndReason.REMEDIED
    (told,) = [e for e in core.journal.events(0, "f-1") if e.type == "remedied"]
    assert told.data["act_ns"] == 1, "judges count a repair from the act, not from its revert"


def test_a_reaction_that_fails_leaves_the_fault_as_it_was(core: Core, reactor: Reactor) -> None:
    before = core.kernel.fingerprint()
    core.apply("f-1", AddPart(name="a", part=1))
    core.kernel.fail["apply:a"] = [EIO]
    reactor.on_event("f-1", record(1))
    wait_event(core, "reaction-failed")
    assert core.kernel.get("a") == "a0+1x"
    row = core.journal.steps("f-1")[0]
    assert row.next_step is None
    assert row.step == AddPart(name="a", part=1)
    core.executor.revert("f-1")
    assert core.kernel.fingerprint() == before


def test_a_reaction_that_fails_on_a_full_disk_does_not_end_the_agent(
    core: Core, reactor: Reactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    core.apply("f-1", AddPart(name="a", part=1))
    tried = threading.Event()

    def full(fault_id: str, type_: str, data: object = None) -> None:
        tried.set() if type_ == "reaction-failed" else None
        raise BackendError("the journal cannot be written", "database or disk is full")

    with monkeypatch.context() as disk:
        disk.setattr(core.journal, "event", full)
        reactor.on_event("f-1", FileEvent(boottime_ns=1, path="/f", what="gone"))
        assert tried.wait(20)
    reactor.on_event("f-1", FileEvent(boottime_ns=2, path="/f", what="gone"))
    wait_for(core, "f-1")


def test_a_flood_of_hits_drowns_no_end_and_what_is_lost_is_said(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of reads a second, and a file that is removed meanwhile."""
    monkeypatch.setattr(reactor_module, "QUEUE", 10)
    slow = Reactor(
        core.executor,
        core.journal,
        lambda fault: collect(core.executor, core.journal, core.backends, fault),
    )
    core.apply("f-1", AddPart(name="a", part=1))
    slow.on_event("f-1", FileEvent(boottime_ns=1, path="/f", what="gone"))
    for _ in range(25):
        slow.on_event("f-1", record(7, "read"))
    slow.start()
    wait_for(core, "f-1")
    wait_event(core, "events-lost")
    slow.stop()
    assert core.journal.fault("f-1").end_reason is EndReason.REMEDIED
    lost = [e.data for e in core.journal.events() if e.type == "events-lost"]
    assert lost == [{"count": 16}]


def test_events_of_unknown_and_ended_faults_are_dropped(core: Core, reactor: Reactor) -> None:
    core.apply("f-1", AddPart(name="a", part=1))
    core.executor.revert("f-1")
    before = core.kernel.fingerprint()
    reactor.on_event("f-1", record(1))
    reactor.on_event("nobody", record(1))
    core.apply("f-2", AddPart(name="a", part=1))
    reactor.on_event("f-2", record(1, op="read", status=5))
    wait_event(core, "biting")
    core.executor.revert("f-2")
    assert core.kernel.fingerprint() == before


def test_a_kind_that_only_counts_is_looked_at_until_it_bites(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no more then: each look reads all counters of the fault."""
    looks: list[int] = []

    def evidence(_fault: FaultRow) -> Evidence:
        looks.append(len(looks))
        return Evidence(counted=True, hits=1 if len(looks) > 2 else 0, first_hit_ns=7)

    monkeypatch.setitem(kinds(), KIND.name, replace(KIND, polled=True))
    reactor = Reactor(core.executor, core.journal, evidence)
    reactor.start()
    core.apply("f-1", AddPart(name="a", part=1))
    reactor.armed("f-1")
    wait_event(core, "biting")
    assert core.journal.events()[-1].data == {"first_hit_ns": 7}
    assert core.journal.fault("f-1").evidence["hits"] == 1
    before = len(looks)
    time.sleep(0.6)
    reactor.stop()
    assert before == len(looks) == 3


def test_evidence_is_kept_before_what_counts_it_goes(core: Core) -> None:
    kept: list[str] = []
    core.executor.before_revert = lambda fault: kept.append(str(core.kernel.get("a")))
    core.apply("f-1", SetValue(name="a", value="x"))
    core.executor.revert("f-1")
    assert kept == ["x"]
    assert core.executor.revert("f-1") == []
    assert kept == ["x"]


# --- any sequence -----------------------------------------------------------------

ACT = st.tuples(
    st.sampled_from(["apply", "revert", "fail-apply", "fail-undo", "takeover", "recover"]),
    st.integers(0, 3),
    st.sampled_from(["a", "b"]),
)


def do(core: Core, act: str, number: int, n: int, name: str) -> None:
    if act.startswith("fail-"):
        what = {"fail-apply": "status", "fail-undo": "undo"}[act]
        core.kernel.fail[f"{what}:{name}"] = [OSError(5, "no")]
    if act in ("apply", "fail-apply"):
        core.apply(f"f-{number}", AddPart(name=name, part=n), HoldLink(name=f"l{n}{name}"))
    elif act in ("revert", "fail-undo"):
        active = core.journal.faults(active_only=True)
        core.executor.revert(active[n % len(active)].id if active else "nobody")
    else:
        core.executor.recover()


@settings(
    max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(acts=st.lists(ACT, max_size=14))
def test_after_any_sequence_a_successor_finds_its_way_back(
    tmp_path_factory: pytest.TempPathFactory, registered: None, acts: list[tuple[str, int, str]]
) -> None:
    home = tmp_path_factory.mktemp("any")
    kernel = FakeKernel(home / "kernel.json")
    for name in ("a", "b"):
        kernel.put(name, f"{name}0")
    before = kernel.fingerprint()
    core = Core(home, kernel)
    for number, (act, n, name) in enumerate(acts):
        if act == "takeover":
            core.close()
            kernel.drop_links()  # its process is dead
            core = Core(home, kernel)
            core.executor.recover()
        else:
            with suppress(FaultError, OSError):
                do(core, act, number, n, name)
        armed = [f for f in core.journal.faults(active_only=True) if f.state is FaultState.ARMED]
        for fault in armed:  # what is called armed is there
            for row in core.journal.steps(fault.id):
                if isinstance(row.step, AddPart):
                    assert f"+{row.step.part}x" in kernel.get(row.step.name)
    kernel.fail.clear()
    core.executor.recover()
    assert core.journal.faults(active_only=True) == []
    assert kernel.fingerprint() == before
    core.close()
    assert FACTS.root
