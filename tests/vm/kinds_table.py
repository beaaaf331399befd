"""Which kinds must run and which must refuse on each flavour, rung by rung.

A rung that is missing has a word of the reason that the agent must give. A kind or a
rung that is not in this table is a failure, so that nobody can add one without saying
where it works. Asked with a kind's default options, as Describe does. Presets of a kind
(`khaos:...`) have no rows: each must have some way to run on `full`.
"""

from __future__ import annotations

FLAVOURS = ("debian-12", "debian-13", "full")

_STOCK = ("debian-12", "debian-13")
_NO_INJECTION = dict.fromkeys(_STOCK, "CONFIG_FUNCTION_ERROR_INJECTION")
_NO_OVERRIDE = dict.fromkeys(_STOCK, "CONFIG_BPF_KPROBE_OVERRIDE")
_NO_SYSTEMD = dict.fromkeys(FLAVOURS, "systemd does not run")
_NOT_ALLOWED = dict.fromkeys(FLAVOURS, "--allow-reboot")
_NO_DUST = dict.fromkeys(_STOCK, "no dm-dust")

KINDS: dict[str, dict[str, dict[str, str]]] = {
    "bandwidth": {"tbf": {}},
    "clock": {"adjtimex": {}},
    "conntrack-full": {"fill": {}},
    "disk-corrupt": {"dm-flakey": {"debian-12": "no random_read_corrupt"}},
    "disk-delay": {"dm-delay": {}},
    "disk-drop-writes": {"dm-flakey": {}},
    "disk-fill": {"fallocate": {}},
    "disk-flaky": {"dm-flakey": {}},
    "disk-outage": {"dm-flakey": {}, "bpf-bio": _NO_INJECTION, "dm-delay": {}, "dm-error": {}},
    "fault-point": {"fault-injection": dict.fromkeys(_STOCK, "CONFIG_FAILSLAB")},
    "fd-exhaust": {"prlimit": {}},
    "inode-exhaust": {"empty-files": {}},
    "dns": {"tc-answer": {}, "tc-delay": {}},
    "kill": {"signal": {}},
    "kubelet-eviction": {"config-file": {}},
    "latent-sector": {
        "bpf-bio": _NO_INJECTION,
        "dm-dust": _NO_DUST,
        "dm-delay": {},
        "dm-flakey": {"debian-12": "no error_reads"},
        "dm-error": {},
    },
    "link-down": {"admin-down": {}},
    "netem": {"netem": {}, "tc-bpf": {}},
    "panic": {"sysrq": _NOT_ALLOWED},
    "partition": {"tc-drop": {}, "tc-reject": {}},
    "pause": {"cgroup-freezer": {}, "sigstop": {}},
    "reboot": {"systemctl": _NOT_ALLOWED, "sysrq": _NOT_ALLOWED},
    "service": {"systemctl": _NO_SYSTEMD, "cpu-max": _NO_SYSTEMD, "cgroup-freezer": _NO_SYSTEMD},
    "pid-exhaust": {"pids-max": {}},
    "port-taken": {"bound-socket": {}},
    "stress": {"stress-ng": {}},
    "sysctl": {"procfs": {}},
    "syscall": {
        "bpf-fmod-ret": _NO_INJECTION,
        "bpf-kprobe": _NO_OVERRIDE,
        "bpf-lsm": {},
        "strace": {},
    },
    "throttle": {"cgroup-v2": {}},
}
"""kind -> rung -> {flavour: why it must be missing there}; other flavours must have it."""

# features of dm-flakey that no version tells -> flavours that have them
FLAKEY: dict[str, frozenset[str]] = {
    name: frozenset({"debian-13", "full"})
    for name in (
        "flakey:corrupts_reads",
        "flakey:corrupts_writes",
        "flakey:error_reads",
        "flakey:random_read_corrupt",
        "flakey:random_write_corrupt",
    )
} | {"flakey:tried": frozenset(FLAVOURS)}


def runs_on(kind: str, flavour: str) -> bool:
    """Whether some rung of a kind must be there."""
    return any(flavour not in missing for missing in KINDS[kind].values())
