"""What of a node's state our faults touch, as canonical text: two of them are compared by byte.

Read-only. docs/fingerprint.md is its schema: what is in it and what is left out, namely
loaded modules, event numbers, BPF ids, minors of private devices, mount and peer-group
ids, interface indexes and counters, the kubelet's notes on its pods, and nothing else.

    python3 -m nodeagent.fingerprint [--state-dir DIR] > before.json
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import resource
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nodeagent.backends.dmctl import DmControl
from nodeagent.bpf_inventory import inventory
from nodeagent.encode.dm import DevNum, Table, format_table
from nodeagent.fault_point_fingerprint import fault_points
from nodeagent.kubelet_fingerprint import kubelet_files
from nodeagent.machine_fingerprint import clock, units
from nodeagent.model.errors import Refused
from nodeagent.net_fingerprint import network
from nodeagent.statedir import DEFAULT_STATE_DIR, JOURNAL_NAME
from nodeagent.sysctl_fingerprint import sysctls

SCHEMA = 1
MARK = "faultctl"
"""Every name that we give in the kernel or in a file system has it."""
LIMITS = {
    "cpu.max": "max 100000",
    "memory.high": "max",
    "memory.oom.group": "0",
    "io.max": "",
    "pids.max": "max",
    "cgroup.freeze": "0",
}
"""Files of cgroups that faults write, and what is in them when a cgroup is new."""
OUR_PROGRAMS = ("nodeagent.main", "nodeagent.guardian", "faultd")
_RUN = Path("/run/faultctl")
_DEVNUM = re.compile(r"(?<![\w:])(\d+):(\d+)(?![\w:])")


def fingerprint(
    state_dir: Path = DEFAULT_STATE_DIR, only_sysctls: Sequence[str] = ("*",)
) -> dict[str, Any]:
    """The node's state now. Raises OSError where root is missing.

    only_sysctls: patterns of paths below /proc/sys, for those who look often.
    """
    names = _dm_names()
    return {
        "schema": SCHEMA,
        "device_mapper": _device_mapper(names),
        "mounts": mounts(Path("/proc/1/mountinfo").read_text(encoding="utf-8")),
        "loop_devices": _loop_devices(),
        "swaps": _swaps(),
        "bpf": {**inventory(), "pins": tree(Path("/sys/fs/bpf"))},
        "network": network(),
        "sysctls": sysctls(only_sysctls),
        "clock": clock(),
        "units": units(),
        "processes": sorted(processes()),
        "cgroups": _our_cgroups(),
        "cgroup_limits": _cgroup_limits(),
        "stopped": sorted(_stopped()),
        "fault_points": fault_points(),
        "nofile": sorted(_nofile()),
        "files": {
            "run": tree(_RUN),
            "kubelet": kubelet_files(),
            "fills": sorted(_fills()),
            "state": [name for name in tree(state_dir) if not name.startswith(JOURNAL_NAME)],
            "dev": sorted(p.name for p in Path("/dev").iterdir() if MARK in p.name),
            "dev_mapper": _mapper_nodes(names),
        },
    }


def text(found: Mapping[str, Any]) -> str:
    """The canonical text: JSON, keys sorted, one value a line."""
    return json.dumps(found, indent=1, sort_keys=True, ensure_ascii=True) + "\n"


# --- device-mapper ----------------------------------------------------------------


def _dm_names() -> dict[tuple[int, int], str]:
    try:
        with DmControl() as control:
            return {item.dev: item.name for item in control.list_devices()}
    except Refused:
        return {}


def by_name(line: str, names: Mapping[tuple[int, int], str]) -> str:
    """A table line with dm:NAME for numbers of device-mapper devices, whose minors vary."""

    def replace(found: re.Match[str]) -> str:
        name = names.get((int(found[1]), int(found[2])))
        return found[0] if name is None else f"dm:{name}"

    return _DEVNUM.sub(replace, line)


def _device_mapper(names: Mapping[tuple[int, int], str]) -> list[dict[str, Any]]:
    if not names:
        return []
    found = []
    with DmControl() as control:
        for (major, minor), name in sorted(names.items(), key=lambda item: item[1]):
            try:
                shown = _device(control, DevNum(major, minor), names)
            except OSError as exc:
                if exc.errno != errno.ENXIO:  # else it went away while it was looked at
                    raise
                continue
            if shown is not None:
                found.append({"name": name, **shown})
    return found


def _device(
    control: DmControl, dev: DevNum, names: Mapping[tuple[int, int], str]
) -> dict[str, Any] | None:
    info = control.find(dev)
    if info is None:
        return None
    inactive = control.table(dev, inactive=True) if info.inactive_present else None
    return {
        "uuid": info.uuid,
        "suspended": info.suspended,
        "read_only": info.read_only,
        "live": _lines(control.table(dev), names),
        "inactive": _lines(inactive, names),
    }


def _lines(table: Table | None, names: Mapping[tuple[int, int], str]) -> list[str]:
    """A table's lines; the key of a crypt segment is not shown."""
    if table is None:
        return []
    lines = [by_name(line, names) for line in format_table(table).splitlines()]
    return [
        re.sub(r"^(\d+ \d+ crypt \S+) \S+", r"\1 KEY", line) if " crypt " in line else line
        for line in lines
    ]


def _mapper_nodes(names: Mapping[tuple[int, int], str]) -> list[str]:
    found = []
    for path in Path("/dev/mapper").glob("*"):
        info = path.lstat()
        what = "link" if stat.S_ISLNK(info.st_mode) else oct(info.st_mode)
        rdev = path.stat().st_rdev if path.exists() else 0
        name = names.get((os.major(rdev), os.minor(rdev)), "no device-mapper device")
        found.append(f"{path.name} {what} {name}")
    return sorted(found)


# --- mounts, loop devices, swap ---------------------------------------------------


def mounts(mountinfo: str) -> list[str]:
    """Lines of /proc/PID/mountinfo without mount ids, device numbers and peer-group ids.

    proc(5): id, parent, device, root, mount point, options, fields up to '-', type, source,
    options of the super block.
    """
    found = []
    for line in mountinfo.splitlines():
        words = line.split(" ")
        end = words.index("-", 6)
        tags = sorted(word.split(":")[0] for word in words[6:end])
        found.append(" ".join([*words[3:6], *tags, *words[end:]]))
    return sorted(found)


def _loop_devices() -> list[str]:
    found = []
    for path in Path("/sys/block").glob("loop*/loop"):
        values = [f"{name.name}={_text(name)}" for name in sorted(path.iterdir())]
        found.append(" ".join([path.parent.name, *values]))
    return sorted(found)


def _swaps() -> list[str]:
    lines = _text(Path("/proc/swaps")).splitlines()[1:]
    return sorted(" ".join(line.split()[:2]) for line in lines)


# --- processes, cgroups, files ----------------------------------------------------


def processes() -> Iterator[str]:
    """Processes of ours by name, zombies too; not the one that looks."""
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or int(pid) == os.getpid():
            continue
        comm = _text(f"/proc/{pid}/comm")
        words = _text(f"/proc/{pid}/cmdline").split("\0")[:4]
        named = [w for word in words for w in OUR_PROGRAMS if word.rpartition("/")[2] == w]
        if named or comm.startswith(("faultd", MARK)):
            yield named[0] if named else comm


def _our_cgroups() -> list[str]:
    root = Path("/sys/fs/cgroup")
    return sorted(
        str(Path(folder, name).relative_to(root))
        for folder, names, _ in os.walk(root)
        for name in names
        if MARK in name
    )


def _cgroup_limits() -> list[str]:
    """Files that faults write, of every cgroup that has another value than a new one."""
    root = Path("/sys/fs/cgroup")
    found = []
    for folder, _, files in os.walk(root):
        for name in sorted(LIMITS.keys() & set(files)):
            value = _text(Path(folder, name))
            if value != LIMITS[name]:
                found.append(f"{Path(folder).relative_to(root)} {name} {value}")
    return sorted(found)


def _stopped() -> Iterator[str]:
    """Names of processes that a signal has stopped (state T, proc_pid_stat(5))."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        name, _, rest = _text(f"/proc/{pid}/stat").rpartition(")")
        if rest.split()[:1] == ["T"]:
            yield name.partition("(")[2]


def _nofile() -> Iterator[str]:
    """Processes with another RLIMIT_NOFILE than process 1, where that is lower (prlimit(2)).

    Not kernel threads, which have the kernel's own and come and go.
    """
    usual = resource.prlimit(1, resource.RLIMIT_NOFILE)
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(ProcessLookupError, FileNotFoundError):
            os.readlink(f"/proc/{pid}/exe")  # kernel threads have none (proc_pid_exe(5))
            soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            if soft < usual[0] or hard < usual[1]:
                yield f"{_text(f'/proc/{pid}/comm')} {soft}:{hard}"


def _fills() -> Iterator[str]:
    """Hidden files of ours in the roots of file systems."""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        folder = line.split()[4].replace("\\040", " ")
        with suppress(OSError):  # a file, or not to be listed
            yield from (f"{folder} {n}" for n in os.listdir(folder) if n.startswith(f".{MARK}"))


def tree(folder: Path) -> list[str]:
    """Every name below a folder with its type and mode; empty where there is none."""
    found = []
    for here, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(here, name)
            found.append(f"{path.relative_to(folder)} {stat.filemode(path.lstat().st_mode)}")
    return sorted(found)


def _text(path: str | Path) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode(errors="replace").strip("\n")
    except OSError:
        return ""  # gone meanwhile


def main() -> None:
    """Print this node's fingerprint."""
    parser = argparse.ArgumentParser(prog="faultd-fingerprint", description=main.__doc__)
    parser.add_argument("--state-dir", type=Path, default=DEFAULT_STATE_DIR)
    sys.stdout.write(text(fingerprint(parser.parse_args().state_dir)))


if __name__ == "__main__":
    main()
