"""Runs in the guest: apply and revert of latent-sector beside dmsetup doing the same.

Standard input: {"device", "rounds"}. Everything is measured in this one run, on an idle
prepared volume; prints JSON with microseconds, a list a phase.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from controller.client import AgentAddress, AgentClient
from nodeagent.model.plan import FaultRequest, Lease

START, LENGTH = 100_000, 8


def fsync_us(rounds: int) -> list[int]:
    """What one small write and fsync costs beside the journal."""
    took = []
    fd = os.open("/var/lib/faultctl/bench", os.O_CREAT | os.O_WRONLY, 0o600)
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        os.pwrite(fd, b"x" * 4096, 0)
        os.fsync(fd)
        took.append((time.perf_counter_ns() - begin) // 1000)
    os.close(fd)
    os.unlink("/var/lib/faultctl/bench")
    return took


def shell_us(device: str, rounds: int) -> dict[str, list[int]]:
    """The same table in and out by dmsetup, as an engineer would do it."""
    name = Path(device).name
    base = subprocess.run(["dmsetup", "table", name], capture_output=True, text=True).stdout
    size, below = int(base.split()[1]), base.split()[3]
    end = START + LENGTH
    faulty = (
        f"0 {START} linear {below} 0\n"
        f"{START} {LENGTH} delay ERR {START} 0 {below} {START} 0 {below} {START} 0\n"
        f"{end} {size - end} linear {below} {end}\n"
    )
    found: dict[str, list[int]] = {"apply": [], "revert": []}
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        run("dmsetup", "create", "bench-err", "--noudevsync", stdin=f"0 {size} error\n")
        err = subprocess.run(
            ["dmsetup", "info", "-c", "--noheadings", "-o", "major,minor", "bench-err"],
            capture_output=True,
            text=True,
        ).stdout.strip()
        run("dmsetup", "load", name, stdin=faulty.replace("ERR", err))
        run("dmsetup", "resume", "--noudevsync", "--nolockfs", "--noflush", name)
        found["apply"].append((time.perf_counter_ns() - begin) // 1000)
        begin = time.perf_counter_ns()
        run("dmsetup", "load", name, stdin=base)
        run("dmsetup", "resume", "--noudevsync", "--nolockfs", "--noflush", name)
        run("dmsetup", "remove", "--noudevsync", "bench-err")
        found["revert"].append((time.perf_counter_ns() - begin) // 1000)
    return found


def run(*argv: str, stdin: str = "") -> None:
    subprocess.run(argv, input=stdin, text=True, check=True, capture_output=True)


def agent_us(device: str, rounds: int) -> dict[str, list[int]]:
    """RPC to armed and RPC to reverted, and the agent's own phases."""
    found: dict[str, list[int]] = {}
    with AgentClient(AgentAddress("unix:///run/faultctl/faultd.sock")) as agent:
        for number in range(rounds):
            request = FaultRequest(
                id=f"bench-{number}",
                kind="latent-sector",
                target={"type": "device", "device": device},
                spec={"sectors": f"{START}+{LENGTH}", "on_write": "keep"},
                mechanism="dm-delay",
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


def rss_kib(pattern: str) -> int:
    pid = subprocess.run(["pgrep", "-o", "-f", pattern], capture_output=True, text=True).stdout
    for line in Path(f"/proc/{pid.strip()}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0


def main() -> None:
    asked = json.load(sys.stdin)
    rest = {"agent": rss_kib("[n]odeagent.main"), "guardian": rss_kib("[n]odeagent.guardian")}
    json.dump(
        {
            "rss_kib_at_rest": rest,
            "fsync": fsync_us(asked["rounds"]),
            "shell": shell_us(asked["device"], asked["rounds"]),
            "agent": agent_us(asked["device"], asked["rounds"]),
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
