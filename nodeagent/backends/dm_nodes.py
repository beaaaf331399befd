"""Device nodes and users of block devices, read from the node's own /proc and /sys.

Tables name devices by number, so no node is needed for them. Where one is, it is
made in a file system that is mounted nowhere. Only a device that people will mount
gets a lasting /dev/mapper node, and only where no udev makes one.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nodeagent.backends.detached import detached_tmpfs
from nodeagent.encode.dm_table import DevNum
from nodeagent.model.errors import Refused

_CONTROL = Path("/dev/mapper/control")
_MAPPER = Path("/dev/mapper")
_UDEV_PATIENCE_S = 5.0


def open_control() -> int:
    """A descriptor of device-mapper's control device. Raises Refused if there is none."""
    try:
        return os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        minor = _misc_minor("device-mapper")
        if minor is None:
            raise _missing("not listed in /proc/misc") from None
    except PermissionError as failed:
        raise Refused("cannot use device-mapper", str(failed), "run the agent as root") from failed
    except OSError as failed:  # ENODEV, ENXIO: a node without a driver behind it
        raise _missing(str(failed)) from failed
    # The misc class has major 10 (Documentation/admin-guide/devices.txt).
    with private_node(DevNum(10, minor), stat.S_IFCHR) as path:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def _missing(why: str) -> Refused:
    return Refused("this kernel has no device-mapper", why, "load it: modprobe dm_mod")


def _misc_minor(name: str) -> int | None:
    for line in Path("/proc/misc").read_text().splitlines():
        words = line.split()
        if words[1:] == [name]:
            return int(words[0])
    return None


@contextmanager
def past_the_device_filter() -> Iterator[None]:
    """Raises Refused when a device filter (cgroup v2's BPF_PROG_TYPE_CGROUP_DEVICE) is in the way:
    what a disk does then cannot be looked at, and nothing counts as armed that was not."""
    try:
        yield
    except PermissionError as exc:
        raise Refused(
            "the agent may not open block devices",
            f"{exc.strerror}: so it cannot see what a read of the disk gives",
            "a container that is not privileged has a device filter; daemonset/base has none",
        ) from exc


@contextmanager
def private_node(dev: DevNum, kind: int = stat.S_IFBLK) -> Iterator[Path]:
    """A device node that no other process finds, gone at the end, also when we are killed.

    The path holds in this process only.
    """
    with detached_tmpfs() as folder:
        os.mknod("node", kind | 0o600, os.makedev(*dev), dir_fd=folder)
        yield Path(f"/proc/self/fd/{folder}/node")


def size_sectors(dev: DevNum) -> int:
    """Live size in 512-byte sectors (sysfs, block/partitions/core.c). Raises OSError."""
    return int(Path(f"/sys/dev/block/{dev}/size").read_text())


def logical_block_sectors(dev: DevNum) -> int:
    """Logical block size in 512-byte sectors, 1 or more. Raises OSError."""
    queue = Path(f"/sys/dev/block/{dev}/queue")
    if not queue.exists():  # a partition: the queue is its disk's
        queue = Path(f"/sys/dev/block/{dev}").resolve().parent / "queue"
    return int((queue / "logical_block_size").read_text()) // 512


def udev_running() -> bool:
    """True when udevd's control socket is there (systemd-udevd and eudev)."""
    return Path("/run/udev/control").exists()


def publish(name: str, dev: DevNum) -> Path:
    """The /dev/mapper node of a device for people to mount; made here if udev makes none."""
    path = _MAPPER / name
    deadline = time.monotonic() + (_UDEV_PATIENCE_S if udev_running() else 0)
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    _MAPPER.mkdir(mode=0o755, exist_ok=True)
    with suppress(FileExistsError):
        os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(*dev))
    return path


def unpublish(name: str, dev: DevNum) -> None:
    """Remove the node that publish() made, if it still is that device's."""
    path = _MAPPER / name
    with suppress(FileNotFoundError):
        found = path.lstat()
        if stat.S_ISBLK(found.st_mode) and found.st_rdev == os.makedev(*dev):
            path.unlink()


def holders(dev: DevNum) -> list[str]:
    """Who uses a block device: devices above it, mounts, swap, open descriptors."""
    found = [f"device {path.name}" for path in _entries(f"/sys/dev/block/{dev}/holders")]
    found += _mounts(dev)
    found += _swaps(dev)
    rdev = os.makedev(*dev)
    for process in _entries("/proc"):
        if process.name.isdigit() and _has_open(process, rdev):
            found.append(f"process {process.name} ({_command(process)})")
    return found


def _entries(path: str | Path) -> list[Path]:
    try:
        return sorted(Path(path).iterdir())
    except OSError:
        return []  # gone, or not ours to read


def _mounts(dev: DevNum) -> list[str]:
    # The node's mount table when PID 1 is visible, else our own.
    for pid in ("1", "self"):
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
            split = (line.split(" ") for line in lines)
            return [f"mount {words[4]}" for words in split if words[2] == str(dev)]
    return []


def _swaps(dev: DevNum) -> list[str]:
    found = []
    for line in Path("/proc/swaps").read_text().splitlines()[1:]:
        name = line.split()[0]
        with suppress(OSError):
            if os.stat(name).st_rdev == os.makedev(*dev):
                found.append(f"swap {name}")
    return found


def _has_open(process: Path, rdev: int) -> bool:
    for entry in _entries(process / "fd"):
        with suppress(OSError):
            found = entry.stat()
            if stat.S_ISBLK(found.st_mode) and found.st_rdev == rdev:
                return True
    return False


def _command(process: Path) -> str:
    with suppress(OSError):
        return (process / "comm").read_text("utf-8", "backslashreplace").strip()
    return "?"
