"""Read-only probes of what this node and its kernel can do.

The modules of our mechanisms are loaded once at the agent's start, so that their
versions can be asked; nothing is loaded while a plan is made.
"""

from __future__ import annotations

import ctypes.util
import os
import platform
import shutil
import socket
import subprocess
from pathlib import Path

from nodeagent.backends.bcc import kernel_headers
from nodeagent.backends.dmctl import DmControl
from nodeagent.backends.flakey_probe import corrupting
from nodeagent.backends.libbpf import probe_helper
from nodeagent.clock import boot_id
from nodeagent.encode.syscalls import all_functions
from nodeagent.model.bpf import chosen_loader
from nodeagent.model.errors import FaultError
from nodeagent.model.facts import Facts
from nodeagent.net_probe import net_features

BPF_OBJECTS = Path(__file__).parent / "bpf_objects"
MODULES = ("loop", "dm_mod", "dm_delay", "dm_flakey", "dm_dust", "ifb numifbs=0", "sch_netem")
"""With their parameters; ifb would make two devices by itself."""
INJECTABLE = ("should_fail_bio",)
CAP_SYS_ADMIN = 21
BPF_PROG_TYPE_KPROBE, BPF_FUNC_OVERRIDE_RETURN = 2, 58  # include/uapi/linux/bpf.h


def load_modules() -> list[str]:
    """modprobe(8) the modules of our mechanisms; notes for those that do not exist."""
    modprobe = shutil.which("modprobe")
    if modprobe is None:
        return ["modprobe is not installed: only what is loaded already can be used"]
    notes = []
    for module in MODULES:
        done = subprocess.run(
            [modprobe, "--quiet", *module.split()], capture_output=True, timeout=30, check=False
        )
        if done.returncode:
            notes.append(f"module {module.split()[0]} is not available")
    return notes


def read_facts(node_id: str, notes: tuple[str, ...] = ()) -> Facts:
    """This node's facts now. Never fails: what cannot be read is missing."""
    btf = os.access("/sys/kernel/btf/vmlinux", os.R_OK)
    dm_version, dm_targets, dm_features = _device_mapper()
    return Facts(
        node_id=node_id,
        hostname=socket.gethostname(),
        kernel_release=platform.release(),
        arch=platform.machine(),
        boot_id=boot_id(),
        root=_is_root(),
        btf=btf,
        libbpf=_libbpf(),
        bpf_objects=tuple(
            sorted(p.name.removesuffix(".bpf.o") for p in BPF_OBJECTS.glob("*.bpf.o"))
        ),
        bpf_loader=chosen_loader("auto", btf),
        bcc=ctypes.util.find_library("bcc") or "",
        kernel_headers=kernel_headers(),
        lockdown=_lockdown(),
        lsm=tuple(_text("/sys/kernel/security/lsm").split(",")),
        dm_version=dm_version,
        dm_targets=dm_targets,
        dm_features=dm_features,
        error_injection=_error_injection(),
        kprobe_override=_kprobe_override(),
        net_features=net_features(),
        fault_points=_fault_points(),
        strace=shutil.which("strace") or "",
        cgroup=_cgroup(),
        systemd=os.path.isdir("/run/systemd/system"),
        stress_ng=_stress_ng(),
        notes=notes,
    )


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _is_root() -> bool:
    if os.geteuid() != 0:
        return False
    for line in _text("/proc/self/status").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> CAP_SYS_ADMIN & 1)
    return False


def _libbpf() -> str:
    name = ctypes.util.find_library("bpf")
    return name or ("libbpf.so.1" if _loadable("libbpf.so.1") else "")


def _loadable(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _lockdown() -> str:
    text = _text("/sys/kernel/security/lockdown")
    start, end = text.find("["), text.find("]")
    return text[start + 1 : end] if 0 <= start < end else "none"


def _device_mapper() -> tuple[str, dict[str, tuple[int, int, int]], tuple[str, ...]]:
    try:
        with DmControl() as control:
            version = ".".join(str(part) for part in control.version())
            targets = control.targets()
            features: frozenset[str] = frozenset()
            if "flakey" in targets:
                features = control.flakey_features() | _corrupting(control)
            return version, targets, tuple(sorted(f"flakey:{name}" for name in features))
    except (FaultError, OSError):
        return "", {}, ()


def _corrupting(control: DmControl) -> frozenset[str]:
    try:
        return corrupting(control)
    except (FaultError, OSError):
        return frozenset()  # not known to work, so not offered


def _error_injection() -> tuple[str, ...]:
    """Which of our functions are on the list (kernel/fail_function.c, debugfs error_injection)."""
    listed = _text("/sys/kernel/debug/error_injection/list")
    names = {line.split()[0] for line in listed.splitlines() if line.strip()}
    ours = {*INJECTABLE, *all_functions(platform.machine())}
    return tuple(sorted(ours & names))


def _fault_points() -> tuple[str, ...]:
    """Documentation/fault-injection/fault-injection.rst."""
    found = [
        path.parent.name
        for path in sorted(Path("/sys/kernel/debug").glob("fail*/probability"))
        if os.access(path, os.W_OK)
    ]
    nth = ["fail-nth"] if os.access("/proc/thread-self/fail-nth", os.W_OK) else []
    return (*found, *nth)


def _kprobe_override() -> bool:
    """CONFIG_BPF_KPROBE_OVERRIDE, by asking the verifier."""
    try:
        return probe_helper(BPF_PROG_TYPE_KPROBE, BPF_FUNC_OVERRIDE_RETURN)
    except (FaultError, OSError):
        return False


def _stress_ng() -> str:
    try:
        done = subprocess.run(
            ["stress-ng", "--version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()[:200]


def _cgroup() -> str:
    if os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        return "v2"
    if os.path.exists("/sys/fs/cgroup/unified/cgroup.controllers"):
        return "hybrid"
    return "v1" if os.path.isdir("/sys/fs/cgroup/memory") else ""
