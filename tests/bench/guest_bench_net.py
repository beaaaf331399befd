"""Runs in the guest: apply and revert of netem beside nsenter and tc doing the same.

Standard input: {"netns", "rounds"}. Everything is measured in this one run, on idle
interfaces; prints JSON with microseconds, a list a phase.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

from controller.client import AgentAddress, AgentClient
from nodeagent.model.plan import FaultRequest, Lease

ROOT = ["tc qdisc add dev eth0 root netem delay 10ms", "tc qdisc del dev eth0 root"]
"""What replaces the interface's own qdisc: fewer commands, and its prior state is lost."""
ASIDE = [
    "ip link add ours type ifb; ip link set ours up; "
    "tc qdisc add dev ours root handle fa17: netem delay 10ms; tc qdisc add dev eth0 clsact; "
    "tc filter add dev eth0 egress pref 64 protocol all flower "
    "action mirred egress redirect dev ours",
    "tc filter del dev eth0 egress pref 64; tc qdisc del dev eth0 clsact; ip link del ours",
]
"""The same as the agent does."""


def shell_us(netns: str, rounds: int, scripts: list[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {"apply": [], "revert": []}
    for _ in range(rounds):
        for verb, script in zip(found, scripts, strict=True):
            begin = time.perf_counter_ns()
            subprocess.run(["nsenter", f"--net={netns}", "sh", "-ec", script], check=True)
            found[verb].append((time.perf_counter_ns() - begin) // 1000)
    return found


def agent_us(netns: str, rounds: int) -> dict[str, list[int]]:
    """RPC to armed and RPC to reverted, and the agent's own phases."""
    found: dict[str, list[int]] = {}
    with AgentClient(AgentAddress("unix:///run/faultctl/faultd.sock")) as agent:
        for number in range(rounds):
            request = FaultRequest(
                id=f"bench-{number}",
                kind="netem",
                target={"type": "netns", "netns": netns},
                spec={"delay": "10ms"},
            )
            _, digest = agent.plan(request)
            begin = time.perf_counter_ns()
            agent.apply(request, Lease(), digest)
            found.setdefault("apply", []).append((time.perf_counter_ns() - begin) // 1000)
            begin = time.perf_counter_ns()
            agent.revert(request.id)
            found.setdefault("revert", []).append((time.perf_counter_ns() - begin) // 1000)
            for event in agent.watch(fault_id=request.id):
                for phase, took in json.loads(event.data_json).get("took_us", {}).items():
                    found.setdefault(f"{event.type}.{phase}", []).append(took)
    return found


def main() -> None:
    asked = json.load(sys.stdin)
    netns, rounds = asked["netns"], asked["rounds"]
    json.dump(
        {
            "aside": shell_us(netns, rounds, ASIDE),
            "root": shell_us(netns, rounds, ROOT),
            "agent": agent_us(netns, rounds),
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
