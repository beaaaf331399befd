"""disk-fill as data: how much is to be left, where the node itself is held back."""

from __future__ import annotations

from typing import Any

import pytest
from cgroup_kit import NODE
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.backends.fill import BYTES, wanted
from nodeagent.faults import kind_named
from nodeagent.faults.disk_fill import RESERVE
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.fill import FillBinding
from nodeagent.model.kind import Measured
from nodeagent.model.plan import FaultRequest, Plan
from nodeagent.model.planner import make_plan, parse_request
from nodeagent.model.steps.fill import FileFill

GIB = 1 << 30
DATA = FillBinding(
    target="volume /data", folder="/data", device=2064, fs_type="ext4", size=GIB, node_uses=()
)


def plan(spec: dict[str, Any], binding: FillBinding = DATA, *known: str) -> Plan:
    kind = kind_named("disk-fill")
    request = FaultRequest.model_validate(
        {
            "id": "t-1",
            "kind": "disk-fill",
            "target": {"type": "volume", "volume": "/data"},
            "spec": spec,
            "acknowledge": known,
        }
    )
    target, checked = parse_request(kind, request)
    return make_plan(kind, request, target, checked, binding, NODE)


def step_of(spec: dict[str, Any]) -> FileFill:
    step = plan(spec).steps[0]
    assert isinstance(step, FileFill)
    return step


@pytest.mark.parametrize(
    ("spec", "left", "said"),
    [
        ({"bytes": "100Mi"}, 500 - 100, "-l 104857600 /data/.faultctl-t-1"),
        ({"leave_free": "10Mi"}, 10, "<free - 10485760>"),
        ({"leave_free": "0B"}, 0, "<free - 0>"),
        ({"percent": "75%"}, 200, "<until 75% are used>"),
        ({"percent": "100%"}, 0, "<until 100% are used>"),
    ],
)
def test_what_is_left(spec: dict[str, str], left: int, said: str) -> None:
    step = step_of(spec)
    assert wanted(step, BYTES, 500 << 20, 800 << 20) == left << 20
    assert said in step.summary()
    assert step.survives_boot


@given(st.integers(1, 1 << 50), st.integers(1, 1_000_000))
def test_a_share_is_of_what_users_can_have(usable: int, ppm: int) -> None:
    step = step_of({"percent": "1%"}).model_copy(update={"value": ppm})
    left = wanted(step, BYTES, usable, usable)
    assert 0 <= left < usable or usable * ppm < 1_000_000
    assert abs((usable - left) * 1_000_000 - usable * ppm) < 1_000_000


def test_more_than_there_is_names_what_would_fill_it() -> None:
    with pytest.raises(Refused) as caught:
        wanted(step_of({"bytes": "900Mi"}), BYTES, 500 << 20, 800 << 20)
    assert "--leave-free 0B" in caught.value.hint
    with pytest.raises(Refused, match="more than the file system has"):
        plan({"bytes": "2Gi"})
    with pytest.raises(Refused, match="nothing would be taken"):
        plan({"leave_free": "1Gi"})


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"bytes": "0B"},
        {"percent": "0%"},
        {"bytes": "1Mi", "percent": "3%"},
        {"percent": "101%"},
        {"bytes": "12"},
    ],
)
def test_one_of_three_is_needed(spec: dict[str, str]) -> None:
    with pytest.raises(InvalidSpec):
        plan(spec)


def test_where_the_node_lives_it_is_named_and_some_is_left() -> None:
    home = DATA.model_copy(update={"node_uses": ("/var/lib/kubelet",)})
    with pytest.raises(Refused) as caught:
        plan({"leave_free": "0B"}, home)
    assert "--i-know node-disk" in caught.value.hint
    step = plan({"leave_free": "0B"}, home, "node-disk").steps[0]
    assert step.model_dump()["reserve"] == RESERVE
    assert step_of({"leave_free": "0B"}).reserve == 0


def test_evidence_tells_when_the_file_was_removed() -> None:
    step = plan({"bytes": "1Mi"}).steps[0]
    kind = kind_named("disk-fill")
    found = kind.evidence(None, (Measured(step, {"file": 9, "before": 20, "free": 11}),))
    assert found.biting
    found = kind.evidence(None, (Measured(step, {"file": None, "before": 20, "free": 20}),))
    assert not found.biting
    assert "has been removed" in found.statements[0]
