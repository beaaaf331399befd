"""Commands that the guest service runs, and their pipes. Standard library only."""

from __future__ import annotations

import binascii
import contextlib
import fcntl
import os
import signal
import struct
import termios
import time

TYPE_CHECKING = False  # typing itself takes a tenth of a second to import here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Send = Callable[[dict[str, Any]], None]

CHUNK = 24 * 1024  # payload bytes a frame; its base64 fits one 32 KiB virtio buffer
ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "PYTHONPATH": "/opt/faultctl/code:/opt/faultctl/lib",
}


class Job:
    """One running command; `log` set means detached: it outlives its session."""

    def __init__(self, ident: int, send: Send, pid: int, log: bool) -> None:
        self.ident = ident
        self.send = send
        self.pid = pid
        self.detached = log
        self.pidfd = os.pidfd_open(pid)
        self.streams: dict[int, str] = {}
        self.stdin: int | None = None
        self.stdin_buf = bytearray()
        self.stdin_eof = False
        self.deadline: float | None = None
        self.timed_out = False

    def kill(self, signum: int) -> None:
        """Signal the command's whole process group; gone already is fine."""
        try:
            os.killpg(self.pid, signum)
        except ProcessLookupError:
            return

    def expire(self, now: float) -> None:
        if self.deadline is not None and now >= self.deadline:
            self.deadline, self.timed_out = None, True
            self.kill(signal.SIGKILL)

    def read_stream(self, fd: int) -> bool:
        """Forward one chunk; False when nothing is there now or the stream has ended."""
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return False
        except OSError:  # EIO: the last holder of a pty's other side is gone
            data = b""
        if data:
            text = binascii.b2a_base64(data, newline=False).decode()
            self.send({"id": self.ident, "ev": self.streams[fd], "data": text})
            return True
        del self.streams[fd]
        if fd != self.stdin:
            os.close(fd)
        return False

    def drain(self) -> None:
        """What the command wrote before it ended. A daemon it left may hold the pipe open."""
        for fd in list(self.streams):
            while self.read_stream(fd):
                pass

    def write_stdin(self) -> None:
        if self.stdin is None:
            return
        try:
            while self.stdin_buf:
                del self.stdin_buf[: os.write(self.stdin, self.stdin_buf[:65536])]
        except BlockingIOError:
            return
        except OSError:  # the command no longer reads its input: its choice
            self.stdin_buf.clear()
            self.stdin_eof = True
        if self.stdin_eof:
            if self.stdin not in self.streams:
                os.close(self.stdin)
            self.stdin = None

    def close(self) -> None:
        held = {*self.streams, self.pidfd}
        if self.stdin is not None:
            held.add(self.stdin)
        for fd in held:
            os.close(fd)
        self.streams.clear()
        self.stdin = None

    def reap(self) -> int:
        """Exit code, or minus the signal, of a command that has ended or been killed."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def verdict(self) -> dict[str, Any]:
        """How the command ended: `code`, or `signal`; and whether the deadline ended it."""
        status = self.reap()
        end = {"signal": -status} if status < 0 else {"code": status}
        return {"id": self.ident, "ev": "exit", "timed_out": self.timed_out, **end}


def start(ident: int, send: Send, request: dict[str, Any]) -> Job:
    """Start a command as asked; raises OSError when it cannot be executed."""
    given: list[int] = []  # the child's ends, closed here in any case
    kept: dict[str, int] = {}
    log, tty = request.get("log"), request.get("tty")
    try:
        if log:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            given = [os.open("/dev/null", os.O_RDONLY), os.open(log, flags, 0o600)]
            stdio = (given[0], given[1], given[1])
        elif tty:
            master, slave = os.openpty()
            given, kept = [slave], {"stdin": master, "out": master}
            rows, cols = tty
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
            stdio = (slave, slave, slave)
        else:
            (in_r, in_w), (out_r, out_w), (err_r, err_w) = os.pipe(), os.pipe(), os.pipe()
            given, kept = [in_r, out_w, err_w], {"stdin": in_w, "out": out_r, "err": err_r}
            stdio = (in_r, out_w, err_w)
        job = Job(ident, send, _spawn(request, stdio), bool(log))
    except BaseException:
        for fd in set(kept.values()):
            os.close(fd)
        raise
    finally:
        for fd in given:
            os.close(fd)
    _attach(job, kept, request.get("timeout"))
    return job


def _attach(job: Job, kept: dict[str, int], timeout: float | None) -> None:
    for name, fd in kept.items():
        os.set_blocking(fd, False)
        if name == "stdin":
            job.stdin = fd
        else:
            job.streams[fd] = name
    if timeout is not None:
        job.deadline = time.monotonic() + timeout


def _spawn(request: dict[str, Any], stdio: tuple[int, int, int]) -> int:
    """Pid of the command. posix_spawn, since importing subprocess costs part of a boot."""
    argv = [str(word) for word in request["argv"]]
    tty = bool(request.get("tty"))
    if tty:
        # setsid -c makes the pty the controlling terminal; not being a group
        # leader it execs in place, so the pid stays the one we know.
        argv = ["/usr/bin/setsid", "-c", *argv]
    env = ENV | {str(k): str(v) for k, v in (request.get("env") or {}).items()}
    moves = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(stdio)]
    os.chdir(request.get("cwd") or "/")  # inherited; this process has one thread
    try:
        pid = os.posix_spawnp(
            argv[0],
            argv,
            env,
            file_actions=moves,
            setsid=not tty,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores them
        )
    finally:
        os.chdir("/")
    # The service is exempt from the OOM killer; what it runs (if it still does) is not.
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write("0")
    return pid
