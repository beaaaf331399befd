"""kubelet-eviction as data: thresholds that hold, and the configuration around them kept."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from cgroup_kit import NODE
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.bind.kubelet import kubelets, option, running
from nodeagent.bind.node import Node
from nodeagent.faults import kind_named
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.kubelet import DEFAULTS, KubeletBinding, threshold_above, with_threshold
from nodeagent.model.plan import FaultRequest, Plan
from nodeagent.model.planner import make_plan, parse_request
from nodeagent.model.steps.kubelet import KubeletThreshold

HERE = KubeletBinding(
    config="/etc/kubelet.yaml", named="/k.yaml", root_dir="/var/lib/kubelet", unit=""
)
HEAD = "kind: KubeletConfiguration\n"


def plan(spec: dict[str, Any], binding: KubeletBinding = HERE, know: bool = True) -> Plan:
    kind = kind_named("kubelet-eviction")
    request = FaultRequest.model_validate(
        {"id": "t-1", "kind": kind.name, "target": {"type": "node"}, "spec": spec,
         "acknowledge": ["evicts-pods"] if know else []}
    )  # fmt: skip
    target, checked = parse_request(kind, request)
    return make_plan(kind, request, target, checked, binding, NODE)


@pytest.mark.parametrize(
    ("spec", "threshold"),
    [
        ({}, ""),
        ({"percent": "95.5%"}, "95.5%"),
        ({"signal": "pid.available", "amount": "5000B"}, "5000"),
        ({"signal": "imagefs.available", "percent": "99%"}, "99%"),
    ],
)
def test_thresholds(spec: dict[str, Any], threshold: str) -> None:
    step = plan(spec).steps[0]
    assert isinstance(step, KubeletThreshold)
    assert step.threshold == threshold
    assert step.survives_boot
    assert "pkill -TERM -x kubelet" in step.summary()
    unit = plan(spec, HERE.model_copy(update={"unit": "kubelet.service"})).steps[0]
    assert "systemctl restart kubelet.service" in unit.summary()


@pytest.mark.parametrize(
    "spec",
    [{"percent": "100%"}, {"percent": "0%"}, {"percent": "5%", "amount": "1Gi"},
     {"signal": "pid.available"}, {"signal": "imagefs.inodesFree"}, {"signal": "cpu"}],
)  # fmt: skip
def test_what_the_kubelet_would_take_for_none(spec: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec):
        plan(spec)


def test_refusals_say_why() -> None:
    with pytest.raises(Refused, match="DiskPressure the kubelet evicts pods"):
        plan({}, know=False)
    with pytest.raises(Refused, match="wins over its configuration"):
        plan({}, HERE.model_copy(update={"overridden": "--eviction-hard"}))


@given(st.integers(0, 1 << 50), st.integers(1, 1 << 50))
def test_a_threshold_is_above_what_is_free(free: int, total: int) -> None:
    try:
        percent = Fraction(threshold_above(min(free, total), total).rstrip("%"))
    except ValueError:
        assert min(free, total) * 1_000_001 > total * 999_999, "only where all is free"
        return
    assert min(free, total) * 100 < percent * total < 100 * total


@pytest.mark.parametrize(
    ("free", "threshold"), [(0, "10%"), (505, "61%"), (880, "98%"), (990, "99.5%"), (999, "99.95%")]
)
def test_thresholds_by_what_is_free_of_a_thousand(free: int, threshold: str) -> None:
    assert threshold_above(free, 1000) == threshold


def test_other_thresholds_and_settings_stay() -> None:
    text = HEAD + "evictionHard: {memory.available: 200Mi}\nclusterDNS: [10.0.0.1]\nx: '0644'\n"
    made = yaml.safe_load(with_threshold(text, "nodefs.available", "50%"))
    assert made["evictionHard"] == {"memory.available": "200Mi", "nodefs.available": "50%"}
    assert {k: v for k, v in made.items() if k != "evictionHard"} == {
        "kind": "KubeletConfiguration", "clusterDNS": ["10.0.0.1"], "x": "0644",
    }  # fmt: skip


def test_defaults_are_written_where_they_would_go_off() -> None:
    made = yaml.safe_load(with_threshold(HEAD, "nodefs.available", "50%"))
    assert made["evictionHard"] == DEFAULTS | {"nodefs.available": "50%"}


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "kind"), ("kind: Other\n", "kind"), ("a: [", "no YAML"), ("- a\n", "kind"),
     (HEAD + "evictionHard: 5\n", "mapping"),
     (HEAD + "evictionHard: {nodefs.available: 50%}\n", "already")],
)  # fmt: skip
def test_what_is_no_configuration_is_left(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        with_threshold(text, "nodefs.available", "50%")


@pytest.mark.parametrize(
    ("args", "value"),
    [(["kubelet", "--config=/a"], "/a"), (["kubelet", "--config", "/a"], "/a"),
     (["kubelet", "--config=/a", "--config=/b"], "/b"), (["kubelet", "--config"], None),
     (["kubelet", "--configx=/a"], None), (["sh", "kubelet", "--config="], "")],
)  # fmt: skip
def test_options_of_a_command_line(args: list[str], value: str | None) -> None:
    assert option(args, "config") == value


def test_a_child_that_is_yet_to_exec_is_no_second_kubelet(tmp_path: Path) -> None:
    for pid, parent, comm in ((7, 1, "kubelet"), (8, 7, "kubelet"), (9, 1, "other"), (10, 1, "x")):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "comm").write_text(f"{comm}\n")
        (folder / "cmdline").write_bytes(b"kubelet\0--config=/k.yaml\0")
        (folder / "stat").write_text(f"{pid} ({comm}) S {parent} " + "0 " * 17 + f"{pid}00 0\n")
    node = Node(proc=tmp_path)
    assert kubelets(node) == [(7, ["kubelet", "--config=/k.yaml"])]
    assert running(node, "/k.yaml") == (7, 700)
    assert running(node, "/other.yaml") is None
