"""throttle as data: which files, which values, what is refused before anything is touched."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from cgroup_kit import MIB, NODE, VICTIM, plan, with_values
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.backends.cgroup import keyed
from nodeagent.bind.cgroup import count_cpus
from nodeagent.faults import kind_named
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.kind import Measured
from nodeagent.model.plan import Plan
from nodeagent.model.steps.cgroup import parse_io_line


def writes(made: Plan) -> dict[str, str]:
    found = {}
    for step in made.steps:
        data = step.model_dump()
        found[data["file"] + (f" {data['device']}" if data["device"] else "")] = data["value"]
    return found


def test_each_limit_is_one_write_of_what_the_kernel_reads_back() -> None:
    spec = {"cpu": "0.2", "memory": "10000001B", "pids": 7, "device": "/dev/vdb"}
    made = plan("throttle", spec | {"read_bytes": "1Mi", "write_ops": 9})
    assert writes(made) == {
        "cpu.max": "20000 100000",
        "memory.high": str(10000001 // 4096 * 4096),
        "pids.max": "7",
        "io.max 254:16": "rbps=1048576 wiops=9",
    }
    assert len({step.key() for step in made.steps}) == 4
    assert made.steps[0].summary() == "echo 20000 100000 > /sys/fs/cgroup/victim/cpu.max"


def test_a_share_is_of_what_it_may_use_now() -> None:
    half = VICTIM.model_copy(update={"cpu_micro": 500_000, "memory": 64 * MIB})
    made = plan("throttle", {"cpu_percent": "50%", "memory_percent": "25%"}, half)
    assert writes(made) == {"cpu.max": "25000 100000", "memory.high": str(16 * MIB)}


@pytest.mark.parametrize(
    ("spec", "binding", "why"),
    [
        ({"cpu": "0.0099"}, VICTIM, "no less than 1000 us"),
        ({"cpu": "2"}, VICTIM, "no less than it has: 2 by the node's CPUs"),
        ({"cpu": "0.1"}, with_values(cpu_max_burst="20000"), "cpu.max.burst is 20000"),
        ({"memory": "1Gi"}, VICTIM, "no less than it has"),
        ({"memory": "9Mi"}, with_values(memory_high=str(8 * MIB)), "no less than it has: 8388608"),
        ({"pids": 10}, with_values(pids_max="10"), "pids.max is 10 already"),
        (
            {"device": "/dev/vdb", "read_ops": 9},
            with_values(io_max="254:0 rbps=max wbps=max riops=8 wiops=max"),
            None,
        ),
        (
            {"device": "/dev/vdb", "read_ops": 9},
            with_values(io_max="254:16 rbps=max wbps=max riops=8 wiops=max"),
            "riops of /dev/vdb is 8 already",
        ),
    ],
)
def test_no_limit_that_would_not_bite(spec: dict[str, Any], binding: Any, why: str | None) -> None:
    if why is None:
        assert plan("throttle", spec, binding).steps
        return
    with pytest.raises(Refused) as caught:
        plan("throttle", spec, binding)
    assert why in caught.value.why


def test_a_controller_that_is_not_enabled_is_named_with_what_enables_it() -> None:
    without = {k: v for k, v in VICTIM.values.items() if k != "io.max"}
    bare = VICTIM.model_copy(update={"values": without})
    with pytest.raises(Refused) as caught:
        plan("throttle", {"device": "/dev/vdb", "read_ops": 9}, bare)
    assert "echo +io > /sys/fs/cgroup/cgroup.subtree_control" in caught.value.why
    with pytest.raises(Refused, match="v2 is needed"):
        plan("throttle", {"pids": 3}, facts=NODE.model_copy(update={"cgroup": "v1"}))


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({}, "which limit"),
        ({"cpu": "0"}, "greater than 0"),
        ({"cpu": "1", "cpu_percent": "50%"}, "together"),
        ({"cpu_percent": "0%"}, "use pause"),
        ({"memory": "4095B"}, "one page"),
        ({"read_bytes": "1Mi"}, "device and"),
        ({"device": "/dev/vdb"}, "device and"),
        ({"device": "/dev/vdb", "read_bytes": "1B"}, "greater than or equal to 2"),
        ({"device": "/dev/vdb", "write_ops": 1}, "greater than or equal to 2"),
        ({"cpu": "1", "period": "2s"}, "1ms to 1s"),
        ({"cpu": "NaN"}, "finite"),
    ],
)
def test_what_no_kernel_takes_is_no_spec(spec: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        plan("throttle", spec)
    assert why in caught.value.why


def test_the_kubelets_cgroup_is_held_back_until_it_is_named() -> None:
    with pytest.raises(Refused, match="guard rail") as caught:
        plan("throttle", {"pids": 3}, VICTIM.model_copy(update={"node_agents": ("kubelet",)}))
    assert "--i-know node-agent" in caught.value.hint


@given(st.decimals("0.01", "1.99", places=4), st.integers(1_000, 1_000_000))
def test_a_quota_is_never_more_than_asked(cpu: Decimal, period: int) -> None:
    spec = {"cpu": str(cpu), "period": f"{period}us"}
    try:
        value = writes(plan("throttle", spec))["cpu.max"]
    except Refused:
        assert cpu * period < 1000
        return
    quota, of = map(int, value.split())
    assert of == period
    assert 0 <= cpu * period - quota < 1
    assert quota >= 1000


def test_hits_are_what_the_kernel_counted_and_io_is_not_counted() -> None:
    kind = kind_named("throttle")
    step = plan("throttle", {"pids": 3}).steps[0]

    def data(file: str, **counters: int) -> Measured:
        found = {"file": file, "counters": counters, "prior": "max", "seconds": 1.0}
        return Measured(step, found)

    seen = kind.evidence(None, (data("cpu.max", nr_throttled=3, usage_usec=9), data("io.max")))
    assert (seen.counted, seen.hits, seen.biting) == (True, 3, True)
    seen = kind.evidence(None, (data("io.max", rbytes=100),))
    assert (seen.counted, seen.biting) == (False, False)
    assert "does not count" in seen.statements[0]


def test_files_of_unknown_kernels_are_read_for_what_is_known() -> None:
    assert keyed("max 3\nnew_key x\nlist 1 2\n", ("max", "list", "oom")) == {"max": 3}
    line = "8:0 rbps=1 color=red wiops=4\n8:16 rbps=9"
    assert parse_io_line(line, "8:0") == {"rbps": "1", "wbps": "max", "riops": "max", "wiops": "4"}
    assert parse_io_line("", "8:0") == dict.fromkeys(("rbps", "wbps", "riops", "wiops"), "max")
    assert [count_cpus(text) for text in ("", "0", "0-3,8", "1-1")] == [0, 1, 5, 1]
