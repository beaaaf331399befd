"""Commands and files in a guest, over a channel."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller.lab.channel import CHUNK, Channel, Pending, decode, encode
from controller.lab.errors import CommandFailed, NoAnswer, NodeFailed

GRACE = 10.0  # seconds that the host waits longer than the guest, which ends the command
OUTPUT_LIMIT = 256 << 20  # bytes kept of one command's output
Argv = str | Sequence[str]


def words(argv: Argv) -> list[str]:
    """A string is a shell command, a sequence is executed as it is."""
    return ["/bin/sh", "-c", argv] if isinstance(argv, str) else [str(word) for word in argv]


@dataclass(frozen=True)
class Result:
    """How a command ended: `code`, or `signum` when a signal ended it."""

    argv: tuple[str, ...]
    code: int | None
    signum: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def out(self) -> str:
        return self.stdout.decode(errors="replace")

    @property
    def err(self) -> str:
        return self.stderr.decode(errors="replace")

    @property
    def how(self) -> str:
        if self.timed_out:
            return "did not end before its deadline"
        if self.signum is not None:
            return f"was ended by {signal.Signals(self.signum).name}"
        return f"ended with {self.code}"

    def check(self) -> Result:
        """Itself when the command succeeded, else CommandFailed with its last words."""
        if self.ok:
            return self
        said = (self.err.strip() or self.out.strip())[-2000:]
        raise CommandFailed(f"in the guest, `{shlex.join(self.argv)}` {self.how}", said)


@dataclass
class Process:
    """A command that runs in the guest while the host does something else."""

    argv: tuple[str, ...]
    pid: int
    _channel: Channel
    _pending: Pending
    _chunks: dict[str, list[bytes]] = field(default_factory=lambda: {"out": [], "err": []})
    _kept: int = 0
    _end: dict[str, Any] | None = None

    def write(self, data: bytes, *, eof: bool = False, deadline: float) -> None:
        for start in range(0, len(data), CHUNK):
            part = encode(data[start : start + CHUNK])
            self._channel.more(self._pending, "stdin", deadline, data=part)
        if eof:
            self._channel.more(self._pending, "stdin", deadline, eof=True)

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """Signal its process group."""
        deadline = time.monotonic() + GRACE
        self._channel.more(self._pending, "signal", deadline, signum=int(signum))

    def read(self, deadline: float, sink: Callable[[str, bytes], None] | None = None) -> bool:
        """Take in one frame; False when the command has ended."""
        if self._end is not None:
            return False
        frame = self._pending.next(deadline)
        if frame["ev"] == "exit":
            self._end = frame
            self._channel.forget(self._pending)
            return False
        data = decode(frame)
        self._kept += len(data)
        if sink is not None:
            sink(frame["ev"], data)
        elif self._kept <= OUTPUT_LIMIT:
            self._chunks[frame["ev"]].append(data)
        return True

    def wait(self, deadline: float) -> Result:
        """Its result; NoAnswer when it has not ended at `deadline` (monotonic)."""
        try:
            while self.read(deadline):
                pass
        except NoAnswer as exc:
            raise NoAnswer(f"`{shlex.join(self.argv)}` has no result in time", exc.why) from None
        return self.result()

    def result(self) -> Result:
        if self._end is None:
            raise NodeFailed(f"`{shlex.join(self.argv)}` still runs")
        out, err = (b"".join(self._chunks[name]) for name in ("out", "err"))
        end = self._end
        return Result(
            self.argv, end.get("code"), end.get("signal"), out, err, bool(end.get("timed_out"))
        )


def start(
    channel: Channel,
    argv: Argv,
    *,
    timeout: float | None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    tty: tuple[int, int] | None = None,
) -> Process:
    """Start a command; `timeout` seconds of the guest's clock end it. OSError: no such program."""
    command = words(argv)
    deadline = time.monotonic() + 60.0 + GRACE
    fields: dict[str, Any] = {"argv": command, "timeout": timeout, "tty": tty}
    pending = channel.request("exec", deadline, env=dict(env or {}), cwd=cwd, **fields)
    try:
        pid = pending.next(deadline)["pid"]
    except (OSError, NodeFailed):
        channel.forget(pending)
        raise
    return Process(tuple(command), pid, channel, pending)


@dataclass(frozen=True)
class Detached:
    """A command that runs on in the guest without a session; its output is in `log`."""

    pid: int
    log: str


def spawn(
    channel: Channel, argv: Argv, log: str, env: Mapping[str, str] | None, deadline: float
) -> Detached:
    fields: dict[str, Any] = {"argv": words(argv), "log": log, "env": dict(env or {})}
    return Detached(channel.call("exec", deadline, **fields)["pid"], log)


def ended(channel: Channel, child: Detached, deadline: float) -> Result | None:
    """None while it runs."""
    frame = channel.call("status", deadline, pid=child.pid)
    if frame["running"]:
        return None
    return Result((f"pid {child.pid}",), frame.get("code"), frame.get("signal"), b"", b"")


def put(channel: Channel, path: str, data: bytes, mode: int, deadline: float) -> None:
    """Write a file in the guest, whole or (on an error) perhaps in part."""
    for start in range(0, max(len(data), 1), CHUNK):
        part = encode(data[start : start + CHUNK])
        channel.call("put", deadline, path=path, data=part, mode=mode, append=start > 0)


def get(channel: Channel, path: str, deadline: float) -> bytes:
    """Read a file of the guest, also one of /proc or /sys that has no size."""
    out = bytearray()
    while True:
        frame = channel.call("get", deadline, path=path, offset=len(out))
        if frame["eof"]:
            return bytes(out)
        out += decode(frame)


def put_local(channel: Channel, source: Path, path: str, deadline: float) -> None:
    mode = source.stat().st_mode & 0o777
    put(channel, path, source.read_bytes(), mode, deadline)
