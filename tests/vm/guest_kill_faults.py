"""Runs inside a lab node as root: the faults of the kill matrix, and what agents do with them."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from guest_kill_kit import STATE, Child
from guest_kill_kubelet import SET_UP as KUBELET
from guest_kill_kubelet import TEAR_DOWN as NO_KUBELET
from kill_cases import Case

from nodeagent import crashpoint
from nodeagent.agent import Agent
from nodeagent.bind.systemd import is_running
from nodeagent.fingerprint import fingerprint, text
from nodeagent.model.plan import FaultRequest, Lease
from nodeagent.volumes import Volumes

Say = Callable[..., None]
Script = Callable[[Agent, Say], None]
MOUNT = Path("/mnt/data")
FILE = MOUNT / "victim"
BLOCK = 4096
IDLE = "import signal\nsignal.signal(10, lambda *a: None)\nwhile True: signal.pause()"
CGROUP = """cd /sys/fs/cgroup; echo '+cpu +memory +io +pids' > cgroup.subtree_control; mkdir kill
echo '70000 100000' > kill/cpu.max; echo 999 > kill/pids.max; echo 1 > kill/memory.oom.group"""
SYSCTLS = ("net/ipv4/ip_forward", "net/ipv4/conf/*/*", "net/ipv4/tcp_rmem")
"""Those that the matrix looks at each time; the witness looks at all of net."""
SETTLE_S = 20.0
WITNESS = """dmsetup table | sort
dmsetup info -c --noheadings -o name,uuid,suspended,tables_loaded | sort
losetup -l
if command -v bpftool >/dev/null; then bpftool prog | grep -c name; fi
ip -n kill link | grep -v link/; tc -n kill qdisc; tc -n kill filter show dev eth0 egress
tc -n kill filter show dev eth0 ingress
ip netns exec kill sysctl net.ipv4 net.ipv6
cat /run/kubelet.threshold
ip -n kill addr | sed 's, tentative,,'; ip -n kill route; ip -n kill -6 route
ip netns exec kill ss -Hlntu
ip netns exec kill sh -c 'cat /proc/sys/net/netfilter/nf_conntrack_count 2>/dev/null || echo 0'
true"""
SERVICE = """cat > /run/systemd/system/kill.service <<EOF
[Service]
ExecStart=/usr/bin/sleep 100000
CPUQuota=50%
Restart=on-failure
EOF
systemctl daemon-reload; systemctl start kill"""
NETNS = """modprobe -q nf_conntrack_netlink || true
sysctl -q -w net.netfilter.nf_conntrack_max=3000 || true
ip netns add kill && ip -n kill link add eth0 type veth peer name peer
ip -n kill link set eth0 up && ip -n kill link set peer up
ip -n kill addr add 10.9.0.1/24 dev eth0 && ip -n kill addr add fd00:9::1/64 dev eth0 nodad
ip -n kill route add default via 10.9.0.2 && ip -n kill route add fd00:8::/64 via fd00:9::2
tc -n kill qdisc add dev eth0 root handle 5: htb default 1
tc -n kill class add dev eth0 parent 5: classid 5:1 htb rate 1gbit"""
"""A namespace with routes and a qdisc tree of its own, which nothing may change."""


def sh(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise AssertionError(f"{argv}: {done.returncode}: {done.stderr}")
    return done.stdout


def witness() -> str:
    """What dmsetup, losetup and bpftool say, which know nothing of us."""
    return sh("sh", "-c", WITNESS)


def tell(**result: Any) -> None:
    print(json.dumps(result), flush=True)


# --- the volumes ------------------------------------------------------------------


def prepare_volume(disk: str, name: str) -> None:
    def life(say: Say) -> None:
        say("made", path=Volumes("kill").prepare(f"/dev/disk/by-id/virtio-{disk}", name).path)

    made = Child(life)
    assert made.hear("made"), f"no volume on {disk}"
    made.join()


def set_up() -> None:
    """Prepared volumes on the disks d0 (mounted, with a file) and d1 (nobody uses it)."""
    prepare_volume("d0", "data")
    prepare_volume("d1", "raw")
    lazy = "lazy_itable_init=0,lazy_journal_init=0"  # nothing may write behind our back
    sh("mkfs.ext4", "-q", "-F", "-E", lazy, "/dev/mapper/data")
    MOUNT.mkdir(exist_ok=True)
    sh("mount", "/dev/mapper/data", str(MOUNT))
    FILE.write_bytes(bytes(range(256)) * 16 * 16)
    os.sync()
    sleeper()
    sh("sh", "-ec", NETNS)
    sh("sh", "-ec", CGROUP)
    # Only its own case needs it, and tells when it is not there.
    subprocess.run(["sh", "-ec", KUBELET], timeout=60, check=False)
    if is_running():
        sh("sh", "-ec", SERVICE)


def tear_down() -> None:
    """The file system must have come through unharmed."""
    sleeper().kill()
    sleeper().wait()
    sh("ip", "netns", "del", "kill")
    sh("rmdir", "/sys/fs/cgroup/kill")
    subprocess.run(["sh", "-ec", NO_KUBELET], timeout=60, check=False)
    sh("umount", str(MOUNT))
    sh("e2fsck", "-f", "-n", "/dev/mapper/data")
    sh("dmsetup", "remove", "data", "raw")


# --- what an agent does -----------------------------------------------------------


@cache
def sleeper() -> subprocess.Popen[bytes]:
    """A process for faults on processes; set_up starts it."""
    # It takes USR1 without dying of it, and starts no other process.
    return subprocess.Popen(["python3", "-c", IDLE])


def request(chosen: Case, ident: str) -> FaultRequest:
    targets: dict[str, dict[str, Any]] = {
        "file": {"type": "file", "file": str(FILE), "offset": "16Ki", "length": "8Ki"},
        "mounted": {"type": "device", "device": "/dev/mapper/data"},
        "raw": {"type": "device", "device": "/dev/mapper/raw"},
        "process": {"type": "pid", "pid": sleeper().pid},
        "cgroup": {"type": "cgroup", "cgroup": "/kill"},
        "kubelet": {"type": "node"},
        "fs": {"type": "volume", "volume": str(MOUNT)},
        "netns": {"type": "netns", "netns": "/run/netns/kill"},
        "node": {"type": "node"},
        "unit": {"type": "unit", "unit": "kill"},
    }
    return FaultRequest(
        id=ident,
        kind=chosen.kind,
        target=targets[chosen.target],
        spec=chosen.spec,
        mechanism=chosen.mechanism,
        acknowledge=chosen.acknowledge,
        owner="kill matrix",
    )


def arm(agent: Agent, chosen: Case, ident: str, lease: str = "10m") -> None:
    asked = request(chosen, ident)
    agent.apply(asked, Lease.model_validate({"duration": lease}), agent.plan(asked).digest)


def inject(chosen: Case, ident: str, at: int, places: str = "") -> Script:
    def script(agent: Agent, say: Say) -> None:
        asked = request(chosen, ident)
        digest = agent.plan(asked).digest
        say("ready")
        crashpoint.arm(at, places)
        agent.apply(asked, Lease(), digest)
        crashpoint.arm(0)
        say("survived")

    return script


def revert(chosen: Case, ident: str, at: int, places: str = "") -> Script:
    def script(agent: Agent, say: Say) -> None:
        arm(agent, chosen, ident)
        say("ready")
        crashpoint.arm(at, places)
        agent.revert(ident)
        crashpoint.arm(0)
        say("survived")

    return script


def heal(chosen: Case, ident: str, at: int, places: str = "") -> Script:
    """The parent writes to the bad blocks when this is ready, and the agent reacts."""

    def script(agent: Agent, say: Say) -> None:
        arm(agent, chosen, ident)
        crashpoint.arm(at, places)
        say("ready")
        end = time.monotonic() + 60
        while agent.journal.fault(ident).active:
            if time.monotonic() > end:
                raise TimeoutError(f"not healed: {agent.journal.fault(ident)}")
            time.sleep(0.02)
        crashpoint.arm(0)
        say("survived")

    return script


def hold(chosen: Case, ident: str, lease: str = "10m") -> Script:
    """Arm, and wait for whatever comes."""

    def script(agent: Agent, say: Say) -> None:
        arm(agent, chosen, ident, lease)
        say("armed")
        time.sleep(3600)

    return script


PHASES = {"inject": inject, "revert": revert, "heal": heal}


def write_blocks() -> None:
    """Write what is there already, past every cache: the one half heals, then the other."""
    source = Path("/run/block")
    source.write_bytes(bytes(range(256)) * (BLOCK // 256))
    for block in (4, 5):
        where = ("bs=4096", f"seek={block}", "oflag=direct", "conv=notrunc")
        sh("dd", f"if={source}", f"of={FILE}", *where)


# --- judging ----------------------------------------------------------------------


def now() -> str:
    return text(fingerprint(STATE, SYSCTLS))


def settled(want: str) -> tuple[float, str]:
    """Seconds until the fingerprint is `want`, and the lines that differ at the end."""
    start = time.monotonic()
    while True:
        have = now()
        if have == want or time.monotonic() - start > SETTLE_S:
            break
        time.sleep(0.05)
    have_lines, want_lines = have.splitlines(), want.splitlines()
    differs = [f"+{line}" for line in have_lines if line not in want_lines]
    differs += [f"-{line}" for line in want_lines if line not in have_lines]
    if have != want and not differs:
        differs = ["the order or number of lines"]
    return round(time.monotonic() - start, 2), "\n".join(differs[:20])


def journal(ident: str) -> dict[str, Any]:
    """What SQLite, and not our own code, finds about a fault; closed before the next fork."""
    db = sqlite3.connect(STATE / "journal.sqlite3")
    try:
        found = db.execute(
            "SELECT state, end_reason, ended_ns, error FROM faults WHERE id=?", (ident,)
        ).fetchone()
        left = db.execute("SELECT count(*) FROM faults WHERE state != 'ended'").fetchone()[0]
    finally:
        db.close()
    if found is None:
        return {"state": "none", "active": left}
    state, reason, ended, error = found
    return {"state": state, "reason": reason, "ended": ended, "error": error, "active": left}


def guardian_of(child: Child) -> int:
    """The pid of an agent's guardian."""
    started = child.hear("started")
    assert started is not None, child.heard
    return int(started["guardian"])


def end_quietly(child: Child) -> None:
    """An agent that nobody killed: it must have closed."""
    child.hear("closed")
    child.join()
    assert any(said["say"] == "closed" for said in child.heard), (child.status, child.heard)


def trace(message: str) -> None:
    print(f"{time.monotonic():.1f} {message}", file=sys.stderr, flush=True)


def row_of(found: Agent, ident: str) -> dict[str, Any]:
    """What an agent that has just started knows of a fault."""
    fault = found.journal.find_fault(ident)
    active = len(found.journal.faults(active_only=True))
    if fault is None:
        return {"state": "none", "active": active}
    reason, error = fault.end_reason, fault.error
    return {"state": fault.state, "reason": reason, "error": error, "active": active}
