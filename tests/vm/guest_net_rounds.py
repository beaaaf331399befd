"""Runs inside a lab node as root: faults of network kinds on namespace `a`, round after round.

guest_net_rounds.py ROUNDS      prints one JSON object: what the agent holds early and late
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from nodeagent.agent import Agent, AgentConfig
from nodeagent.bpf_inventory import inventory
from nodeagent.model.plan import FaultRequest, Lease
from nodeagent.net_fingerprint import network

TARGET = {"type": "netns", "netns": "/run/netns/a"}
KINDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("netem", {"delay": "20ms", "direction": "both", "to": "10.9.0.2"}),
    ("partition", {"to": "10.9.0.3,fd00:9::3"}),
    ("partition", {"to": "10.9.0.3", "mode": "reject"}),
    ("bandwidth", {"rate": "10mbit"}),
    ("dns", {"error": "nxdomain", "names": "*.internal"}),
    ("port-taken", {"ports": "8080-8082", "protocol": "both"}),
    ("link-down", {"interface": "eth0"}),
    ("netem", {"loss": "5%", "to": "*:5001/udp"}),
)


def held() -> dict[str, int]:
    status = Path("/proc/self/status").read_text("ascii")
    rss = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    return {
        "fds": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "rss_kb": int(rss),
        "programs": len(inventory()["programs"]),
    }


def settled(want: dict[str, list[str]]) -> list[str]:
    """What differs from before when programs and addresses have settled."""
    differs: list[str] = []
    for _ in range(100):
        have = network()
        differs = [
            f"{sign}{name}: {line}"
            for sign, one, other in (("+", have, want), ("-", want, have))
            for name, lines in one.items()
            for line in lines
            if line not in other.get(name, [])
        ]
        if not differs:
            break
        time.sleep(0.1)
    return differs


def main() -> None:
    rounds = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        agent = Agent(AgentConfig(Path(folder) / "state", modprobe=False))
        agent.start()
        before = network()
        early: dict[str, int] = {}
        for i in range(rounds):
            kind, spec = KINDS[i % len(KINDS)]
            asked = FaultRequest(id=f"round-{i}", kind=kind, target=TARGET, spec=spec)
            agent.apply(asked, Lease(), agent.plan(asked).digest)
            agent.revert(asked.id)
            if i + 1 == max(rounds // 10, len(KINDS)):
                time.sleep(1)
                early = held()
        differs = settled(before)
        time.sleep(1)
        late = held()
        agent.close()
    both = {name: [early[name], late[name]] for name in late}
    print(json.dumps({"rounds": rounds, "differs": differs[:20], **both}))


if __name__ == "__main__":
    main()
