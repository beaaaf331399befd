"""Sysctls as data: their names, what hangs together, what must not be touched lightly. Pure.

Sources: Documentation/admin-guide/sysctl/ of the kernel, and the code named beside each table.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from pydantic import BaseModel, ConfigDict, Field

from nodeagent.model.steps.net import NetnsRef

MAX_VALUE = 4095
"""Bytes that the kernel takes in one write of a number list (proc_dointvec: one page)."""
_PART = re.compile(r"[A-Za-z0-9_@:.+-]{1,64}", re.ASCII)
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)", re.ASCII)

ONE_WAY = {
    "kernel/modules_disabled": "once set, no module can be loaded until the next boot",
    "kernel/kexec_load_disabled": "once set, it stays until the next boot",
    "kernel/unprivileged_bpf_disabled": "1 stays until the next boot",
    "kernel/yama/ptrace_scope": "3 stays until the next boot",
    "vm/drop_caches": "it is a trigger, not a state",
    "vm/compact_memory": "it is a trigger, not a state",
    "net/ipv4/route/flush": "it is a trigger, not a state",
    "net/ipv6/route/flush": "it is a trigger, not a state",
    "kernel/ns_last_pid": "the kernel changes it with every fork",
}
"""What no revert could take back, and why."""

GUARDS = {
    "node-life": (
        "a value too low or too high stops or kills the whole node",
        (
            "kernel/*panic*", "kernel/sysrq", "kernel/threads-max", "kernel/pid_max",
            "kernel/watchdog*", "fs/file-max", "vm/panic_on_oom", "vm/min_free_kbytes",
            "vm/overcommit_*", "vm/nr_hugepages*", "vm/lowmem_reserve_ratio", "vm/max_map_count",
            "user/max_*",
        ),
    ),
    "programs": (
        "the kernel runs what it names as root",
        (
            "kernel/core_pattern", "kernel/modprobe", "kernel/hotplug", "kernel/poweroff_cmd",
            "kernel/usermodehelper/*", "fs/binfmt_misc/*",
        ),
    ),
    "addresses": (
        "the kernel drops the interface's IPv6 addresses, and a revert does not bring them back",
        ("net/ipv6/conf/*/disable_ipv6",),
    ),
}  # fmt: skip
"""Guard -> (why, patterns of paths)."""

PARTNERS = {
    "vm/dirty_bytes": "vm/dirty_ratio",
    "vm/dirty_background_bytes": "vm/dirty_background_ratio",
    "vm/overcommit_kbytes": "vm/overcommit_ratio",
}
"""Writing the one sets the other to 0 (mm/page-writeback.c, mm/util.c)."""
PARTNERS |= {other: one for one, other in PARTNERS.items()}

_ALL = "net/ipv6/conf/all/"
FOLLOWERS = {
    "net/ipv4/ip_forward": "net/ipv4/conf/*/forwarding",
    "net/ipv4/conf/all/forwarding": "net/ipv4/conf/*/forwarding",
    **{
        f"{_ALL}{leaf}": f"net/ipv6/conf/*/{leaf}"
        for leaf in (
            "forwarding", "disable_ipv6", "ignore_routes_with_linkdown", "addr_gen_mode",
            "disable_policy",
        )
    },
}  # fmt: skip
"""Those of all interfaces that a write reaches (devinet_sysctl_forward, addrconf_sysctl_*)."""


def path_of(name: str) -> str:
    """`net.ipv4.ip_forward` or `net/ipv4/conf/eth0.1/rp_filter` as a path below /proc/sys.

    As sysctl(8): the first separator is the separator, the other stands for itself in a
    part. Raises ValueError.
    """
    at = re.search(r"[./]", name)
    if at is None:
        raise ValueError(f"{name!r} is no name of a sysctl, such as net.ipv4.ip_forward")
    if at.group() == ".":
        name = name.translate(str.maketrans("./", "/."))
    parts = name.split("/")
    if any(not _PART.fullmatch(part) or set(part) == {"."} for part in parts):
        raise ValueError(f"{name!r} is no name of a sysctl, such as net.ipv4.ip_forward")
    return "/".join(parts)


def name_of(path: str) -> str:
    """A path below /proc/sys as sysctl(8) shows it."""
    return path.translate(str.maketrans("./", "/."))


def assignment(text: str) -> tuple[str, str]:
    """(path, value) of `NAME=VALUE`; words of the value by one space. Raises ValueError."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not NAME=VALUE, such as net.ipv4.ip_forward=0")
    if len(value.encode()) > MAX_VALUE or any(ord(c) < 32 and c != "\t" for c in value):
        raise ValueError(f"the value of {name} is too long, or has control characters")
    return path_of(name.strip()), words(value)


def words(value: str) -> str:
    """The value as it is compared: the kernel separates numbers by tabs."""
    return " ".join(value.split())


def is_numbers(value: str) -> bool:
    """Whether it is one decimal number or more, as the kernel shows them."""
    return bool(value) and all(_NUMBER.fullmatch(word) for word in value.split())


def is_net(path: str) -> bool:
    """Whether it may belong to a net namespace."""
    return path.startswith("net/")


def group_of(path: str) -> str:
    """What it shares a key with: files of which one write can change the other."""
    if path == "net/ipv4/ip_forward":
        return "net/ipv4/conf/*/forwarding"
    if found := re.fullmatch(r"(net/ipv[46]/conf)/[^/]+/(.+)", path):
        return f"{found[1]}/*/{found[2]}"
    return min(path, PARTNERS.get(path, path))


def reaches(one: str, other: str) -> bool:
    """Whether a write to the one of a group may change the other, or the other way round."""
    if group_of(one) != group_of(other):
        return False
    wide = (one, other)
    return (
        one == other
        or one in PARTNERS
        or "net/ipv4/ip_forward" in wide
        or any(re.match(r"net/ipv[46]/conf/(all|default)/", path) for path in wide)
    )


def followers(path: str) -> str:
    """Pattern of the paths that a write to this one changes as well; empty: none.

    conf/default of IPv4 reaches interfaces whose own was never written
    (devinet_copy_dflt_conf, net/ipv4/devinet.c).
    """
    if found := re.fullmatch(r"net/ipv4/conf/default/(.+)", path):
        return f"net/ipv4/conf/*/{found[1]}"
    return FOLLOWERS.get(path, "")


def guards_of(path: str) -> list[str]:
    """Names of the guard rails around it."""
    return [name for name, (_, globs) in GUARDS.items() if any(fnmatchcase(path, g) for g in globs)]


class SysctlValue(BaseModel):
    """One sysctl as it is now."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    path: str = Field(description="below /proc/sys")
    value: str = Field(description="its words, one space between them")
    partner: str = Field(default="", description="the other of its pair, if any")


class SysctlBinding(BaseModel):
    """The sysctls of a spec, and whose they are."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    target: str
    netns: NetnsRef = Field(description="of the target; the node's own for the node")
    host: bool = Field(description="the netns is the node's own, or the agent's")
    values: tuple[SysctlValue, ...]
