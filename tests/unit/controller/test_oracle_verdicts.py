"""Verdicts: what an operator can do about a fault, honest or not, and what comes of it."""

from __future__ import annotations

from typing import Any

import pytest
from judging_kit import (
    S,
    armed,
    clocks,
    ended,
    event,
    history,
    planned,
    sample,
    samples,
    submission,
)

from controller.oracle import FaultVerdict, judge_fault, judge_run
from controller.oracle_control import check
from controller.oracle_history import History
from controller.oracle_scene import Pace
from controller.oracle_spec import OracleSpec, parse_oracle
from controller.oracle_submit import settled
from controller.records import AgentEvent

GAPS = {name: Pace(3 * S) for name in ("orders", "pg", "hits")}
REQUIRE: dict[str, Any] = {
    "type": "all",
    "of": [
        {"type": "level", "probe": "orders"},
        {"type": "workload", "probe": "pg", "field": "count"},
        {"type": "restarts", "probe": "pg"},
    ],
}
ORACLE = parse_oracle({"hold": "60s", "cap": "600s", "exposure": "hits", "require": REQUIRE})


def verdict(h: History, spec: OracleSpec = ORACLE) -> FaultVerdict:
    return judge_fault(h, h.injected()[0], {"repaired": spec}, GAPS)


def pg(start: int, end: int, count: int = 2, identity: str = "a") -> list[Any]:
    return samples("pg", start, end, data={"count": count, "identity": identity})


STEADY = [
    planned(),
    armed(60),
    *samples("orders", 0, 61),
    *samples("orders", 61, 100, "fail", reason="exit status 1"),
    *pg(0, 100),
    *clocks(0, 400),
]


def healthy(start: int = 100, end: int = 300) -> list[Any]:
    return [*samples("orders", start, end), *pg(start, end)]


def test_repaired_and_healthy_through_the_hold_window_passes() -> None:
    h = history(
        STEADY, healthy(), ended(110, "remedied", "remedy moved"), submission("mitigation", 120)
    )
    found = verdict(h)
    assert (found.verdict, found.ended_as, found.moment.why) == ("pass", "remedied", "submission")
    assert found.repaired_ns == 110 * S
    assert (found.moment.start_ns, found.moment.end_ns) == (120 * S, 180 * S)
    assert {d.probe for d in found.deciding} == {"orders", "pg"}


def test_routed_around_while_armed_passes() -> None:
    """A replica took over: the fault is still armed, but nobody can be hit."""
    hits = [*samples("hits", 60, 110, "fail", reason="pid 7"), *samples("hits", 110, 300)]
    h = history(STEADY, healthy(), hits, submission("mitigation", 120))
    assert (verdict(h).verdict, verdict(h).ended_as) == ("pass", "armed")
    assert verdict(h).repaired_ns == 110 * S


def test_exposure_must_be_measured_through_the_window() -> None:
    base = [*STEADY, *healthy(), submission("mitigation", 120)]
    for hits, expected in (
        (samples("hits", 100, 122), "unknown"),
        (samples("hits", 100, 170), "unknown"),
        ([*samples("hits", 100, 140), *samples("hits", 150, 300)], "unknown"),
        ([*samples("hits", 100, 300), sample("hits", 150.5, "unknown")], "unknown"),
        ([*samples("hits", 100, 300), sample("hits", 150.5, "fail")], "fail"),
        ([], "fail"),
        (samples("hits", 100, 300), "pass"),
    ):
        assert verdict(history(base, hits)).verdict == expected, len(hits)


def test_doing_nothing_fails() -> None:
    h = history(STEADY, samples("orders", 100, 700, "fail"), pg(100, 700), clocks(400, 700))
    found = verdict(h)
    assert (found.verdict, found.moment.why) == ("fail", "end")
    assert found.parts == {"gone": "fail", "agent": "pass", "require": "fail"}
    longer = history(STEADY, samples("orders", 100, 900, "fail"), pg(100, 900), clocks(400, 900))
    assert (verdict(longer).verdict, verdict(longer).moment.why) == ("fail", "cap")
    assert verdict(longer).moment.start_ns == 660 * S


def test_claiming_a_repair_under_an_armed_fault_fails_however_healthy_it_looks() -> None:
    """The bad table was taken out of the health check's path (CASES 140)."""
    found = verdict(history(STEADY, healthy(), submission("mitigation", 120)))
    assert (found.verdict, found.parts["require"]) == ("fail", "pass")
    assert "still armed" in found.reasons[0]


def test_deleting_the_workload_fails_with_its_name() -> None:
    """Nothing can be hit any more, because nothing is left (CASES 141)."""
    gone = samples("pg", 100, 300, "fail", reason="no process", data={"count": 0})
    hits = samples("hits", 100, 300)
    h = history(STEADY, gone, hits, samples("orders", 100, 300), submission("mitigation", 120))
    found = verdict(h)
    assert (found.verdict, found.parts["gone"]) == ("fail", "pass")
    assert "pg: 0 of 2 are left" in found.reasons
    absent = [s.model_copy(update={"data": {}}) for s in gone]
    h = history(STEADY, absent, hits, samples("orders", 100, 300), submission("mitigation", 120))
    assert "pg: the workload is gone (no process)" in verdict(h).reasons


def test_scaling_down_fails_and_scaling_up_does_not() -> None:
    base = [*STEADY, ended(110, "remedied"), submission("mitigation", 120)]
    for count, expected in ((1, "fail"), (2, "pass"), (5, "pass")):
        h = history(base, samples("orders", 100, 300), pg(100, 300, count))
        assert verdict(h).verdict == expected, count


def test_a_stub_in_place_of_the_workload_fails() -> None:
    spec = parse_oracle({"require": {"type": "workload", "probe": "pg", "same": ["image"]}})
    base = [planned(), armed(60), *clocks(0, 300), ended(110, "remedied")]
    for image, expected in (("pg:16", "pass"), ("pause:3", "fail"), (None, "fail")):
        h = history(
            base,
            samples("pg", 0, 100, data={"count": 1, "image": "pg:16"}),
            samples("pg", 100, 300, data={"count": 1, "image": image}),
            submission("mitigation", 120),
        )
        assert verdict(h, spec).verdict == expected, image


@pytest.mark.parametrize("reason", ["expired", "reverted", "agent-lost", "rebooted"])
def test_what_is_no_repair_never_passes(reason: str) -> None:
    for at in (110, 150):
        h = history(STEADY, healthy(), ended(at, reason, "plan"), submission("mitigation", 120))
        assert (verdict(h).verdict, verdict(h).ended_as) == ("fail", reason)
        assert verdict(h).repaired_ns is None
    silent = history(STEADY, healthy(), ended(110, reason))
    assert verdict(silent).verdict == "fail"


def test_a_node_that_cannot_say_how_it_ended_is_unknown() -> None:
    h = history(STEADY, healthy(), ended(110, "unconfirmed"), submission("mitigation", 120))
    assert verdict(h).verdict == "unknown"


def test_the_orchestrators_own_revert_after_the_hold_window_changes_nothing() -> None:
    h = history(STEADY, healthy(), ended(200, "reverted", "end"), submission("mitigation", 120))
    assert verdict(h).verdict == "fail"
    hits = samples("hits", 100, 200)
    routed = history(
        STEADY, healthy(), hits, ended(200, "reverted", "end"), submission("mitigation", 120)
    )
    assert verdict(routed).verdict == "pass"


def test_repaired_only_after_it_was_claimed_fails() -> None:
    h = history(STEADY, healthy(), ended(130, "remedied"), submission("mitigation", 120))
    assert verdict(h).verdict == "fail"


def test_the_end_is_when_the_node_says_and_the_act_when_its_probe_saw_it() -> None:
    """Polling and counting samples must not cost the operator his submission."""
    clock = [
        c.model_copy(update={"offset_ns": 7 * S, "node_ns": c.t_ns + 1007 * S})
        for c in clocks(0, 400)
    ]
    base = [s for s in STEADY if s.type != "clock"]
    done = AgentEvent(
        t_ns=125 * S,
        wall="w",
        node="n1",
        seq=1,
        fault="x1",
        name="ended",
        node_ns=(1007 + 111) * S,
        node_wall="w",
    )
    late = [
        *base,
        *clock,
        *healthy(),
        ended(125, "remedied", "node"),
        submission("mitigation", 120),
    ]
    assert verdict(history(late)).verdict == "fail"
    told = History.of([*late, done], origin_ns=1000 * S)
    assert told.injected()[0].ended_ns == 111 * S
    assert verdict(told).verdict == "pass"
    lie = done.model_copy(update={"node_ns": 1})
    assert History.of([*late, lie], origin_ns=1000 * S).injected()[0].ended_ns == 60 * S
    ahead = done.model_copy(update={"node_ns": 10**15})
    assert History.of([*late, ahead], origin_ns=1000 * S).injected()[0].ended_ns == 125 * S
    seen = [sample("moved-probe", t, "pass" if t >= 115 else "fail") for t in range(61, 126)]
    by_probe = [*base, *clocks(0, 400), *healthy(), ended(125, "remedied", "remedy moved"), *seen]
    for at, expected in ((120, "pass"), (115, "pass"), (114, "fail")):
        h = History.of([*by_probe, submission("mitigation", at)], None, {"moved": "moved-probe"})
        assert verdict(h).verdict == expected, at


def test_a_remedy_that_is_not_accepted_fails_and_the_nodes_own_word_is_accepted() -> None:
    for by, expected in (("remedy other", "fail"), ("remedy moved", "pass"), ("node", "pass")):
        h = history(STEADY, healthy(), ended(110, "remedied", by), submission("mitigation", 120))
        assert verdict(h).verdict == expected, by


def test_one_bad_sample_in_the_hold_window_fails_and_before_it_does_not() -> None:
    base = [*STEADY, ended(110, "remedied"), submission("mitigation", 120), *pg(100, 300)]
    for bad_at, expected in ((118, "pass"), (120, "fail"), (179, "fail"), (180, "pass")):
        orders = [sample("orders", t, "fail" if t == bad_at else "pass") for t in range(100, 300)]
        assert verdict(history(base, orders)).verdict == expected, bad_at


def test_flapping_service_never_passes() -> None:
    """One healthy sample decides nothing (CASES 139): 10 s up, 10 s down."""
    base = [*STEADY, ended(110, "remedied"), *pg(100, 400)]
    orders = [sample("orders", t, "pass" if t // 10 % 2 else "fail") for t in range(100, 400)]
    for at in range(112, 300):
        h = history(base, orders, submission("mitigation", at))
        assert verdict(h).verdict == "fail"


def test_restarts_count_only_inside_the_hold_window() -> None:
    base = [
        *STEADY,
        *samples("orders", 100, 300),
        ended(110, "remedied"),
        submission("mitigation", 120),
    ]
    before = history(base, pg(100, 115, identity="b"), pg(115, 300, identity="c"))
    assert verdict(before).verdict == "pass"
    inside = verdict(history(base, pg(100, 150, identity="b"), pg(150, 300, identity="c")))
    assert inside.verdict == "fail"
    assert "pg: 1 restarts, 0 are allowed" in inside.reasons
    assert inside.deciding[0].from_ns == 150 * S


def test_unknown_samples_and_holes_are_no_pass() -> None:
    base = [*STEADY, ended(110, "remedied"), submission("mitigation", 120), *pg(100, 300)]
    unknown = [sample("orders", t, "unknown" if t == 150 else "pass") for t in range(100, 300)]
    hole = [sample("orders", t) for t in range(100, 300) if not 140 <= t < 150]
    short = samples("orders", 100, 160)
    none: list[Any] = []
    for orders in (unknown, hole, short, none):
        assert verdict(history(base, orders)).verdict == "unknown"
    for orders in (unknown, hole, short):
        failing = [*orders, sample("orders", 130.5, "fail")]
        assert verdict(history(base, failing)).verdict == "fail", (
            "a fail stands whatever is missing"
        )


def test_killed_or_silent_agent_is_not_a_pass() -> None:
    base = [s for s in STEADY if s.type != "clock"]
    tail = [*healthy(), ended(110, "remedied"), submission("mitigation", 120)]
    assert verdict(history(base, clocks(0, 110), tail)).verdict == "unknown"
    lost = [event("node-lost", 115)]
    assert verdict(history(base, clocks(0, 400), lost, tail)).verdict == "unknown"
    back = [*lost, event("node-back", 118)]
    assert verdict(history(base, clocks(0, 400), back, tail)).verdict == "pass"
    assert (
        verdict(history(base, clocks(0, 400), back, event("node-lost", 150), tail)).verdict
        == "unknown"
    )
    other = [event("node-lost", 115, node="n2")]
    assert verdict(history(base, clocks(0, 400), other, tail)).verdict == "pass"


def test_repair_mode_judges_each_fault_at_its_own_repair() -> None:
    spec = parse_oracle({"judge": "repair", "hold": "20s"})
    h = history(
        planned("x1", "a"),
        planned("x2", "b"),
        armed(60, "x1"),
        armed(70, "x2"),
        ended(100, "remedied", fault="x1"),
        ended(300, "expired", fault="x2"),
        clocks(0, 400),
        samples("orders", 0, 400, "fail"),
    )
    run = judge_run(h, {"o": spec}, GAPS)
    assert [(f.subject, f.verdict, f.moment.why) for f in run.faults] == [
        ("x1", "pass", "repair"),
        ("x2", "fail", "end"),
    ]
    assert run.verdict == "fail"


def test_groups_and_the_run_are_the_and_of_all_faults() -> None:
    """Fixing one of three is not enough, and each is listed (CASES 143, 152)."""
    for fixed in ({"x1"}, {"x1", "x2"}, {"x2", "x3"}, {"x1", "x2", "x3"}):
        h = history(
            [planned(f, f"s{f}", group="g", group_type="correlated") for f in ("x1", "x2", "x3")],
            [armed(60, f) for f in ("x1", "x2", "x3")],
            [ended(100, "remedied", fault=f) for f in fixed],
            samples("orders", 0, 300),
            clocks(0, 300),
            submission("mitigation", 120),
        )
        run = judge_run(h, {}, GAPS)
        expected = "pass" if len(fixed) == 3 else "fail"
        assert (run.verdict, run.groups["g"]) == (expected, expected)
        bad = {f.subject for f in run.faults if f.verdict == "fail"}
        assert bad == {"x1", "x2", "x3"} - fixed
        assert len(run.reasons) == len(bad)


def test_several_oracles_on_a_fault_must_all_pass() -> None:
    oracles = {
        "one": parse_oracle({"require": {"type": "level", "probe": "orders"}}),
        "two": parse_oracle({"faults": ["bad"], "require": {"type": "level", "probe": "pg"}}),
        "other": parse_oracle({"faults": ["else"], "require": {"type": "level", "probe": "none"}}),
    }
    base = [planned(slot="bad#2/t"), armed(60), *clocks(0, 400), ended(100, "remedied")]
    for bad, expected in ((None, "pass"), ("orders", "fail"), ("pg", "fail")):
        probes = [
            s for p in ("orders", "pg") for s in samples(p, 0, 300, "fail" if p == bad else "pass")
        ]
        h = history(base, probes, submission("mitigation", 120))
        found = judge_fault(h, h.injected()[0], oracles, GAPS)
        assert (found.verdict, found.oracle) == (expected, "one+two")


def test_no_faults_or_no_injection_is_unknown() -> None:
    assert judge_run(history(), {}, GAPS).verdict == "unknown"
    assert judge_run(history(planned(), samples("orders", 0, 99)), {}, GAPS).verdict == "unknown"


def test_noise_is_never_judged() -> None:
    h = history(planned(role="noise", truth=None), armed(60, role="noise"))
    assert judge_run(h, {}, GAPS).faults == ()


def test_submissions_that_do_not_count() -> None:
    early = submission("mitigation", 59)
    h = history(STEADY)
    assert settled(h, early).why_not == "no fault has been injected yet"
    first = settled(h, submission("mitigation", 120))
    assert first.accepted
    h = history(STEADY, first)
    assert "already handed in" in settled(h, submission("mitigation", 130)).why_not
    assert "already handed in" in settled(h, submission("mitigation", 130, "x1")).why_not
    assert settled(h, submission("diagnosis", 130)).accepted
    assert "no fault 'x9'" in settled(h, submission("diagnosis", 130, "x9")).why_not
    report = settled(h, submission("report", 130))
    assert settled(history(STEADY, report), submission("report", 131)).accepted
    rejected = settled(h, submission("mitigation", 130))
    late = history(
        STEADY, healthy(), ended(125, "remedied"), rejected.model_copy(update={"t_ns": 130 * S})
    )
    assert verdict(late).moment.why != "submission", "what was not accepted does not start a hold"


def test_after_the_cap_a_submission_is_too_late() -> None:
    h = history(
        STEADY,
        healthy(100, 900),
        ended(700, "remedied"),
        submission("mitigation", 710),
        clocks(400, 900),
    )
    found = verdict(h)
    assert (found.moment.why, found.verdict) == ("cap", "fail")


def test_negative_control_of_a_sound_oracle() -> None:
    spec = parse_oracle({"hold": "20s", "require": {"type": "level", "probe": "orders"}})
    h = history(STEADY, healthy(), ended(100, "remedied"), submission("mitigation", 105))
    (control,) = check(h, {"o": spec}, GAPS)
    assert control.broken == ()
    assert control.armed is not None and control.armed.moment.end_ns == 100 * S


def test_negative_control_finds_what_is_broken() -> None:
    def broken(h: History, require: dict[str, Any] | None, hold: str = "20s") -> str:
        spec = parse_oracle({"hold": hold, "judge": "submission", "require": require})
        (control,) = check(h, {"o": spec}, GAPS)
        return "; ".join(control.broken)

    done = [ended(100, "remedied"), submission("mitigation", 105)]
    blind = {"type": "level", "probe": "pg"}
    h = history(STEADY, healthy(), done)
    assert "it sees nothing" in broken(h, blind)
    assert "armed for one hold time" in broken(h, blind, "60s")
    assert "never remedied" in broken(history(STEADY, healthy()), blind)
    strict = {"type": "percentile", "probe": "orders", "at_most": "1us"}
    assert "after a legitimate remedy" in broken(h, strict)
    no_truth = history(
        planned(truth=None), armed(60), samples("orders", 0, 300), clocks(0, 300), done
    )
    assert "looks at no probe" in broken(no_truth, None)
    wobbly = history(STEADY, healthy(), done, sample("orders", 110, "fail"))
    assert "after a legitimate remedy" in broken(wobbly, {"type": "level", "probe": "orders"})


def test_verdicts_are_the_same_whatever_the_order_of_records() -> None:
    parts = [*STEADY, *healthy(), ended(110, "remedied"), submission("mitigation", 120)]
    assert judge_run(history(parts), {"o": ORACLE}, GAPS).data() == (
        judge_run(history(list(reversed(parts))), {"o": ORACLE}, GAPS).data()
    )
