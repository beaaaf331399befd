"""Guest service of a lab node: runs commands and moves files for the host.

The host talks to it through virtio-serial ports, so nothing that a fault does
to the guest's network reaches this channel. Each line on a port is one JSON
object; binary data is base64. A session starts with ``hello`` and a nonce; the
next ``hello``, or the host closing its end, ends it and kills its commands.

Requests (all carry ``id``): exec, stdin, signal, status, put, get, ping.
Events: hello, started, out, err, exit, data, ok, error.
"""

from __future__ import annotations

import binascii
import fcntl
import json
import os
import select
import signal
import time

from . import setup
from .jobs import CHUNK, Job, start

TYPE_CHECKING = False  # typing itself takes a tenth of a second to import here
if TYPE_CHECKING:
    from typing import Any

PROTO = 1
OUT_LIMIT = 1 << 20  # bytes queued towards the host before we stop reading children
LINE_LIMIT = 4 << 20  # a longer request is noise: dropped up to its newline
PORTS = "/dev/virtio-ports"


class Port:
    """One virtio-serial port: buffers, and the session that the host opened on it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        os.set_blocking(fd, False)
        self.inbuf = bytearray()
        self.outbuf = bytearray()
        self.nonce: str | None = None
        self.connected = True
        # The driver signals SIGIO when the host opens or closes its end, so a
        # port without a host needs no polling (its POLLHUP would make us spin).
        fcntl.fcntl(self.fd, fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(self.fd, fcntl.F_GETFL)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, flags | os.O_ASYNC)

    def lines(self) -> list[bytes]:
        """Complete request lines that have arrived."""
        try:
            data = os.read(self.fd, 256 * 1024)
        except BlockingIOError:
            return []
        *complete, rest = (bytes(self.inbuf) + data).split(b"\n")
        self.inbuf = bytearray(rest) if len(rest) < LINE_LIMIT else bytearray()
        return [line for line in complete if line]

    def send(self, frame: dict[str, Any]) -> None:
        self.outbuf += json.dumps(frame, separators=(",", ":")).encode() + b"\n"

    def flush(self) -> None:
        while self.outbuf:
            try:
                sent = os.write(self.fd, self.outbuf[: 32 * 1024])
            except OSError:  # full for now, or the host has just gone: poll says which
                return
            del self.outbuf[:sent]


def calibrate() -> int:
    """Nanoseconds that a fixed loop takes here: the guest's measured speed."""
    best = 1 << 62
    for _ in range(3):
        begin = time.perf_counter_ns()
        for _ in range(20_000):
            pass
        best = min(best, time.perf_counter_ns() - begin)
    return best


class Service:
    """One poll loop over all ports, pipes and children; nothing in it blocks."""

    def __init__(self, ports: list[Port], problem: str) -> None:
        self.problem = problem
        self.ports = ports
        self.jobs: list[Job] = []
        self.ended: dict[int, dict[str, Any]] = {}  # detached commands, by pid
        self.loop_ns = calibrate()
        self.wake_r, self.wake_w = os.pipe()
        os.set_blocking(self.wake_r, False)
        os.set_blocking(self.wake_w, False)
        signal.signal(signal.SIGIO, lambda _num, _frame: None)
        signal.set_wakeup_fd(self.wake_w, warn_on_full_buffer=False)

    def run(self) -> None:
        while True:
            self.step()

    def step(self) -> None:
        poll = select.poll()
        poll.register(self.wake_r, select.POLLIN)
        for port in self.ports:
            if port.connected:
                poll.register(port.fd, select.POLLIN | (select.POLLOUT if port.outbuf else 0))
        for job in self.jobs:
            self._register(poll, job)
        deadlines = [job.deadline for job in self.jobs if job.deadline is not None]
        wait = None
        if deadlines:
            wait = max(0.0, min(deadlines) - time.monotonic()) * 1000 + 1
        events = dict(poll.poll(wait))
        if events.pop(self.wake_r, 0):
            os.read(self.wake_r, 4096)
            for port in self.ports:
                port.connected = True  # look again; POLLHUP says if it is not so
        for port in self.ports:
            self._port_event(port, events.get(port.fd, 0))
        for job in list(self.jobs):
            self._job_event(job, events)
        for port in self.ports:
            port.flush()

    def _register(self, poll: select.poll, job: Job) -> None:
        poll.register(job.pidfd, select.POLLIN)
        port = next((p for p in self.ports if p.send == job.send), None)
        if port is not None and len(port.outbuf) < OUT_LIMIT:
            for fd in job.streams:
                poll.register(fd, select.POLLIN)
        if job.stdin is not None and (job.stdin_buf or job.stdin_eof):
            mask = select.POLLIN if job.stdin in job.streams else 0
            poll.register(job.stdin, mask | select.POLLOUT)

    def _port_event(self, port: Port, events: int) -> None:
        if events & select.POLLHUP:
            port.connected = False
            self._end_session(port)
        elif events & select.POLLIN:
            for line in port.lines():
                self._request(port, line)

    def _end_session(self, port: Port) -> None:
        port.nonce = None
        port.inbuf.clear()
        port.outbuf.clear()
        for job in list(self.jobs):
            if job.send == port.send and not job.detached:
                job.kill(signal.SIGKILL)
                job.close()
                job.reap()
                self.jobs.remove(job)

    def _job_event(self, job: Job, events: dict[int, int]) -> None:
        if job not in self.jobs:
            return
        for fd in list(job.streams):
            if events.get(fd, 0) & ~select.POLLOUT:
                job.read_stream(fd)
        job.write_stdin()
        job.expire(time.monotonic())
        if events.get(job.pidfd):
            job.drain()
            verdict = job.verdict()
            job.close()
            self.jobs.remove(job)
            if job.detached:
                self.ended[job.pid] = verdict
            else:
                job.send(verdict)

    def _request(self, port: Port, line: bytes) -> None:
        try:
            request = json.loads(line)
            ident, op = request["id"], request["op"]
        except (ValueError, KeyError, TypeError):
            return  # the torn rest of an earlier session's line
        if op == "hello":
            self._hello(port, request)
            return
        if port.nonce is None:
            return
        handler = getattr(self, f"_op_{op}", None)
        try:
            if handler is None:
                port.send({"id": ident, "ev": "error", "errno": None, "message": f"no op {op}"})
            else:
                handler(port, ident, request)
        except OSError as exc:
            port.send({"id": ident, "ev": "error", "errno": exc.errno, "message": str(exc)})
        except (ValueError, KeyError, TypeError) as exc:
            port.send({"id": ident, "ev": "error", "errno": None, "message": repr(exc)})

    def _hello(self, port: Port, request: dict[str, Any]) -> None:
        self._end_session(port)
        port.nonce = str(request["nonce"])
        port.outbuf += b"\n"  # ends whatever was cut off by a reset
        port.send(
            {
                "ev": "hello",
                "nonce": port.nonce,
                "proto": PROTO,
                "boot_id": _read("/proc/sys/kernel/random/boot_id"),
                "kernel": os.uname().release,
                "loop_ns": self.loop_ns,
                "problem": self.problem,
            }
        )

    def _op_ping(self, port: Port, ident: int, _request: dict[str, Any]) -> None:
        port.send({"id": ident, "ev": "ok"})

    def _op_exec(self, port: Port, ident: int, request: dict[str, Any]) -> None:
        job = start(ident, port.send, request)
        self.jobs.append(job)
        port.send({"id": ident, "ev": "started", "pid": job.pid})

    def _find(self, ident: int, port: Port) -> Job | None:
        return next((j for j in self.jobs if j.ident == ident and j.send == port.send), None)

    def _op_stdin(self, port: Port, ident: int, request: dict[str, Any]) -> None:
        job = self._find(ident, port)
        if job is None:
            return  # it ended while the host was still writing
        job.stdin_buf += binascii.a2b_base64(request.get("data", ""))
        job.stdin_eof = job.stdin_eof or bool(request.get("eof"))
        job.write_stdin()

    def _op_signal(self, port: Port, ident: int, request: dict[str, Any]) -> None:
        job = self._find(ident, port)
        if job is not None:
            job.kill(int(request["signum"]))

    def _op_status(self, port: Port, ident: int, request: dict[str, Any]) -> None:
        """State of a detached command: running, or its verdict."""
        pid = int(request["pid"])
        if any(job.pid == pid for job in self.jobs):
            port.send({"id": ident, "ev": "ok", "running": True})
        elif pid in self.ended:
            port.send({**self.ended[pid], "id": ident, "ev": "ok", "running": False})
        else:
            raise ValueError(f"pid {pid} was not started detached in this boot")

    def _op_put(self, port: Port, ident: int, request: dict[str, Any]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        flags |= os.O_APPEND if request.get("append") else os.O_TRUNC
        mode = int(request.get("mode", 0o644))
        fd = os.open(request["path"], flags, mode)
        with os.fdopen(fd, "wb") as file:
            file.write(binascii.a2b_base64(request["data"]))
            os.fchmod(file.fileno(), mode)
        port.send({"id": ident, "ev": "ok"})

    def _op_get(self, port: Port, ident: int, request: dict[str, Any]) -> None:
        with open(request["path"], "rb", buffering=0) as file:
            if request.get("offset"):
                file.seek(int(request["offset"]))
            data = file.read(CHUNK)
        text = binascii.b2a_base64(data, newline=False).decode()
        port.send({"id": ident, "ev": "data", "data": text, "eof": not data})


def _read(path: str) -> str:
    with open(path) as file:
        return file.read().strip()


def main() -> None:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-1000")
    setup.name_devices()
    names = sorted(name for name in os.listdir(PORTS) if name.startswith("faultctl."))
    problem = setup.wait_for_network()
    Service([Port(os.open(f"{PORTS}/{name}", os.O_RDWR)) for name in names], problem).run()


if __name__ == "__main__":
    main()
