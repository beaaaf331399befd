"""What a node and its kernel can do, as data; and needs that are checked against it.

A need is a question about the facts with a precise answer: which capability is
missing, and what would provide it. Features are probed, versions of the kernel are
only shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

from nodeagent.model.bpf import BY_EITHER, MAPS, WITHOUT_BTF

Version = tuple[int, int, int]


class Facts(BaseModel):
    """One node's facts at the time of a plan; read by nodeagent.facts, never guessed."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    node_id: str = Field(
        description="stable id of the node: /etc/machine-id, else from the journal"
    )
    hostname: str = ""
    kernel_release: str = Field(description="uname -r")
    arch: str = Field(description="uname -m")
    boot_id: str = Field(description="/proc/sys/kernel/random/boot_id")
    root: bool = Field(default=False, description="effective uid 0 with CAP_SYS_ADMIN")
    btf: bool = Field(default=False, description="/sys/kernel/btf/vmlinux is readable")
    libbpf: str = Field(default="", description="version of libbpf.so.1, empty if absent")
    bpf_objects: tuple[str, ...] = Field(default=(), description="compiled BPF objects at hand")
    bpf_loader: str = Field(
        default="libbpf", description="what loads programs that both can load: libbpf or bcc"
    )
    bcc: str = Field(default="", description="name of libbcc.so, empty if absent")
    kernel_headers: str = Field(
        default="", description="where this kernel's headers are: a folder, or kheaders.tar.xz"
    )
    lockdown: str = Field(default="none", description="none, integrity or confidentiality")
    lsm: tuple[str, ...] = Field(default=(), description="/sys/kernel/security/lsm")
    dm_version: str = Field(default="", description="device-mapper's version, empty if absent")
    dm_targets: Mapping[str, Version] = Field(
        default={}, description="device-mapper targets that are loaded or could be loaded"
    )
    dm_features: tuple[str, ...] = Field(
        default=(), description="features that no target version tells, such as flakey:error_reads"
    )
    error_injection: tuple[str, ...] = Field(
        default=(), description="functions of interest on the kernel's error-injection list"
    )
    net_features: tuple[str, ...] = Field(
        default=(), description="traffic control that works: netem, netem:seed, ifb, flower, ..."
    )
    kprobe_override: bool = Field(
        default=False, description="BPF on kprobes may override return values"
    )
    fault_points: tuple[str, ...] = Field(
        default=(), description="the kernel's own: failslab, fail_page_alloc, ..., fail-nth"
    )
    strace: str = Field(default="", description="path of strace(1), empty if absent")
    cgroup: str = Field(default="", description="v2, hybrid, v1 or empty")
    systemd: bool = Field(default=False, description="systemd is process 1 (sd_booted(3))")
    tls_ca: str = Field(
        default="", description="CA file of the agent's clients, empty when it is not on TCP"
    )
    may_reboot: bool = Field(default=False, description="faultd runs with --allow-reboot")
    stress_ng: str = Field(default="", description="what stress-ng --version says, empty if absent")
    notes: tuple[str, ...] = ()


class Need(Protocol):
    """A question about the facts."""

    def missing(self, facts: Facts) -> str | None:
        """None if the node has it; else one sentence: what is missing and what provides it."""


@dataclass(frozen=True)
class NeedRoot:
    """Effective root with CAP_SYS_ADMIN."""

    def missing(self, facts: Facts) -> str | None:
        return None if facts.root else "faultd does not run as root with CAP_SYS_ADMIN"


@dataclass(frozen=True)
class NeedDmTarget:
    """A device-mapper target of at least this version (feature probing by target version)."""

    name: str
    version: Version = (0, 0, 0)
    feature: str = ""

    def missing(self, facts: Facts) -> str | None:
        if not facts.dm_version:
            return "the kernel has no device-mapper (module dm_mod)"
        have = facts.dm_targets.get(self.name)
        if have is None:
            return f"the kernel has no dm-{self.name} (module dm_{self.name})"
        if have < self.version:
            what = f" for {self.feature}" if self.feature else ""
            return f"dm-{self.name} is {_dotted(have)}, {_dotted(self.version)} is needed{what}"
        return None


@dataclass(frozen=True)
class NeedDmFeature:
    """A feature of a device-mapper target that came without a new version number."""

    feature: str
    since: str

    def missing(self, facts: Facts) -> str | None:
        if self.feature in facts.dm_features:
            return None
        target, _, name = self.feature.partition(":")
        return f"this kernel's dm-{target} has no {name} (Linux {self.since} and later)"


@dataclass(frozen=True)
class NeedBpf:
    """What one of our BPF programs needs to be loaded, by whichever loader loads it."""

    program: str

    def missing(self, facts: Facts) -> str | None:
        by_bcc = facts.bpf_loader == "bcc" and self.program in BY_EITHER
        without_btf = self.program == MAPS or (by_bcc and self.program in WITHOUT_BTF)
        if not facts.btf and not without_btf:
            return "the kernel has no BTF (CONFIG_DEBUG_INFO_BTF)"
        if not facts.libbpf:
            return "libbpf.so.1 is not installed (Debian package libbpf1)"
        if self.program not in facts.bpf_objects:
            return f"the BPF object {self.program}.bpf.o is not built (make bpf)"
        if by_bcc and not facts.bcc:
            return "libbcc.so.0 is not installed (Debian package libbpfcc)"
        if by_bcc and not (facts.btf or facts.kernel_headers):
            return (
                "the kernel has neither BTF (CONFIG_DEBUG_INFO_BTF) nor headers at hand "
                f"(CONFIG_IKHEADERS, or the package linux-headers-{facts.kernel_release})"
            )
        if facts.lockdown == "confidentiality":
            return "kernel lockdown is in confidentiality mode"
        return None


@dataclass(frozen=True)
class NeedErrorInjection:
    """A function on the kernel's error-injection list (CONFIG_FUNCTION_ERROR_INJECTION)."""

    function: str

    def missing(self, facts: Facts) -> str | None:
        if self.function in facts.error_injection:
            return None
        return f"{self.function} is not open to error injection (CONFIG_FUNCTION_ERROR_INJECTION)"


@dataclass(frozen=True)
class NeedSystemd:
    """systemd as process 1."""

    def missing(self, facts: Facts) -> str | None:
        if facts.systemd:
            return None
        return "systemd does not run this node (/run/systemd/system is missing)"


@dataclass(frozen=True)
class NeedMayReboot:
    """An agent that was started with leave to take its node down."""

    def missing(self, facts: Facts) -> str | None:
        if facts.may_reboot:
            return None
        return "this node's agent may not take it down: faultd runs without --allow-reboot"


NET_MODULES = {
    "netem": ("sch_netem", "NET_SCH_NETEM"),
    "tbf": ("sch_tbf", "NET_SCH_TBF"),
    "ifb": ("ifb", "IFB"),
    "clsact": ("sch_ingress", "NET_SCH_INGRESS"),
    "flower": ("cls_flower", "NET_CLS_FLOWER"),
    "bpf": ("cls_bpf", "NET_CLS_BPF"),
    "mirred": ("act_mirred", "NET_ACT_MIRRED"),
    "gact": ("act_gact", "NET_ACT_GACT"),
}
"""Features of traffic control and what provides them: module, kernel option."""


@dataclass(frozen=True)
class NeedNet:
    """A part of traffic control, tried out by the facts in a namespace of their own."""

    feature: str

    def missing(self, facts: Facts) -> str | None:
        if self.feature in facts.net_features:
            return None
        if self.feature == "netem:seed":
            return "this kernel's netem takes no seed (Linux 6.6 and later)"
        module, option = NET_MODULES[self.feature]
        return (
            f"the kernel has no {module} (CONFIG_{option}; the module is in kernel-modules-extra "
            "on Fedora, linux-modules-extra on Ubuntu)"
        )


@dataclass(frozen=True)
class NeedStrace:
    """The program that traces system calls."""

    def missing(self, facts: Facts) -> str | None:
        return None if facts.strace else "strace is not installed (Debian package strace)"


DEBUGFS = "with debugfs mounted on /sys/kernel/debug"


@dataclass(frozen=True)
class NeedFaultPoint:
    """One of the kernel's own fault points (lib/Kconfig.debug), with its files in debugfs."""

    name: str

    def missing(self, facts: Facts) -> str | None:
        if facts.lockdown != "none":
            # LOCKDOWN_DEBUGFS: in integrity mode already (include/linux/security.h).
            return f"kernel lockdown is in {facts.lockdown} mode, which keeps debugfs shut"
        if self.name in facts.fault_points:
            return None
        option = "FAULT_INJECTION" if self.name == "fail-nth" else self.name.upper()
        more = "" if self.name == "fail-nth" else f" and CONFIG_FAULT_INJECTION_DEBUG_FS, {DEBUGFS}"
        return f"the kernel has no {self.name} (CONFIG_{option}{more})"


@dataclass(frozen=True)
class NeedKprobeOverride:
    """bpf_override_return for programs on kprobes."""

    def missing(self, facts: Facts) -> str | None:
        if facts.kprobe_override:
            return None
        return "the kernel has no bpf_override_return (CONFIG_BPF_KPROBE_OVERRIDE)"


@dataclass(frozen=True)
class NeedBpfLsm:
    """BPF among the active security modules."""

    def missing(self, facts: Facts) -> str | None:
        if "bpf" in facts.lsm:
            return None
        return "bpf is not an active LSM (CONFIG_BPF_LSM, and `bpf` in the boot option lsm=)"


def first_missing(needs: tuple[Need, ...], facts: Facts) -> str | None:
    """The first need that the node does not meet, as a sentence; None if it meets all."""
    for need in needs:
        reason = need.missing(facts)
        if reason is not None:
            return reason
    return None


def _dotted(version: Version) -> str:
    return ".".join(str(part) for part in version)
