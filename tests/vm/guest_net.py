"""Runs inside a lab node: numbered UDP packets, counted and timed by the kernel's own stamps.

guest_net.py recv PORT IDLE_S       prints one JSON object when nothing came for so long
guest_net.py send HOST PORT COUNT SIZE PER_SECOND [CPU]
guest_net.py echo PORT              TCP: answers each line with itself, for ever
guest_net.py ask HOST PORT COUNT    TCP round trips on one connection, in milliseconds
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import struct
import sys
import time

SO_TIMESTAMPNS = 35
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
NUMBER = struct.Struct("!I")


def recv(port: int, idle: float) -> None:
    found = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    found.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    found.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 25)
    found.bind(("::", port))
    print("ready", flush=True)
    found.settimeout(60)
    numbers, stamps, size = [], [], 0
    while True:
        try:
            data, more, _, _ = found.recvmsg(65535, 64)
        except TimeoutError:
            break
        found.settimeout(idle)
        numbers.append(NUMBER.unpack_from(data)[0])
        stamps.append(struct.unpack("=qq", more[0][2]))
        size += len(data)
    times = [s * 10**9 + ns for s, ns in stamps]
    print(
        json.dumps(
            {
                "count": len(numbers),
                "distinct": len(set(numbers)),
                "inversions": sum(a > b for a, b in itertools.pairwise(numbers)),
                "early": early(numbers),
                "first": numbers[0] if numbers else None,
                "span_ns": max(times) - min(times) if times else 0,
                "bytes": size,
                "lost": losses(numbers),
            }
        )
    )


def early(numbers: list[int]) -> int:
    """Packets that came before one that was sent before them."""
    least, found = 1 << 32, 0
    for number in reversed(numbers):
        found += number > least
        least = min(least, number)
    return found


def losses(numbers: list[int]) -> list[int]:
    """Lengths of the runs of packets that are missing, but for the last ones."""
    runs, expected = [], 0
    for number in sorted(set(numbers)):
        if number > expected:
            runs.append(number - expected)
        expected = number + 1
    return runs


def send(host: str, port: int, count: int, size: int, per_second: float, *cpu: int) -> None:
    if cpu:
        os.sched_setaffinity(0, cpu)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    out = socket.socket(family, socket.SOCK_DGRAM)
    out.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 1 << 26)
    out.connect((host, port))
    start = time.monotonic()
    refused = 0
    for number in range(count):
        wait = start + number / per_second - time.monotonic() if per_second else 0
        if wait > 0:
            time.sleep(wait)
        try:
            out.send(NUMBER.pack(number) + bytes(size - 4))
        except OSError:
            refused += 1
    print(json.dumps({"sent": count, "refused": refused, "took": time.monotonic() - start}))


def echo(port: int) -> None:
    listener = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    print("ready", flush=True)
    while True:
        peer, _ = listener.accept()
        with peer, peer.makefile("rwb") as lines:
            for line in lines:
                lines.write(line)
                lines.flush()


def hold() -> None:
    kept = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    kept.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    print("ready", flush=True)
    time.sleep(3600)


def ask(host: str, port: int, count: int) -> None:
    with socket.create_connection((host, port), timeout=30) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        took = []
        with peer.makefile("rwb") as lines:
            for _ in range(count):
                start = time.monotonic()
                lines.write(b"x\n")
                lines.flush()
                assert lines.readline() == b"x\n"
                took.append((time.monotonic() - start) * 1000)
    print(json.dumps(sorted(took)))


def main() -> None:
    verb, *words = sys.argv[1:]
    if verb == "recv":
        recv(int(words[0]), float(words[1]))
    elif verb == "send":
        port, count, size = map(int, words[1:4])
        send(words[0], port, count, size, float(words[4]), *map(int, words[5:]))
    elif verb == "hold":
        hold()
    elif verb == "echo":
        echo(int(words[0]))
    else:
        ask(words[0], int(words[1]), int(words[2]))


if __name__ == "__main__":
    main()
