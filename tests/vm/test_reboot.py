"""reboot and panic: a real node goes down, comes back, and its agent says what had been."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from agentkit import STATE, Bench, stop_agent

from controller.client import AgentAddress, AgentClient
from controller.lab import Disk, Node, NodeConfig
from controller.lab import agent as lab_agent
from nodeagent.model.errors import FaultError, Refused

NODE: dict[str, Any] = {"type": "node"}
AFTER = "8s"
"""Until then the answer is out, on a loaded host too."""
WAYS = [
    ("reboot", {"after": AFTER}, ("reboot",)),
    ("reboot", {"how": "sudden", "sync": True, "after": AFTER}, ("reboot",)),
    ("panic", {"reboot_after": "1s", "after": AFTER}, ("panic",)),
]
OFF_S = 20.0
"""What the real-time clock and a loaded host may differ by; the clock is an hour wrong before."""


@contextmanager
def faultd(node: Node, *extra: str) -> Iterator[Bench]:
    """An agent on the state disk."""
    node.sh(f"mkdir -p {STATE} && mount /dev/disk/by-id/virtio-state {STATE}")
    access = lab_agent.start(node, extra=extra)
    address = AgentAddress(access.url, access.cert, access.key, access.ca, "localhost")
    with AgentClient(address) as client:
        try:
            yield Bench(node, client, access)
        finally:
            with suppress(FaultError):
                stop_agent(node)
                node.run(f"umount {STATE}", check=False)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("flavour", ["debian-13"])
def test_the_next_start_says_what_was(
    fresh_node: Callable[[NodeConfig], Node], flavour: str
) -> None:
    """A clock that was wrong is right after each boot: its RTC was not touched."""
    config = NodeConfig(flavour=flavour, init="systemd", disks=(Disk("state", 1 << 27),))
    node = fresh_node(config)
    node.sh("mkfs.ext4 -q -F /dev/disk/by-id/virtio-state")
    for kind, spec, known in WAYS:
        before = node.boot_id
        with faultd(node, "--allow-reboot") as bench:
            clock = bench.inject("clock", NODE, spec={"offset": "+1h"})
            fault = bench.inject(kind, NODE, spec=spec, acknowledge=known)
            assert fault.state == "armed"
            node.await_boot()
        assert node.boot_id != before
        with faultd(node) as bench:
            ended = {one.id: one.end_reason for one in bench.client.faults()}
            assert ended[fault.id] == "rebooted"
            # systemd ends the agent first, which reverts what it can.
            orderly = kind == "reboot" and "how" not in spec
            assert ended[clock.id] == ("agent-lost" if orderly else "rebooted")
            assert f"{fault.id}: had not ended" in node.get(lab_agent.LOG).decode()
            assert bench.residue() == []
        assert abs(float(node.sh("date +%s")) - time.time()) < OFF_S


@pytest.mark.vm("debian-13")
def test_only_with_leave_and_by_name(bench: Bench) -> None:
    for kind in ("reboot", "panic"):
        with pytest.raises(Refused, match=r"goes down|dies"):
            bench.plan(kind, NODE)
        spec = {"how": "sudden"} if kind == "reboot" else {"reboot_after": "1s"}
        with pytest.raises(Refused, match="without --allow-reboot"):
            bench.plan(kind, NODE, spec=spec, acknowledge=[kind])


@pytest.mark.vm("debian-13")
def test_it_can_be_called_off(fresh_node: Callable[[NodeConfig], Node]) -> None:
    node = fresh_node(NodeConfig(disks=(Disk("state", 1 << 27),)))
    node.sh("mkfs.ext4 -q -F /dev/disk/by-id/virtio-state")
    before = node.boot_id
    with faultd(node, "--allow-reboot") as bench:
        asked: dict[str, Any] = {
            "spec": {"how": "sudden", "after": "20s"},
            "acknowledge": ["reboot"],
        }
        fault = bench.inject("reboot", NODE, **asked)
        assert json.loads(fault.evidence_json)["counters"] == {"waiting": 1}
        bench.client.revert(fault.id)
        bench.inject("reboot", NODE, **asked)
        node.sh(f"kill -9 {bench.pids()[0]}; sleep 25", timeout=60)
    assert node.sh("cat /proc/sys/kernel/random/boot_id").strip() == before
