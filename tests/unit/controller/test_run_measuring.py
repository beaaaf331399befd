"""Hold windows while a run is played: noise keeps out, and the run ends when all are over."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from judging_kit import WALL, sample, submission
from run_sim import MS, Drive, S, item, plan_of

from controller.experiment import Experiment
from controller.oracle_spec import OracleSpec
from controller.records import ClockOffset, FaultArmed, FaultEnded, RunEvent
from controller.run_measuring import Measuring, Rules, resumed

HOLD = 10
EVERY = 500 * MS


def spec(**more: Any) -> OracleSpec:
    return OracleSpec(**{"hold": timedelta(seconds=HOLD), "cap": timedelta(seconds=300), **more})


class Judged(Drive):
    """A drive with the overseer of hold windows, looked at twice a second as a run does."""

    def watch(self, rules: Rules) -> Judged:
        self.measuring = Measuring(self.core, rules)
        self.told = 0
        return self

    def play(self, until: float, **said: Any) -> Judged:
        """said: moment in seconds -> records of the operator or of probes."""
        words = sorted((float(at[1:].replace("_", ".")), r) for at, r in said.items())
        while self.t < until * S and not self.core.finished:
            self.until((self.t + EVERY) / S)
            while words and words[0][0] * S <= self.t:
                self.measuring.tell([words.pop(0)[1]])
            self.measuring.tell(self.records[self.told :])
            self.told = len(self.records)
            self.perform(self.measuring.look(self.t))
        return self

    def run_out(self) -> None:
        """To the end of the run."""
        self.until(100_000)


def noise(slot: str, start: int, end: int) -> Any:
    return item(slot, start, end, role="noise", service="other")


def drive(*items: Any, rules: Rules | None = None, end: int = 120) -> Judged:
    found = Judged(plan_of(*items, end=end)).begin()
    assert isinstance(found, Judged)
    return found.watch(rules or Rules({"o": spec()}))


def test_noise_is_taken_back_when_the_operator_says_so_and_none_starts_in_the_window() -> None:
    run = drive(item("f", 1, 100), noise("n1", 2, 60), noise("n2", 24, 60), noise("n3", 40, 60),
                rules=Rules({"o": spec()}, early_end=False))  # fmt: skip
    run.play(119, t20=submission("mitigation", 20)).run_out()
    ended = {run.slot(r.fault): r for r in run.of(FaultEnded)}
    assert ended["n1"].by == "oracle-window"
    assert 20 * S <= ended["n1"].t_ns <= 21 * S
    assert run.ends()["n2"] == "limit"
    assert run.armed()["n3"] == pytest.approx(40 * S, abs=S), "after the window it may go on"
    assert ended["f"].by == "plan", "faults are not touched"


def test_noise_that_was_under_way_when_the_window_began_goes_as_soon_as_it_is_there() -> None:
    run = drive(item("f", 1, 100), noise("n", 20, 60), rules=Rules({"o": spec()}, early_end=False))
    run.latency = 3 * S
    run.play(60, t20=submission("mitigation", 20))
    assert run.by()["n"] == "oracle-window"


def test_noise_stays_where_the_experiment_says_so() -> None:
    rules = Rules({"o": spec()}, early_end=False, noise_too=True)
    run = drive(item("f", 1, 100), noise("n", 2, 60), rules=rules)
    run.play(119, t20=submission("mitigation", 20))
    assert run.by()["n"] == "plan"


def test_the_run_ends_after_the_last_hold_window_and_its_last_samples() -> None:
    rules = Rules({"o": spec()}, frozenset({"p"}))
    run = drive(item("f", 1, 100), rules=rules)
    run.play(29, t20=submission("mitigation", 20), t21=sample("p", 29))
    assert not run.core.stopping
    run.play(33)
    assert not run.core.stopping, "a sample of p that began in the window may still come"
    run.play(36, t33=sample("p", 31))
    assert run.core.stopping == "judged"
    run.run_out()
    assert run.by()["f"] == "judged"
    assert run.ends()["f"] == "reverted"


def test_a_probe_that_hangs_does_not_hold_the_run_up_for_ever() -> None:
    run = drive(item("f", 1, 100), rules=Rules({"o": spec()}, frozenset({"p"})))
    run.play(60, t20=submission("mitigation", 20), t21=sample("p", 21))
    assert run.core.finished
    assert run.t < 47 * S


def test_a_fault_that_is_still_to_come_keeps_the_run_going() -> None:
    run = drive(item("f", 1, 40), item("g", 50, 100, service="s2"))
    run.play(49, t20=submission("mitigation", 20))
    assert not run.core.stopping
    run.play(90, t60=submission("mitigation", 60))
    assert run.core.finished, "one word for all that are live judges g as well"


def test_a_word_for_one_fault_judges_no_other() -> None:
    run = drive(item("f", 1, 100), item("g", 1, 100, service="s2"))
    fault = next(s.id for s in run.core.order if s.item.slot == "f")
    run.play(60, t20=submission("mitigation", 20, fault))
    assert not run.core.stopping


def test_without_a_word_the_cap_is_the_moment_and_noise_keeps_out_of_it() -> None:
    rules = Rules({"o": spec(cap=timedelta(seconds=30))})
    run = drive(item("f", 1, 100), noise("n", 5, 90), rules=rules)
    run.play(60)
    ended = {run.slot(r.fault): r for r in run.of(FaultEnded)}
    assert 31 * S <= ended["n"].t_ns <= 32 * S
    assert 41 * S <= ended["f"].t_ns <= 43 * S
    assert run.core.stopping == "judged"


def test_repairs_are_judged_when_they_come_and_what_nobody_repaired_is_not_waited_for() -> None:
    run = drive(item("f", 1, 50), item("g", 1, 60, service="s2"), noise("n", 2, 100),
                rules=Rules({"o": spec(judge="repair")}))  # fmt: skip
    run.play(70)
    assert {"f", "g"} <= set(run.ends())
    assert run.core.stopping == "judged"
    assert run.by()["n"] == "judged", "no oracle measured"


def test_the_agent_is_heard_in_the_window_though_its_fault_is_gone() -> None:
    """Else nobody could tell that it was not killed."""
    run = drive(item("f", 1, 100), item("late", 90, 100, service="s2"))
    run.play(15)
    fault = next(s.id for s in run.core.order if s.item.slot == "f")
    run.nodes["a"].end(fault, "remedied")
    run.play(40, t20=submission("mitigation", 20))
    heard = [r.t_ns // S for r in run.of(ClockOffset) if 20 * S <= r.t_ns < 30 * S]
    assert len(heard) >= 4, heard
    assert not [r for r in run.of(ClockOffset) if 33 * S < r.t_ns < 40 * S], "and then let be"


def test_a_run_with_an_overload_to_judge_is_never_ended_early() -> None:
    about = {"version": 1, "name": "x", "duration": "9s"}
    overload = {"probe": "p", "hold": "2s"}
    group = {"type": "metastable", "faults": ["f"], "overload": overload}
    assert Rules.of(Experiment.model_validate(about)).early_end
    assert not Rules.of(Experiment.model_validate({**about, "early_end": False})).early_end
    assert not Rules.of(Experiment.model_validate({**about, "groups": {"g": group}})).early_end


def test_no_oracle_no_early_end() -> None:
    run = drive(item("f", 1, 50), rules=Rules({}))
    run.play(110, t20=submission("mitigation", 20))
    assert not run.core.stopping


def test_a_word_that_does_not_count_changes_nothing() -> None:
    refused = submission("mitigation", 20).model_copy(update={"accepted": False})
    run = drive(item("f", 1, 100), noise("n", 2, 60))
    run.play(50, t20=refused)
    assert not run.core.stopping
    assert "n" not in run.ends()


def test_take_over_knows_the_windows_of_the_controller_before() -> None:
    run = drive(item("f", 1, 100), noise("n", 30, 60))
    core = run.core
    measuring = Measuring(core, Rules({"o": spec()}))
    fault = next(s.id for s in core.order if s.item.slot == "f")
    armed = FaultArmed(t_ns=S, wall=WALL, fault=fault, role="fault", node="a", mechanism="m",
                       start_ns=S, sent_ns=S)  # fmt: skip
    quiet = RunEvent(t_ns=20 * S, wall=WALL, name="quiet", data={"until_ns": 31 * S})
    resumed(measuring, core, [armed, quiet])
    measuring.tell([submission("mitigation", 20)])
    assert core.quiet_until == 31 * S
    assert measuring.windows() == [("a", (20 * S, 30 * S))]
