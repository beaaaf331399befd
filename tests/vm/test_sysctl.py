"""sysctl: set and put back in the right namespace, with what follows; refusals; deaths."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from agentkit import Bench
from cgroup_kit import revert_all

from nodeagent.model.errors import BackendError, Conflict, ForeignState, InvalidSpec, Refused

pytestmark = pytest.mark.vm("debian-12", "debian-13")
NODE: dict[str, Any] = {"type": "node"}
POD: dict[str, Any] = {"type": "netns", "netns": "/run/netns/pod"}


@contextmanager
def namespace(bench: Bench) -> Iterator[None]:
    """A namespace with two interfaces that are not alike."""
    bench.node.sh(
        "ip netns add pod; ip -n pod link add one type dummy; ip -n pod link add two type dummy; "
        "ip netns exec pod sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.two.forwarding=0"
    )
    try:
        yield
    finally:
        revert_all(bench)
        bench.node.run("ip netns del pod", check=False)


def all_of(bench: Bench, ns: str = "") -> list[str]:
    """Every sysctl that does not change by itself, by sysctl(8)."""
    inside = f"ip netns exec {ns} " if ns else ""
    moving = r"^fs.(dentry-state|inode-|file-nr|aio-nr)|^kernel.(ns_last_pid|random|pty.nr)|"
    moving += r"^net.netfilter.nf_conntrack_count"
    return bench.node.sh(f"{inside}sysctl -a 2>/dev/null | grep -Ev '{moving}'").splitlines()


def value(bench: Bench, name: str, ns: str = "") -> str:
    inside = f"ip netns exec {ns} " if ns else ""
    return " ".join(bench.node.sh(f"{inside}sysctl -n {name}").split())


def test_in_a_namespace_and_nowhere_else(bench: Bench) -> None:
    with namespace(bench):
        node, pod = all_of(bench), all_of(bench, "pod")
        asked = ["net.ipv4.ip_forward=0", "net.ipv4.ip_local_port_range=40000 40010"]
        fault = bench.inject("sysctl", POD, spec={"set": asked})
        assert value(bench, "net.ipv4.ip_forward", "pod") == "0"
        assert value(bench, "net.ipv4.ip_local_port_range", "pod") == "40000 40010"
        assert value(bench, "net.ipv4.conf.one.forwarding", "pod") == "0", "as the kernel does"
        assert value(bench, "net.ipv4.conf.all.accept_redirects", "pod") == "1"
        port = bench.node.sh(
            'ip netns exec pod python3 -c "import socket as s; c = s.socket(); '
            "c.bind(('', 0)); print(c.getsockname()[1])\""
        )
        assert 40000 <= int(port) <= 40010
        assert all_of(bench) == node, "the node's own changed"
        assert "net.ipv4.ip_forward is '0', was '1'" in bench.evidence(fault.id)["statements"]
        with pytest.raises(Conflict, match=fault.id):
            bench.plan("sysctl", POD, spec={"set": ["net.ipv4.conf.two.forwarding=1"]})
        bench.client.revert(fault.id)
        assert all_of(bench, "pod") == pod
        assert all_of(bench) == node
    assert bench.residue() == []


def test_of_the_node(bench: Bench) -> None:
    before = all_of(bench)
    spec = {"set": ["vm.swappiness=7", "kernel.core_pattern=|/bin/false %p x"]}
    with pytest.raises(Refused, match="runs what it names as root"):
        bench.plan("sysctl", NODE, spec=spec)
    fault = bench.inject("sysctl", NODE, spec=spec, acknowledge=["programs"])
    assert value(bench, "vm.swappiness") == "7"
    assert value(bench, "kernel.core_pattern") == "|/bin/false %p x"
    bench.client.revert(fault.id)
    assert all_of(bench) == before
    bench.node.sh("sysctl -qw vm.dirty_bytes=9437184")
    with pytest.raises(Refused, match="with 9437184; set that one"):
        bench.plan("sysctl", NODE, spec={"set": ["vm.dirty_ratio=5"]})
    fault = bench.inject("sysctl", NODE, spec={"set": ["vm.dirty_bytes=8388608"]})
    bench.client.revert(fault.id)
    assert value(bench, "vm.dirty_bytes") == "9437184"
    bench.node.sh("sysctl -qw vm.dirty_ratio=20")
    assert all_of(bench) == before


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (NODE, "vm.nosuch=1", "this kernel has none"),
    (NODE, "kernel.osrelease=5", "read-only"),
    (NODE, "kernel.random=5", "folder of sysctls"),
    (NODE, "vm.drop_caches=1", "trigger"),
    (NODE, "kernel.modules_disabled=1", "could not be taken back"),
    (NODE, "net.ipv4.ip_forward=1", "the agent's way out"),
    (NODE, "kernel.panic=3", "whole node"),
    (POD, "vm.swappiness=1", "the whole node's"),
    (POD, "net.core.netdev_budget=99", "this kernel has none|read-only"),
]


def test_refusals(bench: Bench) -> None:
    with namespace(bench):
        for target, text, why in REFUSED:
            with pytest.raises(Refused, match=why):
                bench.plan("sysctl", target, spec={"set": [text]})


def test_what_the_kernel_does_not_take_changes_nothing(bench: Bench) -> None:
    before = all_of(bench)
    with pytest.raises(BackendError, match="does not take it: Invalid argument"):
        bench.inject("sysctl", NODE, spec={"set": ["vm.laptop_mode=1", "vm.swappiness=5000"]})
    assert all_of(bench) == before
    with pytest.raises(InvalidSpec):
        bench.plan("sysctl", NODE, spec={"set": []})


def test_a_value_that_somebody_set_is_left_and_the_rest_comes_back(bench: Bench) -> None:
    with namespace(bench):
        spec = {"set": ["net.ipv4.tcp_syn_retries=1", "net.ipv4.ip_default_ttl=3"]}
        fault = bench.inject("sysctl", POD, spec=spec)
        bench.node.sh("ip netns exec pod sysctl -qw net.ipv4.ip_default_ttl=9")
        with pytest.raises(ForeignState):
            bench.client.revert(fault.id)
        assert value(bench, "net.ipv4.ip_default_ttl", "pod") == "9"
        assert value(bench, "net.ipv4.tcp_syn_retries", "pod") == "6"
        bench.node.sh("ip netns exec pod sysctl -qw net.ipv4.ip_default_ttl=64")
        bench.client.revert(fault.id)
        assert bench.client.fault(fault.id).state == "ended"


def test_a_renamed_namespace_is_found_and_one_that_went_is_done(bench: Bench) -> None:
    with namespace(bench):
        fault = bench.inject("sysctl", POD, spec={"set": ["net.ipv4.ip_default_ttl=3"]})
        bench.node.sh("touch /run/netns/x; mount --bind /run/netns/pod /run/netns/x; "
                      "ip netns del pod; ip netns add pod")  # fmt: skip
        bench.client.revert(fault.id)
        assert value(bench, "net.ipv4.ip_default_ttl", "x") == "64"
        bench.node.sh("ip netns del x")
        fault = bench.inject("sysctl", POD, spec={"set": ["net.ipv4.ip_default_ttl=3"]})
        bench.node.sh("ip netns del pod")
        bench.client.revert(fault.id)
        assert bench.client.fault(fault.id).state == "ended"


def test_the_guardian_puts_it_back(bench: Bench) -> None:
    with namespace(bench):
        before = all_of(bench, "pod")
        bench.inject("sysctl", POD, spec={"set": ["net.ipv4.ip_forward=0"]})
        bench.node.sh(f"kill -9 {bench.pids()[0]}")
        end = time.monotonic() + 60
        while all_of(bench, "pod") != before:
            assert time.monotonic() < end, "it is not put back"
            time.sleep(0.2)
