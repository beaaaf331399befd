"""fd-, pid- and inode-exhaust as data: who is meant, how much is left, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from cgroup_kit import NODE, VICTIM
from cgroup_kit import plan as cgroup_plan

from nodeagent.backends.fill import wanted
from nodeagent.backends.inodes import INODES
from nodeagent.faults import kind_named
from nodeagent.faults.inode_exhaust import RESERVE
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.fill import FillBinding
from nodeagent.model.kind import Measured
from nodeagent.model.plan import FaultRequest, Plan
from nodeagent.model.planner import make_plan, parse_request
from nodeagent.model.process import PidScope, ProcessBinding
from nodeagent.model.steps.fill import InodeFill

DATA = FillBinding(
    target="volume /data", folder="/data", device=2064, fs_type="ext4", size=1 << 30, inodes=1000
)
PROCESS = ProcessBinding(
    target="process 42 (db)", scope=PidScope(pid=42, start_ticks=7), comm="db", processes=1
)


def plan(kind: str, target: dict[str, Any], spec: dict[str, Any], binding: Any, *know: str) -> Plan:
    found = kind_named(kind)
    request = FaultRequest.model_validate(
        {"id": "t-1", "kind": kind, "target": target, "spec": spec, "acknowledge": know}
    )
    parsed, checked = parse_request(found, request)
    return make_plan(found, request, parsed, checked, binding, NODE)


def inodes(spec: dict[str, Any], binding: FillBinding = DATA, *know: str) -> InodeFill:
    step = plan("inode-exhaust", {"type": "volume", "volume": "/data"}, spec, binding, *know)
    assert isinstance(step.steps[0], InodeFill)
    return step.steps[0]


@pytest.mark.parametrize(
    ("spec", "left"),
    [({"take": 100}, 700), ({"leave_free": 0}, 0), ({"leave_free": 9}, 9),
     ({"percent": "90%"}, 100), ({"percent": "100%"}, 0)],
)  # fmt: skip
def test_inodes_that_are_left(spec: dict[str, Any], left: int) -> None:
    step = inodes(spec)
    assert wanted(step, INODES, 800, 1000) == left
    assert step.survives_boot
    assert step.summary().startswith("mkdir /data/.faultctl-t-1; seq ")


@pytest.mark.parametrize(
    "spec", [{}, {"take": 0}, {"percent": "0%"}, {"take": 5, "leave_free": 1}, {"leave_free": -1}]
)
def test_one_of_three_is_needed(spec: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec):
        inodes(spec)


def test_more_inodes_than_there_are() -> None:
    with pytest.raises(Refused, match="more than the file system has"):
        inodes({"take": 1001})
    with pytest.raises(Refused, match="nothing would be taken"):
        inodes({"leave_free": 1000})
    with pytest.raises(Refused) as caught:
        wanted(inodes({"take": 900}), INODES, 800, 1000)
    assert "--leave-free 0" in caught.value.hint


def test_a_file_system_without_a_number_of_inodes_is_refused() -> None:
    with pytest.raises(Refused, match="disk-fill takes the space"):
        inodes({"leave_free": 0}, DATA.model_copy(update={"fs_type": "xfs", "inodes": 0}))


def test_where_the_node_lives_some_inodes_are_left() -> None:
    home = DATA.model_copy(update={"node_uses": ("/var/lib/kubelet",)})
    with pytest.raises(Refused, match="node itself lives"):
        inodes({"leave_free": 0}, home)
    assert inodes({"leave_free": 0}, home, "node-disk").reserve == RESERVE


def test_descriptors_of_one_process() -> None:
    target = {"type": "pid", "pid": 42}
    made = plan("fd-exhaust", target, {"leave": 3}, PROCESS)
    assert made.steps[0].key() == "process:42:7:nofile"
    assert "prlimit --pid 42" in made.steps[0].summary()
    with pytest.raises(Refused, match="guard rail"):
        agent = PROCESS.model_copy(update={"node_agents": ("kubelet (42)",)})
        plan("fd-exhaust", target, {}, agent)
    with pytest.raises(InvalidSpec, match="type of target"):
        plan("fd-exhaust", {"type": "node"}, {}, PROCESS)


def test_processes_of_a_cgroup_meet_throttle_on_one_key() -> None:
    made = cgroup_plan("pid-exhaust", {"leave": 2})
    other = cgroup_plan("throttle", {"pids": 4})
    assert made.steps[0].key() == other.steps[0].key()
    without = {k: v for k, v in VICTIM.values.items() if k != "pids.max"}
    with pytest.raises(Refused, match="controller pids is not enabled"):
        cgroup_plan("pid-exhaust", {}, VICTIM.model_copy(update={"values": without}))


def test_evidence() -> None:
    step = inodes({"take": 1})
    seen = kind_named("inode-exhaust").evidence(
        None, (Measured(step, {"there": False, "before": 9, "free": 9}),)
    )
    assert "operator has found it" in seen.statements[0]
    assert not seen.biting
    gone = {"limit": None, "prior": 9, "open": 0, "left": 0}
    seen = kind_named("fd-exhaust").evidence(None, (Measured(step, gone),))
    assert seen.statements == ("the process has ended",)
    data = {"limit": "7", "prior": "max", "now": 7, "refused": 2}
    seen = kind_named("pid-exhaust").evidence(None, (Measured(step, data),))
    assert seen.biting
    assert seen.hits == 2
