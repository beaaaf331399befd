"""Two processes of a retry storm, for tests: a server that never looks whether its client still
waits, and a client of constant load that tries again when it is not answered in time.

    retry_storm.py server PORT SLOW_FLAG     20 ms a request, 200 ms while SLOW_FLAG exists
    retry_storm.py client PORT TRIES STATUS  10 requests/s; STATUS says `ok`
                                                 while half of them are answered in time
"""

from __future__ import annotations

import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

FAST_S, SLOW_S = 0.02, 0.2
EVERY_S, PATIENCE_S = 0.1, 0.4


def server(port: int, flag: Path) -> None:
    """Works through its queue (the socket's buffer) in order."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    sock.bind(("127.0.0.1", port))
    while True:
        data, peer = sock.recvfrom(64)
        time.sleep(SLOW_S if flag.exists() else FAST_S)
        sock.sendto(data, peer)


def client(port: int, tries: int, status: Path) -> None:
    """A request is good if any of its tries is answered within its own patience."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect(("127.0.0.1", port))
    waiting: dict[int, tuple[float, int]] = {}
    good: list[float] = []
    number, due, told = 0, time.monotonic(), 0.0
    while True:
        now = time.monotonic()
        while due <= now:
            due += EVERY_S
            number = _send(sock, waiting, number, tries)
        for key, (deadline, left) in list(waiting.items()):
            if deadline <= now:
                del waiting[key]
                if left:
                    number = _send(sock, waiting, number, left)
        sock.settimeout(max(min(due - time.monotonic(), 0.02), 0.001))
        try:
            key = int(sock.recv(64))
            if waiting.pop(key, None) is not None:
                good.append(time.monotonic())
        except (TimeoutError, ConnectionRefusedError):
            pass
        if now - told > 0.25:
            told = now
            good = [at for at in good if at > now - 2]
            status.write_text("ok" if len(good) * EVERY_S > 1 else "bad")


def _send(
    sock: socket.socket, waiting: dict[int, tuple[float, int]], number: int, tries: int
) -> int:
    with suppress(ConnectionRefusedError):
        sock.send(str(number).encode())
    waiting[number] = (time.monotonic() + PATIENCE_S, tries - 1)
    return number + 1


if __name__ == "__main__":
    if sys.argv[1] == "server":
        server(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        client(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
