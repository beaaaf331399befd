"""Units that are down, on a systemd that is simulated: what is started again, from any state."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from nodeagent.backends import unit as module
from nodeagent.backends.unit import KillBackend, StopBackend
from nodeagent.bind import systemd as bind_systemd
from nodeagent.bind.systemd import service_in
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.steps import Status
from nodeagent.model.steps.unit import UnitKill, UnitStop

STEP = UnitStop(unit="db.service")


@dataclass
class Systemd:
    """States of units, who wakes whom, who needs whom."""

    states: dict[str, str]
    relations: dict[tuple[str, str], str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    stopping: bool = False

    def show(self, unit: str, *names: str) -> dict[str, str]:
        state = self.states.get(unit)
        known = {
            "LoadState": "not-found" if state is None else "loaded",
            "ActiveState": state or "inactive",
        }
        return {n: self.relations.get((unit, n), known.get(n, "")) for n in names or tuple(known)}

    def active_states(self, units: tuple[str, ...]) -> dict[str, str]:
        return {unit: self.states[unit] for unit in units if unit in self.states}

    def systemctl(self, *words: str, timeout: float = 0) -> str:
        verb, names = words[0], words[words.index("--") + 1 :]
        self.calls.append(" ".join([verb, *names]))
        for name in names:
            if verb == "start":
                if name not in self.states:
                    raise BackendError(f"Unit {name} not found.")
                served = name.replace(".socket", ".service")
                assert name == served or self.states[served] != "active", "core/socket.c"
                assert self.states[name] != "failed", "StartLimitBurst: reset it first"
                self.states[name] = "active"
            elif verb == "reset-failed":
                self.states[name] = "inactive"
            elif verb == "stop":
                self._stop(name)
            elif verb == "kill":
                self.states[name] = "failed"
        return ""

    def _stop(self, name: str) -> None:
        if name in self.states:
            self.states[name] = "inactive"
        for relation in ("RequiredBy", "BoundBy", "ConsistsOf"):
            for other in self.relations.get((name, relation), "").split():
                self._stop(other)


@pytest.fixture
def systemd(monkeypatch: pytest.MonkeyPatch) -> Systemd:
    made = Systemd(
        {
            "db.service": "active",
            "db.socket": "active",
            "web.service": "active",
            "job.service": "inactive",
            "multi-user.target": "active",
        },
        {
            ("db.service", "TriggeredBy"): "db.socket",
            ("db.service", "RequiredBy"): "web.service job.service multi-user.target",
        },
    )
    for name in ("show", "active_states", "systemctl"):
        monkeypatch.setattr(module, name, getattr(made, name))
    monkeypatch.setattr(module, "is_running", lambda: True)
    monkeypatch.setattr(module, "is_stopping", lambda: made.stopping)
    return made


def test_what_wakes_it_and_what_falls_with_it_come_back_too(systemd: Systemd) -> None:
    before = dict(systemd.states)
    backend = StopBackend()
    prior = backend.observe("f", STEP, ())
    assert prior["others"] == ["db.socket", "multi-user.target", "web.service"]
    assert backend.status(STEP, prior, ()) is Status.PRIOR
    backend.apply("f", STEP, prior, ())
    assert systemd.calls == ["stop db.socket db.service"]
    assert systemd.states["web.service"] == "inactive"
    assert backend.status(STEP, prior, ()) is Status.OURS
    backend.undo("f", STEP, prior, ())
    assert systemd.states == before
    assert "start multi-user.target" in systemd.calls  # alone: its job.service stays down
    assert backend.status(STEP, prior, ()) is Status.PRIOR


@pytest.mark.parametrize("state", ["inactive", "failed", "deactivating", "activating"])
def test_any_state_that_a_killed_agent_leaves_is_ours(systemd: Systemd, state: str) -> None:
    prior = StopBackend().observe("f", STEP, ())
    systemd.states["db.service"] = state
    assert StopBackend().status(STEP, prior, ()) is Status.OURS
    StopBackend().undo("f", STEP, prior, ())
    assert StopBackend().status(STEP, prior, ()) is Status.PRIOR


def test_a_unit_that_was_removed_is_gone(systemd: Systemd) -> None:
    prior = StopBackend().observe("f", STEP, ())
    del systemd.states["db.service"]
    assert StopBackend().status(STEP, prior, ()) is Status.GONE


@pytest.mark.parametrize("other", ["web.service", "db.socket"])
def test_a_unit_that_was_removed_meanwhile_keeps_no_other_down(
    systemd: Systemd, other: str
) -> None:
    """What goes with a unit, or wakes it, may have been uninstalled since."""
    prior = StopBackend().observe("f", STEP, ())
    assert other in prior["others"]
    StopBackend().apply("f", STEP, prior, ())
    del systemd.states[other]
    assert StopBackend().status(STEP, prior, ()) is Status.OURS
    StopBackend().undo("f", STEP, prior, ())
    assert systemd.states["db.service"] == "active"
    assert StopBackend().status(STEP, prior, ()) is Status.PRIOR


def test_on_a_node_that_goes_down_nothing_is_put_back(systemd: Systemd) -> None:
    """A start would be refused there, and the retries would hold up the shutdown."""
    prior = StopBackend().observe("f", STEP, ())
    StopBackend().apply("f", STEP, prior, ())
    assert StopBackend().status(STEP, prior, ()) is Status.OURS
    systemd.stopping = True
    assert StopBackend().status(STEP, prior, ()) is Status.GONE


def test_what_is_down_or_unknown_is_refused(systemd: Systemd) -> None:
    with pytest.raises(Refused, match="inactive already"):
        StopBackend().observe("f", UnitStop(unit="job.service"), ())
    with pytest.raises(Refused, match="there is no unit"):
        StopBackend().observe("f", UnitStop(unit="x.service"), ())


def test_one_that_is_woken_at_once_was_not_stopped(systemd: Systemd) -> None:
    prior = StopBackend().observe("f", STEP, ())
    systemd._stop = lambda name: None  # type: ignore[method-assign]
    with pytest.raises(BackendError, match="active again"):
        StopBackend().apply("f", STEP, prior, ())


def test_a_killed_unit_that_did_not_come_back_is_started(systemd: Systemd) -> None:
    step, backend = UnitKill(unit="db.service", signal="KILL"), KillBackend()
    prior = backend.observe("f", step, ())
    backend.apply("f", step, prior, ())
    assert systemd.states["db.service"] == "failed"
    assert KillBackend().status(step, prior, ()) is Status.OURS  # to the guardian too
    backend.undo("f", step, prior, ())
    assert systemd.states["db.service"] == "active"
    assert backend.status(step, prior, ()) is Status.PRIOR
    assert backend.measure("f", step, prior)["sent"] == 0


def test_rounds_leave_a_unit_that_is_down_alone(systemd: Systemd) -> None:
    step, backend = UnitKill(unit="db.service", signal="TERM", every_ms=1000), KillBackend()
    prior = backend.observe("f", step, ())
    backend.apply("f", step, prior, ())
    rounds = backend._rounds[step.key()]
    rounds.round()
    assert (rounds.sent, rounds.rounds) == (1, 2)
    systemd.states["db.service"] = "active"  # systemd restarted it
    assert backend.status(step, prior, ()) is Status.OURS
    backend.undo("f", step, prior, ())
    assert systemd.calls == ["kill db.service"]


def test_rounds_end_with_the_fault_though_the_unit_was_removed(systemd: Systemd) -> None:
    """When it is installed again nobody may kill it."""
    step, backend = UnitKill(unit="db.service", signal="TERM", every_ms=3_600_000), KillBackend()
    prior = backend.observe("f", step, ())
    backend.apply("f", step, prior, ())
    rounds = backend._rounds[step.key()]
    del systemd.states["db.service"]
    assert backend.status(step, prior, ()) is Status.OURS
    backend.undo("f", step, prior, ())
    assert rounds._thread is not None
    assert not rounds._thread.is_alive()
    assert backend.status(step, prior, ()) is Status.GONE


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("/system.slice/chrony.service", "chrony.service"),
        ("/system.slice/system-getty.slice/getty@tty1.service", "getty@tty1.service"),
        ("/a.slice/x.service/sub/deeper", "x.service"),
        ("/user.slice/user-0.slice/user@0.service/app.slice/x.service", ""),
        ("/kubepods.slice/kubepods-pod1.slice/cri-containerd-ab.scope", ""),
        ("/kubepods/pod1/ab", ""),
        ("/init.scope", ""),
        ("/", ""),
    ],
)
def test_the_service_of_a_cgroup(cgroup: str, unit: str) -> None:
    assert service_in(cgroup) == unit


def test_states_are_those_of_units_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that was removed while it runs there is still something to say."""
    said = """\
Id=db.service
LoadState=loaded
ActiveState=inactive

Id=gone.service
LoadState=not-found
ActiveState=inactive

Id=orphan.service
LoadState=not-found
ActiveState=active
"""
    monkeypatch.setattr(bind_systemd, "systemctl", lambda *words: said)
    states = bind_systemd.active_states(("db.service", "gone.service", "orphan.service"))
    assert states == {"db.service": "inactive", "orphan.service": "active"}
