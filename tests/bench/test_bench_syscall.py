"""What a call pays that is hooked for somebody else, in instructions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controller.lab import NodeConfig, launch, unique


@pytest.mark.timeout(900)
def test_cost_of_a_call_for_a_process_that_is_no_target() -> None:
    config = unique(NodeConfig(flavour="full", clock="icount"))
    with launch(config) as node:
        node.put("/run/bench.py", Path(__file__).with_name("guest_bench_syscall.py").read_bytes())
        found: dict[str, int] = json.loads(node.run(["python3", "/run/bench.py"], timeout=600).out)
    report(found)
    assert found["loaded, nothing armed"] < found["unhooked"] * 1.02
    assert found["disarmed"] < found["unhooked"] * 1.02
    # Constant in the number of faults.
    one, fifty = found["1 process is a target"], found["50 processes are targets"]
    assert abs(fifty - one) < found["unhooked"] * 0.05
    # Most of it is the kernel's own way to a program, the rest is who is a target.
    assert one - found["attached, nothing asked"] <= 150
    added = fifty - found["unhooked"]
    assert added <= 400
    assert found["by strace"] - found["unhooked"] >= 75 * added


def report(found: dict[str, int]) -> None:
    """A line a state: instructions a call, and what it adds to the unhooked one."""
    base = found["unhooked"]
    print("\ngetpriority(2) by Python, instructions in the guest:")
    for name, value in found.items():
        if name.startswith("arm"):
            print(f"  {name:32} {value / 1e6:10.1f} million once")
        else:
            print(f"  {name:32} {value:10d} {value - base:+6d}")
