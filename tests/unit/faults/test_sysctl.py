"""sysctl as data: names as sysctl(8) takes them, what hangs together, what is held back."""

from __future__ import annotations

from typing import Any

import pytest
from cgroup_kit import NODE
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.faults import kind_named
from nodeagent.model import sysctl
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.kind import Measured
from nodeagent.model.plan import FaultRequest, Plan
from nodeagent.model.planner import make_plan, parse_request
from nodeagent.model.steps.net import NetnsRef
from nodeagent.model.steps.sysctl import SysctlWrite
from nodeagent.model.sysctl import SysctlBinding, SysctlValue

NETNS = NetnsRef(cookie=7, inode=11, path="/run/netns/pod1")
HERE = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/ip_local_port_range": "32768 60999",
    "net/ipv4/ip_local_reserved_ports": "",
    "vm/swappiness": "60",
    "vm/dirty_ratio": "20",
    "vm/dirty_bytes": "0",
    "kernel/core_pattern": "core",
    "kernel/panic": "0",
}


def plan(*values: str, host: bool = False, partner: str = "", know: tuple[str, ...] = ()) -> Plan:
    kind = kind_named("sysctl")
    request = FaultRequest.model_validate(
        {"id": "t-1", "kind": "sysctl", "target": {"type": "node"}, "spec": {"set": values},
         "acknowledge": know}
    )  # fmt: skip
    target, spec = parse_request(kind, request)
    found = tuple(
        SysctlValue(path=path, value=HERE[path], partner=partner)
        for path, _ in spec.wanted()  # type: ignore[attr-defined]
    )
    binding = SysctlBinding(target="x", netns=NETNS, host=host, values=found)
    return make_plan(kind, request, target, spec, binding, NODE)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("net.ipv4.ip_forward", "net/ipv4/ip_forward"),
        ("net/ipv4/conf/eth0.1/rp_filter", "net/ipv4/conf/eth0.1/rp_filter"),
        ("net.ipv4.conf.eth0/1.rp_filter", "net/ipv4/conf/eth0.1/rp_filter"),
        ("vm.swappiness", "vm/swappiness"),
    ],
)
def test_names_are_read_as_sysctl_8_does(name: str, path: str) -> None:
    assert sysctl.path_of(name) == path
    assert sysctl.path_of(sysctl.name_of(path)) == path


@pytest.mark.parametrize(
    "name",
    ["", "vm", "../etc/passwd", "vm/../../etc/passwd", "vm..swappiness", "/vm/swappiness",
     "vm.", ".vm", "vm.swap piness", "net/./x", "vm.x\0y", "vm.\n", "net//x", "a." + "b" * 65],
)  # fmt: skip
def test_what_is_no_name_never_becomes_a_path(name: str) -> None:
    with pytest.raises(ValueError, match="is no name"):
        sysctl.path_of(name)


@given(st.text(max_size=40))
def test_no_text_leads_out_of_proc_sys(text: str) -> None:
    try:
        path = sysctl.path_of(text)
    except ValueError:
        return
    assert not path.startswith("/")
    assert not {"", ".", ".."} & set(path.split("/"))
    assert sysctl.path_of(sysctl.name_of(path)) == path


@pytest.mark.parametrize("text", ["vm.swappiness", "vm.x=1\n2", "vm.x=\0",
                                  "vm.x=" + "1" * 5000])  # fmt: skip
def test_what_is_no_assignment_is_wrong_usage(text: str) -> None:
    with pytest.raises(InvalidSpec):
        plan(text)


def test_values_of_a_namespace_and_of_the_node() -> None:
    made = plan("net.ipv4.ip_local_port_range=40000\t40010", "vm.swappiness=100")
    first, second = made.steps
    assert isinstance(first, SysctlWrite)
    assert isinstance(second, SysctlWrite)
    assert (first.netns, first.value) == (NETNS, "40000 40010")
    assert (second.netns, second.value) == (None, "100")
    assert first.summary() == (
        "nsenter --net=/run/netns/pod1 sysctl -w net.ipv4.ip_local_port_range='40000 40010'"
    )
    assert second.key() == "sysctl:node:vm/swappiness"
    assert not first.survives_boot
    empty = plan("net.ipv4.ip_local_reserved_ports=8080,9000-9010").steps[0]
    assert isinstance(empty, SysctlWrite)
    assert empty.value == "8080,9000-9010"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("vm.swappiness=60", "already"),
        ("net.ipv4.ip_local_port_range=32768  60999", "already"),
        ("vm.swappiness=0x10", "in decimal"),
        ("vm.swappiness=010", "in decimal"),
        ("vm.swappiness=", "in decimal"),
        ("vm.swappiness=1 2", "1 number"),
        ("net.ipv4.ip_local_port_range=5", "2 number"),
    ],
)
def test_what_would_not_read_back_is_refused(value: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        plan(value)


def test_the_other_of_a_pair_in_force_is_named() -> None:
    with pytest.raises(Refused, match="with 1048576; set that one"):
        plan("vm.dirty_ratio=5", partner="1048576")
    assert plan("vm.dirty_ratio=5", partner="0").steps


@pytest.mark.parametrize(
    ("value", "guard"),
    [("kernel.core_pattern=|/bin/x", "programs"), ("kernel.panic=1", "node-life")],
)
def test_dangerous_ones_are_named(value: str, guard: str) -> None:
    with pytest.raises(Refused) as caught:
        plan(value)
    assert f"--i-know {guard}" in caught.value.hint
    assert plan(value, know=(guard,)).guards == (guard,)


def test_the_nodes_own_network_is_named() -> None:
    with pytest.raises(Refused, match="the agent's way out"):
        plan("net.ipv4.ip_forward=0", host=True)
    assert plan("net.ipv4.ip_forward=0", host=False).guards == ()
    assert plan("vm.swappiness=0", host=True).guards == ()


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("net/ipv4/ip_forward", "net/ipv4/conf/eth0/forwarding", True),
        ("net/ipv4/conf/all/rp_filter", "net/ipv4/conf/eth0/rp_filter", True),
        ("net/ipv4/conf/default/rp_filter", "net/ipv4/conf/eth0/rp_filter", True),
        ("net/ipv4/conf/eth1/rp_filter", "net/ipv4/conf/eth0/rp_filter", False),
        ("net/ipv6/conf/all/forwarding", "net/ipv4/conf/eth0/forwarding", False),
        ("vm/dirty_bytes", "vm/dirty_ratio", True),
        ("vm/dirty_bytes", "vm/dirty_background_ratio", False),
        ("vm/swappiness", "vm/swappiness", True),
    ],
)
def test_which_ones_change_each_other(one: str, other: str, meet: bool) -> None:
    first, second = (SysctlWrite(netns=NETNS, path=path, value="1") for path in (one, other))
    assert sysctl.reaches(one, other) is sysctl.reaches(other, one) is meet
    assert first.overlaps(second) is meet
    assert not meet or first.key() == second.key()
    elsewhere = SysctlWrite(netns=NETNS.model_copy(update={"cookie": 8}), path=one, value="1")
    assert elsewhere.key() != first.key()


def test_two_that_change_each_other_are_not_set_at_once() -> None:
    with pytest.raises(InvalidSpec, match="change each other"):
        plan("vm.dirty_bytes=4096", "vm.dirty_ratio=5")


def test_every_guard_and_partner_is_a_path() -> None:
    for path in (*sysctl.ONE_WAY, *sysctl.PARTNERS, *sysctl.FOLLOWERS):
        assert sysctl.path_of(path) == path
        assert sysctl.group_of(path) == sysctl.group_of(sysctl.PARTNERS.get(path, path))


@pytest.mark.parametrize(
    ("now", "word"), [("0", "was '1'"), ("1", "operator"), ("2", "somebody"), (None, "is gone")]
)
def test_evidence_tells_what_is_there(now: Any, word: str) -> None:
    step = SysctlWrite(path="vm/swappiness", value="0")
    data = {"sysctl": "vm.swappiness", "asked": "0", "prior": "1", "now": now}
    found = kind_named("sysctl").evidence(None, (Measured(step, data),))
    assert not found.counted
    assert word in found.statements[0]
