"""What udev would do for the node's own devices: names for disks and ports by their labels."""

from __future__ import annotations

import os
import time

NETWORK_WAIT = 20.0  # seconds for pid1.sh to set the interfaces up


def _label(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def _link(target: str, path: str) -> None:
    """A link that is there already (we were restarted, or udev made it) stays."""
    if not os.path.lexists(path):
        os.symlink(target, path)


def name_devices() -> None:
    for folder in ("/dev/disk/by-id", "/dev/virtio-ports"):
        os.makedirs(folder, exist_ok=True)
    for disk in os.listdir("/sys/block"):
        serial = _label(f"/sys/block/{disk}/serial")
        if disk.startswith("vd") and serial:
            _link(f"../../{disk}", f"/dev/disk/by-id/virtio-{serial}")
    for port in os.listdir("/sys/class/virtio-ports"):
        name = _label(f"/sys/class/virtio-ports/{port}/name")
        if name:
            _link(f"../{port}", f"/dev/virtio-ports/{name}")
    _link("/proc/self/fd", "/dev/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        _link(f"/proc/self/fd/{number}", f"/dev/{name}")


def wait_for_network() -> str:
    """What is wrong with the network, or nothing."""
    deadline = time.monotonic() + NETWORK_WAIT
    while not _label("/run/lab-network") and time.monotonic() < deadline:
        time.sleep(0.01)
    if _label("/run/lab-network") == "0":
        return ""
    return "its network could not be set up (see the console)"
