"""A netlink socket of one net namespace: requests, batches, dumps (netlink(7), rtnetlink(7)).

No library: the agent and its guardian need a few messages of a raw socket, and no memory
for more.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from nodeagent.encode import net_attrs as n

SOL_NETLINK = 270
NETLINK_CAP_ACK, NETLINK_EXT_ACK = 10, 11
SO_NETNS_COOKIE = 71
TIMEOUT_S = 30
BATCH = 128  # messages in flight: their acknowledgements fit in the receive buffer
_RECEIVE = 1 << 18
_TRIES = 10

T = TypeVar("T")


@dataclass(frozen=True)
class Failure:
    """One refused message of a batch."""

    index: int
    errno: int
    words: str

    def error(self) -> OSError:
        """With the kernel's own words where it has some."""
        text = os.strerror(self.errno)
        return OSError(self.errno, f"{text}: {self.words}" if self.words else text)


class Netlink:
    """A socket in the net namespace of the thread that makes it; any thread may use it."""

    def __init__(self, protocol: int = socket.NETLINK_ROUTE) -> None:
        self._seq = 0
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
        self._socket = socket.socket(socket.AF_NETLINK, kind, protocol)
        self._socket.settimeout(TIMEOUT_S)
        for option in (NETLINK_CAP_ACK, NETLINK_EXT_ACK):
            self._socket.setsockopt(SOL_NETLINK, option, 1)
        self._socket.bind((0, 0))

    def __enter__(self) -> Netlink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """An open socket keeps the namespace and its devices alive."""
        self._socket.close()

    def cookie(self) -> int:
        """The namespace's cookie; different for every namespace of a boot (Linux 5.14)."""
        raw = self._socket.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8)
        return n.number(raw)

    def request(self, message: bytes) -> None:
        """One message that is acknowledged. Raises OSError with the kernel's words."""
        failures = self.batch([message])
        if failures:
            raise failures[0].error()

    def batch(self, requests: Sequence[bytes]) -> list[Failure]:
        """Messages in order, each acknowledged; those that the kernel refused."""
        failures: list[Failure] = []
        for start in range(0, len(requests), BATCH):
            part = requests[start : start + BATCH]
            failures += self._send(part, start)
            if failures:
                break
        return failures

    def pour(self, requests: Sequence[bytes]) -> list[Failure]:
        """Many messages, of which only failures and the last of a group are answered."""
        failures: list[Failure] = []
        for start in range(0, len(requests), BATCH):
            part = requests[start : start + BATCH]
            quiet = [n.without_ack(message) for message in part[:-1]]
            failures += self._send([*quiet, part[-1]], start)
        return failures

    def _send(self, part: Sequence[bytes], start: int) -> list[Failure]:
        first = self._seq + 1
        self._seq += len(part)
        self._socket.send(b"".join(n.with_seq(m, first + i) for i, m in enumerate(part)))
        left, failures = sum(map(n.wants_ack, part)), []
        while left:
            for message in n.messages(self._socket.recv(_RECEIVE)):
                if message.kind != n.NLMSG_ERROR or not first <= message.seq <= self._seq:
                    continue
                left -= n.wants_ack(part[message.seq - first])
                code, words = n.error_of(message)
                if code:
                    failures.append(Failure(start + message.seq - first, code, words))
        return failures

    def dump(self, request: bytes, parse: Callable[[n.Message], T]) -> list[T]:
        """All objects that a dump names; again when something changed meanwhile."""
        for _ in range(_TRIES):
            found, whole = self._dump(request, parse)
            if whole:
                return found
        raise OSError(f"the dump was interrupted by changes {_TRIES} times")

    def _dump(self, request: bytes, parse: Callable[[n.Message], T]) -> tuple[list[T], bool]:
        self._seq += 1
        self._socket.send(n.with_seq(request, self._seq))
        found: list[T] = []
        whole = True
        while True:
            for message in n.messages(self._socket.recv(_RECEIVE)):
                if message.seq != self._seq:
                    continue
                whole = whole and not message.flags & n.NLM_F_DUMP_INTR
                if message.kind == n.NLMSG_DONE:
                    return found, whole
                if message.kind == n.NLMSG_ERROR:
                    code, words = n.error_of(message)
                    raise Failure(0, code, words).error()
                found.append(parse(message))
