"""Whether KVM really works here: a device that opens is no proof, a kernel's banner is."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from controller.lab import cache, proc
from nodeagent.model.errors import InvalidSpec

KVM = Path("/dev/kvm")
DEADLINE = 8.0  # seconds; under a KVM that works the banner is there in less than one
BANNER = b"Linux version "


@dataclass(frozen=True)
class Accel:
    """Which accelerator a node gets, and why."""

    name: Literal["kvm", "tcg"]
    why: str


def choose(kernel: Path, progress: proc.Progress = proc.quiet) -> Accel:
    """FAULTCTL_LAB_ACCEL, else what the probe (kept until this host boots again) found."""
    forced = os.environ.get("FAULTCTL_LAB_ACCEL")
    if forced == "tcg":
        return Accel("tcg", "FAULTCTL_LAB_ACCEL says so")
    if forced == "kvm":
        return Accel("kvm", "FAULTCTL_LAB_ACCEL says so")
    if forced:
        raise InvalidSpec(f"FAULTCTL_LAB_ACCEL={forced}", "", "use kvm or tcg")
    if not KVM.exists():
        return Accel("tcg", f"this host has no {KVM}")
    if not os.access(KVM, os.R_OK | os.W_OK):
        return Accel("tcg", f"no permission to open {KVM} (group kvm)")
    return _remembered(kernel, progress)


def _remembered(kernel: Path, progress: proc.Progress) -> Accel:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    memo = cache.cache_dir() / "kvm-probe.json"
    try:
        known = json.loads(memo.read_text())
        if known["boot"] == boot and known["name"] in ("kvm", "tcg"):
            return Accel(known["name"], known["why"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no memory of this boot: probe
    progress(f"trying whether KVM works (up to {DEADLINE:.0f} s, once until this host reboots)")
    found = probe(kernel)
    data = {"boot": boot, "name": found.name, "why": found.why}
    cache.publish(memo, json.dumps(data).encode())
    return found


def probe(kernel: Path, deadline: float = DEADLINE) -> Accel:
    """Boot `kernel` under KVM without disks and look for its first line."""
    # `timeout` ends the guest also when we are killed meanwhile.
    argv = ["timeout", "-k", "2", f"{deadline + 5:.0f}"]
    argv += [proc.find("qemu-system-x86_64") or "qemu-system-x86_64", "-accel", "kvm"]
    argv += ["-cpu", "host", "-m", "256M", "-nodefaults", "-no-user-config", "-display", "none"]
    argv += ["-no-reboot", "-serial", "stdio", "-kernel", str(kernel)]
    argv += ["-append", "console=ttyS0 earlyprintk=serial panic=-1"]
    try:
        qemu = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except OSError as exc:
        return Accel("tcg", f"QEMU does not start: {exc}")
    try:
        said = _read_until_banner(qemu, time.monotonic() + deadline)
    finally:
        ended = qemu.poll()
        qemu.terminate()
        qemu.wait()
    if BANNER in said:
        return Accel("kvm", "a kernel was seen to boot under it")
    if ended is not None:
        words = said.decode(errors="replace").strip().splitlines()
        return Accel("tcg", f"QEMU refuses KVM: {words[-1] if words else qemu.returncode}")
    return Accel("tcg", f"{KVM} opens, but a guest printed nothing within {deadline:.0f} s")


def _read_until_banner(qemu: subprocess.Popen[bytes], deadline: float) -> bytes:
    stream = qemu.stdout
    if stream is None:
        return b""
    os.set_blocking(stream.fileno(), False)
    said = b""
    while time.monotonic() < deadline and BANNER not in said:
        data = stream.read()
        if data:
            said += data
        elif data == b"" and qemu.poll() is not None:
            break
        else:
            time.sleep(0.05)
    return said
