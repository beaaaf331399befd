"""kubelet-eviction: a supervised kubelet reports pressure; its file comes back to the last bit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from agentkit import Bench
from cgroup_kit import revert_all
from guest_kill_kubelet import CONFIG, FILES, SET_UP, TEAR_DOWN, UNIT, WAIT

from nodeagent.model.errors import ForeignState, Refused

pytestmark = pytest.mark.vm("debian-12", "debian-13")
NODE: dict[str, Any] = {"type": "node"}
KNOW = ["evicts-pods"]


@contextmanager
def kubelet(bench: Bench) -> Iterator[None]:
    bench.node.sh(SET_UP, timeout=30)
    try:
        yield
    finally:
        revert_all(bench)
        bench.node.sh(TEAR_DOWN, timeout=30)


def file(bench: Bench) -> str:
    """All of it, by tools that know nothing of us."""
    return bench.node.sh(
        f"sha256sum {CONFIG}; stat -c '%a %u %g %y %i %h' {CONFIG}; getfattr -d -m - {CONFIG} "
        "2>/dev/null; ls -A /var/lib/kubelet"
    )


def until(bench: Bench, condition: str, patience: float = 60.0) -> None:
    end = time.monotonic() + patience
    while (said := bench.node.sh("cat /run/kubelet.status").strip()) != condition:
        assert time.monotonic() < end, said
        time.sleep(0.3)


def pid(bench: Bench) -> str:
    return bench.node.run("pgrep -x -o kubelet", check=False).out.strip()


def test_it_reports_pressure_and_the_file_comes_back(bench: Bench) -> None:
    with kubelet(bench):
        until(bench, "DiskPressure=False")
        before, first = file(bench), pid(bench)
        with pytest.raises(Refused, match="evicts pods and takes no new ones"):
            bench.plan("kubelet-eviction", NODE)
        fault = bench.inject("kubelet-eviction", NODE, acknowledge=KNOW)
        until(bench, "DiskPressure=True")
        second = pid(bench)
        assert second != first
        text = bench.node.sh(f"cat {CONFIG}")
        assert "memory.available: 100Mi" in text, "the other thresholds are kept"
        assert "syncFrequency: 0s" in text
        assert bench.node.sh(f"stat -c '%a %u %g' {CONFIG}").strip() == "640 0 4"
        assert "kept" in bench.node.sh(f"getfattr -n trusted.mark {CONFIG} 2>/dev/null")
        seen = bench.evidence(fault.id)
        assert seen["details"]["pid"] == int(second)
        assert any("nodefs.available is free" in line for line in seen["statements"])
        bench.client.revert(fault.id)
        assert file(bench) == before
        until(bench, "DiskPressure=False")
        assert pid(bench) not in (first, second)
    assert bench.residue() == []


def test_an_edit_meanwhile_is_left_and_said(bench: Bench) -> None:
    with kubelet(bench):
        fault = bench.inject("kubelet-eviction", NODE, acknowledge=KNOW)
        bench.node.sh(f"cp {CONFIG} /run/ours; echo 'podPidsLimit: 99' >> {CONFIG}")
        assert any("somebody has changed it" in x for x in bench.evidence(fault.id)["statements"])
        with pytest.raises(ForeignState):
            bench.client.revert(fault.id)
        assert "podPidsLimit: 99" in bench.node.sh(f"cat {CONFIG}")
        bench.node.sh(f"cat /run/ours > {CONFIG}")
        bench.client.revert(fault.id)
        assert "evictionHard:\n    nodefs" in bench.node.sh(f"cat {CONFIG}")


def test_refusals(bench: Bench) -> None:
    with pytest.raises(Refused, match="no kubelet runs"):
        bench.plan("kubelet-eviction", NODE, acknowledge=KNOW)
    with kubelet(bench):
        bench.node.sh(f"sed -i 's/^kind: .*/kind: Other/' {CONFIG}")
        before = file(bench)
        with pytest.raises(Refused, match="no `kind: KubeletConfiguration`"):
            bench.inject("kubelet-eviction", NODE, acknowledge=KNOW)
        assert file(bench) == before


def test_a_lost_copy_and_a_dead_agent(bench: Bench) -> None:
    with kubelet(bench):
        before = bench.node.sh(f"sha256sum {CONFIG}; stat -c '%a %u %g %y' {CONFIG}")
        fault = bench.inject("kubelet-eviction", NODE, acknowledge=KNOW)
        bench.node.sh(f"rm /var/lib/kubelet/.faultctl-{fault.id}.kept")
        bench.client.revert(fault.id)
        assert bench.node.sh(f"sha256sum {CONFIG}; stat -c '%a %u %g %y' {CONFIG}") == before
        whole = file(bench)
        bench.inject("kubelet-eviction", NODE, acknowledge=KNOW)
        bench.node.sh(f"kill -9 {bench.pids()[0]}")
        end = time.monotonic() + 60
        while file(bench) != whole:
            assert time.monotonic() < end, "the guardian has not put it back"
            time.sleep(0.3)
        until(bench, "DiskPressure=False")


@pytest.mark.vm("debian-13+systemd")
def test_a_unit_is_restarted_in_order_and_a_stopped_one_stays_so(bench: Bench) -> None:
    bench.node.put("/run/systemd/system/kubelet.service", UNIT.encode())
    bench.node.sh(f"{FILES}systemctl daemon-reload; systemctl start kubelet; {WAIT}", timeout=60)
    try:
        before, first = file(bench), pid(bench)
        made = bench.plan("kubelet-eviction", NODE, acknowledge=KNOW)
        assert "systemctl restart kubelet.service" in made.steps[0].summary()
        fault = bench.inject("kubelet-eviction", NODE, acknowledge=KNOW)
        until(bench, "DiskPressure=True")
        assert pid(bench) != first
        bench.client.revert(fault.id)
        assert file(bench) == before
        until(bench, "DiskPressure=False")
        fault = bench.inject("kubelet-eviction", NODE, acknowledge=KNOW)
        bench.node.sh("systemctl stop kubelet", timeout=60)
        bench.client.revert(fault.id)
        assert file(bench) == before
        assert pid(bench) == ""
    finally:
        revert_all(bench)
        gone = "rm /run/systemd/system/kubelet.service; systemctl daemon-reload"
        bench.node.sh(f"systemctl stop kubelet; {TEAR_DOWN}; {gone}", timeout=60)
