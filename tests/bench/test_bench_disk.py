"""Apply and revert of latent-sector beside dmsetup, in one run; agent and guardian at rest."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest
from agentkit import running_agent

from controller.lab import Disk, NodeConfig, launch, unique
from protos import faultd_pb2 as pb

ROUNDS = 15


@pytest.mark.timeout(900)
def test_apply_and_revert_beside_dmsetup() -> None:
    config = unique(NodeConfig(flavour="debian-13", disks=(Disk("d0", 1 << 28),)))
    with launch(config) as node, running_agent(node) as bench:
        bench.client.volumes(
            pb.VolumeRequest.PREPARE, device="/dev/disk/by-id/virtio-d0", name="data"
        )
        node.put("/run/bench.py", Path(__file__).with_name("guest_bench_disk.py").read_bytes())
        asked = json.dumps({"device": "/dev/mapper/data", "rounds": ROUNDS}).encode()
        result = node.run(["python3", "/run/bench.py"], stdin=asked, timeout=300)
        found = json.loads(result.out)
    report(found)
    assert len(found["agent"]["apply"]) == len(found["shell"]["apply"]) == ROUNDS


def report(found: dict[str, dict[str, list[int]]]) -> None:
    """Medians in milliseconds (guest time), and the ratios."""
    agent = {name: median(values) / 1000 for name, values in found["agent"].items()}
    shell = {name: median(values) / 1000 for name, values in found["shell"].items()}
    fsync = median(found["fsync"]) / 1000  # type: ignore[arg-type]
    print(f"\nlatent-sector by dm-delay, median of {ROUNDS}, emulated guest:")
    for verb in ("apply", "revert"):
        ratio = agent[verb] / shell[verb]
        print(
            f"  {verb:7} agent {agent[verb]:8.1f} ms   dmsetup {shell[verb]:8.1f} ms   x{ratio:.2f}"
        )
    print(f"  one fsync beside the journal {fsync:.1f} ms")
    for name, value in sorted(agent.items()):
        if "." in name:
            print(f"    {name:18} {value:8.1f} ms")
    rest = found["rss_kib_at_rest"]
    print(f"  at rest: agent {rest['agent']} KiB, guardian {rest['guardian']} KiB RSS")
