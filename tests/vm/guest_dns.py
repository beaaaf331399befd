"""Runs inside a lab node: a DNS server and a client, with their own few lines of RFC 1035.

guest_dns.py serve              UDP and TCP, port 53: TXT "real" for every question; logs the names
guest_dns.py ask JSON           [[name, type, server, tcp], ...] -> [[what came, ms], ...]
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time

TYPES = {"A": 1, "AAAA": 28, "MX": 15, "TXT": 16}
LOG = "/tmp/dns.log"


def question(name: str, kind: int) -> bytes:
    labels = b"".join(bytes([len(x)]) + x.encode() for x in name.split("."))
    return (
        struct.pack("!HHHHHH", 0x1234, 0x0100, 1, 0, 0, 0)
        + labels
        + struct.pack("!BHH", 0, kind, 1)
    )


def name_of(message: bytes) -> tuple[str, int]:
    labels, at = [], 12
    while message[at]:
        labels.append(message[at + 1 : at + 1 + message[at]].decode())
        at += 1 + message[at]
    return ".".join(labels), at + 1


def answer(query: bytes) -> bytes:
    name, end = name_of(query)
    with open(LOG, "a", encoding="ascii") as log:
        log.write(f"{name}\n")
    record = struct.pack("!HHHIH", 0xC00C, 16, 1, 60, 5) + b"\x04real"
    head = query[:2] + struct.pack("!HHHHH", 0x8180, 1, 1, 0, 0)
    return head + query[12 : end + 4] + record


def serve() -> None:
    udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    udp.bind(("::", 53))
    tcp = socket.create_server(("::", 53), family=socket.AF_INET6, dualstack_ipv6=True)

    def streams() -> None:
        while True:
            threading.Thread(target=stream, args=tcp.accept()[:1], daemon=True).start()

    def stream(peer: socket.socket) -> None:
        with peer:
            try:
                while head := peer.recv(2):
                    made = answer(peer.recv(struct.unpack("!H", head)[0]))
                    peer.sendall(struct.pack("!H", len(made)) + made)
            except OSError:
                return

    threading.Thread(target=streams, daemon=True).start()
    print("ready", flush=True)
    while True:
        query, peer = udp.recvfrom(2000)
        udp.sendto(answer(query), peer)


def read(message: bytes) -> str:
    """The error, or the records in order."""
    _, flags, _, count, _, _ = struct.unpack_from("!HHHHHH", message)
    if not flags & 0x8000:
        return "no answer"
    if flags & 15:
        return f"rcode {flags & 15}"
    at, found = name_of(message)[1] + 4, []
    for _ in range(count):
        kind, _, ttl, size = struct.unpack_from("!HHIH", message, at + 2)
        data = message[at + 12 : at + 12 + size]
        family = {1: socket.AF_INET, 28: socket.AF_INET6}.get(kind)
        found.append(socket.inet_ntop(family, data) if family else data[1:].decode())
        at += 12 + size
        assert ttl in (30, 60), ttl
    assert at == len(message), "something is behind the records"
    return " ".join(found) or "empty"


def ask(name: str, kind: str, server: str, tcp: bool) -> str:
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    query = question(name, TYPES[kind])
    with socket.socket(family, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM) as peer:
        peer.settimeout(4)
        try:
            peer.connect((server, 53))
            if tcp:
                peer.sendall(struct.pack("!H", len(query)) + query)
                size = struct.unpack("!H", peer.recv(2))[0]
                found = peer.recv(size, socket.MSG_WAITALL)
            else:
                peer.send(query)
                found = peer.recv(2000)
        except TimeoutError:
            return "timeout"
        except OSError as exc:
            return str(exc.strerror)
    assert found[:2] == query[:2], "the answer is for another question"
    return read(found)


def main() -> None:
    if sys.argv[1] == "serve":
        serve()
    found = []
    for name, kind, server, tcp in json.loads(sys.argv[2]):
        start = time.monotonic()
        found.append([ask(name, kind, server, tcp), (time.monotonic() - start) * 1000])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
