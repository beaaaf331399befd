"""Keeps one QEMU and sees that it never outlives its owner or its time.

Run as a script of its own, with the standard library only, by the path of this
file: `supervise.py NODE_FOLDER`. Reads launch.json there, writes pids.json and,
at the end, end.json. QEMU dies with this process (PR_SET_PDEATHSIG, which fires
when the *thread* that spawned dies: here the only one); this process ends when
its owner does (a pidfd, so a used-again pid cannot be mistaken for it).
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

PR_SET_PDEATHSIG = 1
CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TAP_NO_PI = 0x0002 | 0x1000
SIOCGIFINDEX = 0x8933
SIOCBRADDIF = 0x89A2
SIOCSIFFLAGS = 0x8914
TAP_FD = "@TAP_FD@"


def write_json(path: Path, data: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(data))
    part.replace(path)


def start_time(pid: int) -> int:
    """Field 22 of proc_pid_stat(5): with the pid it names a process for good.

    Raises ProcessLookupError (or FileNotFoundError) for one that has ended, a
    zombie included.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    if fields[0] in "ZX":
        raise ProcessLookupError(f"process {pid} has ended")
    return int(fields[19])


def open_tap(netns: str, bridge: str, name: str) -> int:
    """A tap inside a network namespace, as a port of its bridge; gone with its last fd.

    The whole process stays in that namespace from then on until it returns.
    """
    import socket

    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(netns, os.O_RDONLY)
    try:
        _setns(libc, there)
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        ifname = name.encode()
        fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", ifname, IFF_TAP_NO_PI))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            answer = fcntl.ioctl(sock, SIOCGIFINDEX, struct.pack("16si20x", ifname, 0))
            index = struct.unpack("16si20x", answer)[1]
            fcntl.ioctl(sock, SIOCBRADDIF, struct.pack("16si20x", bridge.encode(), index))
            fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sH22x", ifname, 0x1))  # IFF_UP
        return tap
    finally:
        _setns(libc, home)
        os.close(there)
        os.close(home)


def _setns(libc: ctypes.CDLL, fd: int) -> None:
    if libc.setns(fd, CLONE_NEWNET) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"setns: {os.strerror(errno)}")


def spawn(launch: dict[str, Any], home: Path) -> subprocess.Popen[bytes]:
    tap = open_tap(**launch["tap"]) if launch.get("tap") else None
    argv = [word.replace(TAP_FD, str(tap)) for word in launch["argv"]]
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def die_with_parent() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    with (home / "qemu.log").open("ab") as log:
        proc = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[] if tap is None else [tap],
            preexec_fn=die_with_parent,  # safe: this process has one thread
        )
    if tap is not None:
        os.close(tap)
    return proc


def watch(proc: subprocess.Popen[bytes], owner: int | None, ttl: float | None) -> str:
    """Wait for the end of QEMU, of the owner, or of the time; says which."""
    poll = select.poll()
    qemu = os.pidfd_open(proc.pid)
    poll.register(qemu, select.POLLIN)
    if owner is not None:
        poll.register(owner, select.POLLIN)
    end = None if ttl is None else time.monotonic() + ttl
    while True:
        left = None if end is None else max(0.0, end - time.monotonic()) * 1000
        events = dict(poll.poll(left))
        if qemu in events:
            return f"QEMU ended with {proc.wait()}"
        if owner in events:
            return "its owner ended"
        if end is not None and time.monotonic() >= end:
            return "its time to live was over"


def open_owner(launch: dict[str, Any]) -> int | None:
    owner = launch.get("owner")
    if owner is None:
        return None
    fd = os.pidfd_open(owner["pid"])
    if start_time(owner["pid"]) != owner["start"]:
        raise ProcessLookupError(f"owner {owner['pid']} is another process by now")
    return fd


class Asked(Exception):
    """SIGTERM or SIGINT arrived."""


def _on_signal(_num: int, _frame: FrameType | None) -> None:
    raise Asked


def main() -> None:
    home = Path(sys.argv[1])
    launch = json.loads((home / "launch.json").read_text())
    signal.signal(signal.SIGTERM, _on_signal)
    signal.signal(signal.SIGINT, _on_signal)
    owner = open_owner(launch)
    proc = spawn(launch, home)
    me = os.getpid()
    try:
        pids = {"supervisor": me, "start": start_time(me), "qemu": proc.pid}
        write_json(home / "pids.json", pids)
        reason = watch(proc, owner, launch.get("ttl"))
    except Asked:
        reason = "it was asked to end"
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        proc.kill()
        proc.wait()
    if reason == "its owner ended":
        shutil.rmtree(home, ignore_errors=True)
        return
    write_json(home / "end.json", {"reason": reason, "when": time.time()})


if __name__ == "__main__":
    main()
