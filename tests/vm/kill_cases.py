"""Which faults the kill matrix arms: every rung of every kind, and where it runs. Pure.

A kind or a rung that is missing here fails tests/unit/test_kill_cases.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

STOCK = ("debian-12", "debian-13")
ALL = (*STOCK, "full")
FULL = ("full",)
NOWHERE: tuple[str, ...] = ()
READ = {"call": ["read"], "errno": "EIO"}


@dataclass(frozen=True)
class Case:
    """One mechanism of one kind.

    target: `file` (on a mounted ext4), `mounted` (its volume), `raw` (a prepared volume that
    nobody uses, for what a file system does not survive), `process` (one that sleeps), `cgroup`
    (with limits of its own), `kubelet` (a supervised process), `fs` (the mounted ext4 as such),
    `netns`, `node` or `unit`.
    on: flavours that must arm it; on the others its plan must be refused. heals: a write to
    it is answered by the agent with a change of the armed step, and ends the fault.
    systemd: it is armed on nodes that have systemd as process 1, and refused on the others.
    """

    kind: str
    mechanism: str
    target: str
    on: tuple[str, ...] = ALL
    spec: dict[str, Any] = field(default_factory=dict)
    acknowledge: tuple[str, ...] = ()
    heals: bool = False
    systemd: bool = False

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.mechanism}"


CASES = (
    Case("latent-sector", "bpf-bio", "file", FULL, heals=True),
    Case("latent-sector", "dm-dust", "file", FULL, heals=True),
    Case("latent-sector", "dm-delay", "file", heals=True),
    Case("latent-sector", "dm-flakey", "file", ("debian-13", "full"), heals=True),
    Case("latent-sector", "dm-error", "file", spec={"on_write": "fail"}),
    Case("disk-outage", "dm-flakey", "raw", spec={"fail": "all"}),
    Case("disk-outage", "bpf-bio", "mounted", FULL, spec={"fail": "reads"}),
    Case("disk-outage", "dm-delay", "mounted", spec={"fail": "reads"}),
    Case("disk-outage", "dm-error", "raw", spec={"fail": "all"}),
    Case("disk-flaky", "dm-flakey", "raw", spec={"up": "1s", "down": "1s"}),
    Case("disk-delay", "dm-delay", "mounted", spec={"read": "5ms", "write": "1ms"}),
    Case("disk-corrupt", "dm-flakey", "raw", ("debian-13", "full"), acknowledge=("data-loss",)),
    Case("disk-drop-writes", "dm-flakey", "raw", acknowledge=("data-loss",)),
    Case("syscall", "bpf-fmod-ret", "process", FULL, spec=READ),
    Case("syscall", "bpf-kprobe", "process", FULL, spec=READ),
    Case("fault-point", "fault-injection", "process", FULL, {"point": "fail_futex"}),
    Case("netem", "netem", "netns", spec={"delay": "50ms", "direction": "both"}),
    Case("netem", "tc-bpf", "netns", spec={"loss": "5%"}),
    Case("partition", "tc-drop", "netns", spec={"to": "10.9.0.2", "but": "10.9.0.2:22/tcp"}),
    Case("partition", "tc-reject", "netns", spec={"to": "10.9.0.2", "mode": "reject"}),
    Case("link-down", "admin-down", "netns"),
    Case("dns", "tc-answer", "netns", spec={"error": "nxdomain", "names": "*.internal"}),
    Case("dns", "tc-delay", "netns", spec={"delay": "1s"}),
    Case("port-taken", "bound-socket", "netns", spec={"ports": "8080", "protocol": "both"}),
    Case("conntrack-full", "fill", "netns"),
    Case("bandwidth", "tbf", "netns", spec={"rate": "10mbit"}),
    Case("syscall", "bpf-lsm", "process", spec={"call": ["openat"], "errno": "EACCES"}),
    Case("syscall", "strace", "process", spec={**READ, "tree": True}),
    Case("throttle", "cgroup-v2", "cgroup", spec={"cpu": "0.5", "pids": 100, "memory": "32Mi"}),
    Case("pause", "cgroup-freezer", "cgroup"),
    Case("pause", "sigstop", "process"),
    Case("stress", "stress-ng", "cgroup", ALL, {"cpu": 1, "load": "10%", "restart": True}),
    Case("disk-fill", "fallocate", "fs", spec={"bytes": "32Mi"}),
    Case(
        "sysctl",
        "procfs",
        "netns",
        spec={"set": ["net.ipv4.ip_forward=1", "net.ipv4.tcp_rmem=4096 8192 16384"]},
    ),
    Case("clock", "adjtimex", "node", spec={"offset": "+1h", "drift": "+1%"}),
    Case("service", "systemctl", "unit", NOWHERE, systemd=True),
    Case("service", "cpu-max", "unit", NOWHERE, {"action": "slow", "speed": "9%"}, systemd=True),
    Case("service", "cgroup-freezer", "unit", NOWHERE, {"action": "freeze"}, systemd=True),
    # Agents of the matrix may not take the node down: tests/vm/test_reboot.py has those who do.
    Case("reboot", "systemctl", "node", NOWHERE, acknowledge=("reboot",)),
    Case("reboot", "sysrq", "node", NOWHERE, {"how": "sudden"}, acknowledge=("reboot",)),
    Case("panic", "sysrq", "node", NOWHERE, acknowledge=("panic", "stays-down")),
    Case("kubelet-eviction", "config-file", "kubelet", acknowledge=("evicts-pods",)),
    Case("fd-exhaust", "prlimit", "process", spec={"leave": 3, "hard": True}),
    Case("pid-exhaust", "pids-max", "cgroup", spec={"leave": 2}),
    Case("inode-exhaust", "empty-files", "fs", spec={"take": 200}),
    Case("kill", "signal", "process", spec={"signal": "USR1", "every": "1s"}),
)

WAITING = frozenset({"khaos"})
"""Kinds without a case: they come with their own objects in the fingerprint."""


def is_tried(chosen: Case, at: int, every: int) -> bool:
    """Whether a place, from 1, is among each N-th; all are, somewhere in N cases."""
    return (at + CASES.index(chosen)) % every == 0


def case(name: str) -> Case:
    """The case of this name."""
    return next(c for c in CASES if c.name == name)
