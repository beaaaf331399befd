"""What a direct read pays for armed sectors and watches that are not its own, in instructions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controller.lab import NodeConfig, launch, unique


@pytest.mark.timeout(900)
def test_cost_of_a_read_beside_armed_sectors() -> None:
    config = unique(NodeConfig(flavour="full", clock="icount"))
    with launch(config) as node:
        node.put("/run/bench.py", Path(__file__).with_name("guest_bench_bio.py").read_bytes())
        found: dict[str, int] = json.loads(node.run(["python3", "/run/bench.py"], timeout=600).out)
    report(found)
    # A search of 100,000 ranges takes 17 steps more than one of a single range.
    assert found["100,000 ranges"] - found["1 range"] < 17 * 200
    assert found["loaded, nothing armed"] < found["unhooked"] * 1.05


def report(found: dict[str, int]) -> None:
    """A line a state: instructions a read, and what it adds to the unhooked one."""
    base = found["unhooked"]
    print("\n512-byte O_DIRECT read of null_blk by Python, instructions in the guest:")
    for name, value in found.items():
        if name.startswith(("load ", "arm")) and name != "armed on another disk":
            print(f"  {name:32} {value / 1e6:10.1f} million once")
        else:
            print(f"  {name:32} {value:10d} {value - base:+6d}")
