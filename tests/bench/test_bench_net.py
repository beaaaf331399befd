"""Apply and revert of netem beside nsenter and tc, in one run."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest
from agentkit import running_agent
from net_kit import namespaces

from controller.lab import NodeConfig, launch, unique

ROUNDS = 15


@pytest.mark.timeout(900)
def test_apply_and_revert_beside_tc() -> None:
    with launch(unique(NodeConfig(flavour="debian-13"))) as node, running_agent(node) as bench:
        with namespaces(bench):
            node.put("/run/bench.py", Path(__file__).with_name("guest_bench_net.py").read_bytes())
            asked = json.dumps({"netns": "/run/netns/a", "rounds": ROUNDS}).encode()
            result = node.run(["python3", "/run/bench.py"], stdin=asked, timeout=400)
        found: dict[str, dict[str, list[int]]] = json.loads(result.out)
    report(found)
    assert len(found["agent"]["apply"]) == len(found["root"]["apply"]) == ROUNDS


def report(found: dict[str, dict[str, list[int]]]) -> None:
    """Medians in milliseconds (guest time), and the ratios."""
    ms = {who: {k: median(v) / 1000 for k, v in took.items()} for who, took in found.items()}
    print(f"\nnetem, median of {ROUNDS}, emulated guest:")
    for verb in ("apply", "revert"):
        agent, aside, root = (ms[who][verb] for who in ("agent", "aside", "root"))
        print(
            f"  {verb:7} agent {agent:8.1f} ms   tc, the same {aside:8.1f} ms x{agent / aside:.2f}"
            f"   tc, root replaced {root:8.1f} ms x{agent / root:.2f}"
        )
    for name, value in sorted(ms["agent"].items()):
        if "." in name:
            print(f"    {name:18} {value:8.1f} ms")
