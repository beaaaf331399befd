"""The host's end of the result channel: requests to the guest service and their answers.

One virtio-serial port, one session, many requests at once told apart by id (see
guest/labd.py for the frames). Nothing here waits without a deadline; while it
waits it asks `health`, which raises when the node has died.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import queue
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.lab.errors import NoAnswer, NodeFailed

CHUNK = 24 * 1024
SLICE = 0.2  # seconds between two looks at the node's health while waiting
Frame = dict[str, Any]


@dataclass(frozen=True)
class Hello:
    """Who answered: which boot, which kernel, how fast (ns of the calibration loop)."""

    boot_id: str
    kernel: str
    loop_ns: int
    problem: str = ""  # what the guest could not set up


class Pending:
    """Answers to one request, in order."""

    def __init__(self, ident: int, channel: Channel) -> None:
        self.ident = ident
        self._channel = channel
        self._frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()

    def feed(self, frame: Frame | None) -> None:
        self._frames.put(frame)

    def next(self, deadline: float) -> Frame:
        """The next frame before `deadline` (time.monotonic()), else NodeFailed.

        An `error` frame raises OSError with the guest's errno.
        """
        frame = self._channel.wait(self._frames, deadline)
        if frame.get("ev") == "error":
            raise OSError(frame.get("errno") or 0, f"in the guest: {frame.get('message')}")
        return frame


class Channel:
    """A session on one port of a node."""

    def __init__(self, path: Path, health: Callable[[], None]) -> None:
        self._path = path
        self._health = health
        self._sock: socket.socket | None = None
        self._ids = itertools.count(1)
        self._write = threading.Lock()
        self._pending: dict[int, Pending] = {}
        self._hellos: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._gone = threading.Event()

    def open(self, deadline: float, *, not_boot: str | None = None) -> Hello:
        """Connect (once) and start a session; `not_boot`: the boot that must be over.

        Raises NodeFailed when no answer comes before `deadline`.
        """
        if self._sock is None:
            self._connect(deadline)
        nonce = secrets.token_hex(8)
        while True:
            self._send({"id": 0, "op": "hello", "nonce": nonce}, deadline)
            # One request is enough at boot: it waits in QEMU for the guest. Only
            # a reset can swallow it, hence another one after a while.
            again = min(deadline, time.monotonic() + (1.0 if not_boot else 30.0))
            hello = self._hello(nonce, again)
            if hello is not None and hello["boot_id"] != not_boot:
                fields = ("boot_id", "kernel", "loop_ns", "problem")
                return Hello(*(hello[name] for name in fields))
            if hello is not None:
                time.sleep(0.2)
            if time.monotonic() >= deadline:
                raise NoAnswer("the guest service did not answer in time")

    def _hello(self, nonce: str, deadline: float) -> Frame | None:
        while True:
            try:
                frame = self.wait(self._hellos, deadline)
            except NoAnswer:
                return None
            if frame.get("nonce") == nonce:
                return frame

    def _connect(self, deadline: float) -> None:
        while True:
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.connect(str(self._path))
                break
            except (FileNotFoundError, ConnectionRefusedError) as exc:
                sock.close()
                self._health()
                if time.monotonic() > deadline:
                    raise NodeFailed("QEMU opened no channel in time", str(exc)) from exc
                time.sleep(0.02)
        self._sock = sock
        threading.Thread(target=self._read, args=(sock,), daemon=True).start()

    def _read(self, sock: socket.socket) -> None:
        rest = b""
        while True:
            try:
                data = sock.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._dispatch(line)
        self._gone.set()
        self._hellos.put(None)
        for pending in list(self._pending.values()):
            pending.feed(None)

    def _dispatch(self, line: bytes) -> None:
        try:
            frame = json.loads(line)
        except ValueError:
            return  # cut off by a reset
        if not isinstance(frame, dict):
            return
        if frame.get("ev") == "hello":
            self._hellos.put(frame)
        elif (pending := self._pending.get(frame.get("id", -1))) is not None:
            pending.feed(frame)

    def wait(self, frames: queue.SimpleQueue[Frame | None], deadline: float) -> Frame:
        """Take a frame; NodeFailed when the node dies, NoAnswer at the deadline."""
        while True:
            left = deadline - time.monotonic()
            try:
                frame = frames.get(timeout=max(0.0, min(left, SLICE)))
            except queue.Empty:
                self._health()
                if left <= 0:
                    raise NoAnswer("no answer from the guest before the deadline") from None
                continue
            if frame is None:
                self._health()
                raise NodeFailed("the node's channel was closed", "QEMU ended or was reset")
            return frame

    def request(self, op: str, deadline: float, **fields: Any) -> Pending:
        """Send a request; its answers come through the returned object."""
        pending = Pending(next(self._ids), self)
        self._pending[pending.ident] = pending
        if self._gone.is_set():
            pending.feed(None)
        self._send({"id": pending.ident, "op": op, **fields}, deadline)
        return pending

    def call(self, op: str, deadline: float, **fields: Any) -> Frame:
        """A request with exactly one answer."""
        pending = self.request(op, deadline, **fields)
        try:
            return pending.next(deadline)
        finally:
            self.forget(pending)

    def more(self, pending: Pending, op: str, deadline: float, **fields: Any) -> None:
        """Send more for a request that is under way (stdin, signal)."""
        self._send({"id": pending.ident, "op": op, **fields}, deadline)

    def forget(self, pending: Pending) -> None:
        self._pending.pop(pending.ident, None)

    def _send(self, frame: Frame, deadline: float) -> None:
        if self._sock is None:
            raise NodeFailed("the node's channel is not open")
        data = memoryview(json.dumps(frame, separators=(",", ":")).encode() + b"\n")
        with self._write:
            while data:
                _, ready, _ = select.select([], [self._sock], [], SLICE)
                if not ready:
                    self._health()
                    if time.monotonic() > deadline:
                        raise NoAnswer("the guest service takes no more requests")
                    continue
                try:
                    data = data[self._sock.send(data, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    continue
                except OSError as exc:
                    self._health()
                    raise NodeFailed("the node's channel was closed", str(exc)) from exc

    def close(self) -> None:
        """End the session: the guest kills what it still runs for it."""
        if self._sock is not None:
            with contextlib.suppress(OSError):  # QEMU may have closed its end already
                self._sock.shutdown(socket.SHUT_RDWR)
            self._sock.close()
            self._sock = None


def decode(frame: Frame) -> bytes:
    return base64.b64decode(frame.get("data", ""))


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()
