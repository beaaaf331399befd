"""Noise: in its own rhythm, seeded, and never in a fault's way."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_sim import S, item, plan_of

from controller.experiment import Experiment
from controller.experiment_targets import TargetEntry
from controller.kube.kinds import cluster_kinds
from controller.noise import (
    CYCLE_NS,
    LIFE_NS,
    MARGIN_NS,
    NoiseKind,
    NoiseProfile,
    NoiseSource,
    Surroundings,
    catalogue,
    chosen,
    measured_windows,
    with_noise,
)
from controller.run_plan import RunPlan
from nodeagent.faults import kinds
from nodeagent.model.errors import InvalidSpec
from nodeagent.model.plan import FaultRequest
from nodeagent.model.planner import parse_request


def entry(service: str, node: str = "a") -> TargetEntry:
    target = {"type": "device", "device": f"/dev/{service}"}
    return TargetEntry(node=node, service=service, target=target)


TARGETS = {f"t{n}": entry(f"s{n}", "ab"[n % 2]) for n in range(6)}
# A kind that exists in every version stands for any noise.
KINDS = {
    name: NoiseKind(
        about="",
        kind="latent-sector",
        scope=scope,  # type: ignore[arg-type]
        types=("device",),
        duration=duration,
    )
    for name, scope, duration in (
        ("one", "target", None),
        ("two", "target", "45s"),
        ("three", "node", None),
    )
}


def source(profile: NoiseProfile, seed: int = 1, **around: Any) -> NoiseSource:
    surroundings = Surroundings(**{"faults": (), "end_ns": 3600 * S, **around})
    return NoiseSource(profile, seed, surroundings, TARGETS, KINDS)


def test_paper_has_exactly_two_every_300_s_for_120_s() -> None:
    noise = source(NoiseProfile("paper")).draw()
    starts = sorted({i.start_ns for i in noise.items})
    assert starts == list(range(0, 3600 * S, 300 * S))
    for start in starts:
        cycle = [i for i in noise.items if i.start_ns == start]
        assert len(cycle) == 2
        assert len({i.service for i in cycle}) == 2
        for found in cycle:
            assert found.end_ns - start == (45 * S if found.name == "two" else LIFE_NS)
    assert noise.missing == ()


@pytest.mark.parametrize(("anchor", "period"), [("start", 300), ("end", 420)])
def test_code_has_up_to_two_and_its_cool_down_an_anchor(anchor: Any, period: int) -> None:
    noise = source(NoiseProfile("code", anchor)).draw()
    starts = sorted({i.start_ns for i in noise.items})
    assert starts == list(range(0, 3600 * S, period * S))
    counts = {sum(i.start_ns == start for i in noise.items) for start in starts}
    assert counts == {1, 2}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 600), st.integers(0, 5)), max_size=10),
    st.integers(0, 1 << 60),
)
def test_noise_never_touches_what_is_under_a_fault(
    faults: list[tuple[int, int, int]], seed: int
) -> None:
    items = [
        item(f"f{n}", at, at + life, "ab"[which % 2], service=f"s{which}")
        for n, (at, life, which) in enumerate(faults)
    ]
    noise = source(NoiseProfile("paper"), seed, faults=items).draw()
    for found in noise.items:
        assert found.role == "noise"
        assert found.truth is None
        for fault in items:
            near = fault.start_ns < found.end_ns + MARGIN_NS
            near = near and fault.end_ns > found.start_ns - MARGIN_NS
            assert not (near and fault.service == found.service)
            assert not (near and found.name == "three" and fault.node == found.node)
    cycles = len(range(0, 3600 * S, CYCLE_NS))
    assert len(noise.items) + len(noise.missing) == 2 * cycles


def test_noise_keeps_out_of_oracle_windows_and_says_so() -> None:
    windows = ((310 * S, 320 * S),)
    noise = source(NoiseProfile("paper"), oracle_windows=windows).draw()
    assert not [i for i in noise.items if i.start_ns == 300 * S]
    assert [c.rule for c in noise.missing] == ["oracle-window"]
    assert len([i for i in noise.items if i.start_ns == 600 * S]) == 2


def test_noise_is_seeded() -> None:
    def drawn(seed: int) -> list[str]:
        return [i.model_dump_json() for i in source(NoiseProfile("paper"), seed).draw().items]

    assert drawn(5) == drawn(5)
    assert drawn(5) != drawn(6)


def test_noise_on_and_off_give_the_same_fault_timeline_byte_for_byte() -> None:
    """With noise that really is there, beside, before and after the faults."""
    faults = [item(f"f{n}", 30 * n, 30 * n + 100, "a", service=f"s{n % 3}") for n in range(20)]
    plan = plan_of(*faults, end=1200)
    group = {"type": "cgroup", "cgroup": "/sys/fs/cgroup/x"}
    targets = {f"t{n}": {"node": "a", "service": f"s{n}", "target": group} for n in range(6)}
    experiment = Experiment.model_validate(
        {
            "version": 1,
            "name": "x",
            "duration": "20m",
            "nodes": {"a": {"agent": "unix:///a"}},
            "targets": targets,
        }
    )
    noisy = with_noise(plan, experiment)
    assert len(noisy.of("noise")) == 8, "two each 300 s"
    assert noisy.timeline() == plan.timeline()
    quiet, loud = (json.loads(p.text()) for p in (plan, noisy))
    assert quiet["faults_sha256"] == loud["faults_sha256"]
    assert quiet["faults"] == loud["faults"]
    assert quiet["noise"] != loud["noise"]
    assert RunPlan.from_text(noisy.text()).timeline() == plan.timeline()


def test_unknown_noise_is_refused_by_name() -> None:
    with pytest.raises(InvalidSpec, match="nonsense"):
        chosen(["nonsense"])


ONE_OF_EACH = {
    "cgroup": {"type": "cgroup", "cgroup": "/sys/fs/cgroup/x"},
    "pid": {"type": "pid", "pid": 7},
    "netns": {"type": "netns", "netns": "/run/netns/x"},
    "node": {"type": "node"},
}


@pytest.mark.parametrize("name", [n for n, k in catalogue().items() if not k.on_objects])
def test_every_noise_is_of_a_kind_that_exists_and_takes_it(name: str) -> None:
    """Its spec is parsed as a node would, on each type of target that it may act on."""
    noise = catalogue()[name]
    kind = kinds()[noise.kind]
    here = [t for t in noise.types if t in ONE_OF_EACH and t in kind.targets]
    assert here, "it could never be injected"
    for type_name in here:
        request = FaultRequest(
            id="check", kind=kind.name, target=ONE_OF_EACH[type_name], spec=noise.spec
        )
        parse_request(kind, request)
        service = {"node": "a", "service": "s", "target": ONE_OF_EACH[type_name]}
        assert noise.fits(TargetEntry.model_validate(service))


@pytest.mark.parametrize("name", [n for n, k in catalogue().items() if k.on_objects])
def test_noise_on_objects_takes_pods_and_a_spec_that_is_right(name: str) -> None:
    noise = catalogue()[name]
    kind = cluster_kinds()[noise.kind]
    kind.check(kind.spec.model_validate(noise.spec))
    pods = {"service": "s", "pods": {"selector": "app=x", "all": True}}
    assert kind.on == "pods" and noise.fits(TargetEntry.model_validate(pods))
    node = {"node": "a", "service": "s", "target": {"type": "node"}}
    assert not noise.fits(TargetEntry.model_validate(node))


def test_the_four_disturbances_of_the_literature_are_what_they_say() -> None:
    """FIELD 2.5."""
    specs = {name: catalogue()[name].spec for name in ("network-delay", "network-loss")}
    kind = kinds()["netem"].spec
    delay = kind.model_validate(specs["network-delay"]).model_dump(mode="json")
    assert (delay["delay"], delay["jitter"]) == ("500ms", "200ms")
    assert kind.model_validate(specs["network-loss"]).model_dump(mode="json")["loss"] == "50%"
    assert catalogue()["pod-failure"].duration == timedelta(seconds=45)
    assert catalogue()["pod-kill"].kind == "kill"


def test_hold_window_of_a_metastable_group_is_kept_free() -> None:
    plan = plan_of(item("t", 100, 200, group="g", group_type="metastable"), end=1200)
    data = {
        "version": 1,
        "name": "x",
        "duration": "20m",
        "faults": {"t": {"kind": "sim", "target": "x"}},
        "groups": {
            "g": {
                "type": "metastable",
                "faults": ["t"],
                "overload": {"probe": "p", "hold": "200s", "grace": "10s"},
            }
        },
    }
    experiment = Experiment.model_validate(data)
    assert measured_windows(plan, experiment) == ((200 * S, 410 * S + MARGIN_NS),)
    missing = {c.slot: c.rule for c in with_noise(plan, experiment).changes}
    assert missing["n0002"] == "oracle-window"
