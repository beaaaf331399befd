"""stress as data: how many workers, how much of what, what is refused or asked back."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from cgroup_kit import MIB, NODE, plan
from cgroup_kit import VICTIM as CGROUP
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.encode import stress_ng
from nodeagent.faults import kind_named
from nodeagent.faults.stress import RESERVE
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.kind import Measured
from nodeagent.model.load import LoadBinding
from nodeagent.model.plan import Plan
from nodeagent.model.steps.process import StressRun

ABLE = NODE.model_copy(update={"stress_ng": "stress-ng, version 0.15.06 (gcc 12.2.0, x86_64)"})
VICTIM = LoadBinding(
    path="/victim",
    **{n: getattr(CGROUP, n) for n in type(CGROUP).model_fields if n not in ("values", "disk")},
)
LIMITED = VICTIM.model_copy(
    update={
        "cpu_micro": 500_000,
        "cpu_from": "cpu.max of /victim",
        "memory": 64 * MIB,
        "memory_from": "memory.max of /victim",
        "memory_limited": True,
    }
)
GROUPED = VICTIM.model_copy(update={"oom_group": ("/victim",)})
WHOLE = VICTIM.model_copy(
    update={"hierarchy": "node", "scope": None, "folders": ("/sys/fs/cgroup",), "path": "",
            "controllers": ("cpu", "io", "memory", "pids")}
)  # fmt: skip
OLD = VICTIM.model_copy(
    update={"hierarchy": "v1", "scope": None, "folders": ("/c/cpu/pod", "/c/memory/pod"),
            "controllers": ("cpu", "memory")}
)  # fmt: skip


def planned(spec: dict[str, Any], binding: Any = VICTIM) -> Plan:
    return plan("stress", spec, binding, ABLE)


def run_of(made: Plan) -> StressRun:
    step = made.steps[-1]
    assert isinstance(step, StressRun)
    return step


def option(step: StressRun, name: str) -> str:
    return step.args[step.args.index(name) + 1]


def test_workers_and_load_as_asked() -> None:
    run = run_of(planned({"cpu": 2, "load": "80%"}))
    assert (option(run, "--cpu"), option(run, "--cpu-load")) == ("2", "80")
    assert (run.workers, run.oom_score_adj, run.child) == (2, 1000, "faultctl-stress-t-1")
    assert "--oomable" in run.args
    assert option(run, "--timeout") == "0"
    assert "--oomable" not in run_of(planned({"cpu": 1, "restart": True})).args
    assert "--cpu-load" not in run_of(planned({"cpu": 1})).args


def test_a_share_is_of_the_targets_own_quota_and_limit() -> None:
    run = run_of(planned({"cpu_percent": "50%", "memory_percent": "25%"}, LIMITED))
    assert (option(run, "--cpu"), option(run, "--cpu-load")) == ("1", "25")
    assert option(run, "--vm-bytes") == f"{16 * MIB}B"
    assert (run.memory, run.workers) == (16 * MIB, 2)
    run = run_of(planned({"cpu_percent": "75%"}))  # of the node's two CPUs
    assert (option(run, "--cpu"), option(run, "--cpu-load")) == ("2", "75")


@given(st.fractions("0.01", 64))
def test_load_is_within_half_a_percent_a_worker(cpus: Fraction) -> None:
    found = stress_ng.cpu_load(cpus, 256)
    assert abs(found.cpus - cpus) <= Fraction(found.workers, 200)
    assert found.workers - 1 < cpus or found.workers == 1
    assert 1 <= found.load <= 100


def test_a_smaller_run_differs_in_its_memory_only() -> None:
    run = run_of(planned({"cpu": 1, "memory": "8Mi"}))
    smaller = stress_ng.with_memory(run.args, 4096)
    assert [a for a, b in zip(run.args, smaller, strict=True) if a != b] == [f"{8 * MIB}B"]
    assert option(run.model_copy(update={"args": smaller}), "--vm-bytes") == "4096B"


def test_who_dies_first_is_decided() -> None:
    made = planned({"memory": "8Mi"}, GROUPED)
    assert [step.summary() for step in made.steps[:1]] == [
        "echo 0 > /sys/fs/cgroup/victim/memory.oom.group"
    ]
    made = planned({"memory": "8Mi", "oom_victim": "target"}, GROUPED)
    assert len(made.steps) == 1
    assert run_of(made).oom_score_adj == -1000
    above = GROUPED.model_copy(update={"oom_group": ("/victim", "/")})
    with pytest.raises(Refused, match="killed with the stressor"):
        planned({"memory": "8Mi"}, above)
    assert len(planned({"cpu": 1}, GROUPED).steps) == 1


def test_memory_beyond_a_limit_is_asked_back_and_beyond_the_node_refused() -> None:
    with pytest.raises(Refused) as caught:
        planned({"memory": "64Mi"}, LIMITED)
    assert "--i-know oom" in caught.value.hint
    with pytest.raises(Refused, match="leave the node less"):
        planned({"memory": f"{VICTIM.node_memory - RESERVE + 4096}B"})
    assert run_of(planned({"memory": f"{VICTIM.node_memory - RESERVE}B"})).memory


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"frozen": True}, "frozen"),
        ({"type": "threaded"}, "cgroup.type"),
        ({"cpu_micro": 10_000}, "less than stress-ng can aim at"),
        ({"cpu_micro": 900_000_000}, "256 are allowed"),
    ],
)
def test_where_no_load_can_run(change: dict[str, Any], why: str) -> None:
    with pytest.raises(Refused) as caught:
        planned({"cpu_percent": "40%"}, VICTIM.model_copy(update=change))
    assert why in caught.value.why


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("", "is not installed"),
        ("stress-ng, version 0.13.05 (gcc)", "0.15.0 or newer"),
        ("sh: boom", "0.15.0 or newer"),
    ],
)
def test_the_version_is_checked(version: str, why: str) -> None:
    with pytest.raises(Refused) as caught:
        plan("stress", {"cpu": 1}, facts=NODE.model_copy(update={"stress_ng": version}))
    assert why in caught.value.why


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"load": "50%"},
        {"cpu": 0},
        {"cpu": 257},
        {"cpu": 1, "load": "0%"},
        {"cpu": 1, "load": "2.5%"},
        {"cpu": 1, "cpu_percent": "5%"},
        {"memory": "1Mi", "memory_percent": "5%"},
        {"memory": "4095B"},
        {"cpu_percent": "0%"},
        {"stressor": ["matrix"]},
        {"stressor": ["--exec=1"]},
        {"stressor": ["matrix=1 --all"]},
        {"cpu": 1, "cpu_method": "x y"},
    ],
)
def test_what_is_no_load(spec: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec):
        planned(spec)


def test_other_stressors_by_their_names() -> None:
    run = run_of(planned({"io": 1, "hdd": 2, "sock": 3, "switch": 1, "stressor": ["matrix=4"]}))
    assert run.workers == 11
    assert [option(run, f"--{n}") for n in ("io", "hdd", "sock", "switch", "matrix")] == [
        "1", "2", "3", "1", "4",
    ]  # fmt: skip
    assert option(run, "--hdd-bytes") == f"{128 * MIB}B", "stress-ng divides it by the workers"


def test_evidence_tells_of_deaths_and_of_an_end() -> None:
    step = planned({"cpu": 1}).steps[0]
    data = {"workers": 0, "usage_usec": 5, "held": 0, "memory_grown": 0, "oom_kill": 2, "cpus": 0.1,
            "ended": 3, "said": "no such method"}  # fmt: skip
    spec = kind_named("stress").spec.model_validate({"cpu": 1})
    found = kind_named("stress").evidence(spec, (Measured(step, data),))
    assert found.hits == 2
    assert any("ended with 3: no such method" in line for line in found.statements)
    assert not kind_named("stress").evidence(spec, ()).counted


def test_on_the_node_a_cap_keeps_it_reachable() -> None:
    run = run_of(planned({"cpu_percent": "80%", "memory_percent": "50%"}, WHOLE))
    assert run.limits == (
        ("cpu.max", "180000 100000"),
        ("memory.max", str(WHOLE.node_memory - RESERVE)),
        ("pids.max", str(64 + 8 * 3)),
    )
    assert run.key() == "stress:/sys/fs/cgroup:faultctl-stress-t-1"
    assert run.cpus_micro == 1_600_000
    assert "cpu.max=180000 100000" in run.summary()
    assert run_of(planned({"cpu": 1})).limits == ()
    with pytest.raises(Refused, match=r"2 CPUs are more than 1\.8"):
        planned({"cpu": 2}, WHOLE)
    with pytest.raises(Refused, match="leave the node less"):
        planned({"memory_percent": "100%"}, WHOLE)
    with pytest.raises(Refused, match="guard rail"):
        planned({"memory": "8Mi", "oom_victim": "target"}, WHOLE)
    lacking = WHOLE.model_copy(update={"controllers": ("memory",)})
    with pytest.raises(Refused, match=r"echo \+cpu \+pids > /sys/fs/cgroup"):
        planned({"cpu": 1}, lacking)


def test_on_v1_only_the_controllers_that_are_needed_are_required() -> None:
    run = run_of(planned({"cpu": 1, "memory": "8Mi"}, OLD))
    assert (run.v1, run.folders, run.limits) == (True, OLD.folders, ())
    assert run.place == "/c/cpu/pod"
    only_memory = OLD.model_copy(update={"controllers": ("memory",)})
    with pytest.raises(Refused, match="no cgroup of the controller cpu"):
        planned({"cpu": 1}, only_memory)
    assert planned({"memory": "8Mi"}, only_memory).steps


def test_evidence_holds_what_was_asked_against_what_was_measured() -> None:
    made = planned({"cpu": 2, "load": "80%", "restart": True})
    data = {"workers": 1, "usage_usec": 5, "held": 0, "memory_grown": 0, "oom_kill": 0,
            "cpus": 1.59, "ended": None, "said": "", "restarts": 3, "nr_throttled": 4,
            "throttled_usec": 2_000_000, "seconds": 9.0,
            "stalls": {"cpu": {"some": 3_000_000}}}  # fmt: skip
    spec = kind_named("stress").spec.model_validate({"cpu": 2})
    found = kind_named("stress").evidence(spec, (Measured(made.steps[0], data),))
    said = "; ".join(found.statements)
    for words in ("asked for 1.6 CPUs, measured 1.59", "1 of 2 workers", "again 3 times",
                  "in 4 periods", "held back for 2.00 s", "waited for cpu 3.00 s"):  # fmt: skip
        assert words in said
    assert found.details["asked_cpus"] == 1.6


def test_a_journal_of_before_is_still_read() -> None:
    scope = CGROUP.scope.model_dump()
    old = {"op": "stress_run", "scope": scope, "child": "faultctl-stress-x", "args": ["--cpu", "1"],
           "workers": 1, "oom_score_adj": 1000}  # fmt: skip
    assert StressRun.model_validate(old).place == "/victim"
