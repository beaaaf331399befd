"""TCP, DNS and gRPC health probes against real servers on loopback."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from probe_kit import NODE, Authority, Server, closed_port, full_queue, reset, take

from controller.probes.measure import bounded
from controller.probes.outcome import Outcome, passed


def tcp(port: int, **more: Any) -> Outcome:
    return take({"type": "tcp", "host": "127.0.0.1", "port": port, **more})


def test_tcp_verdicts() -> None:
    with Server(lambda c: None) as server:
        assert tcp(server.port).verdict == "pass"
        assert tcp(server.port, host="localhost").verdict == "pass"
    refused = tcp(closed_port())
    assert (refused.verdict, refused.data["cause"]) == ("fail", "refused")
    with full_queue() as port:
        assert tcp(port, timeout="300ms").data["cause"] == "time-out"
    assert tcp(1, host="nobody.invalid").data["cause"] == "dns"
    with Server(reset) as server:
        assert tcp(server.port).verdict == "pass", "accepted is accepted"


def test_tcp_through_a_node_says_the_same() -> None:
    data = {"type": "tcp", "host": "127.0.0.1", "node": "n1", "timeout": "2s"}
    with Server(lambda c: None) as server:
        assert take({**data, "port": server.port}, NODE).verdict == "pass"
    found = take({**data, "port": closed_port()}, NODE)
    assert found.verdict == "fail"
    assert "ECONNREFUSED" in found.reason
    unknown_node = take({**data, "port": 1})
    assert unknown_node.verdict == "unknown"


def test_ipv6_bare_and_bracketed() -> None:
    with Server(lambda c: None, "::1") as server:
        for host in ("::1", "[::1]"):
            assert tcp(server.port, host=host).verdict == "pass"


def test_what_hangs_in_spite_of_its_own_time_out_is_given_up() -> None:
    began = time.monotonic()
    found = bounded(lambda: (time.sleep(5), passed())[1], 0.2)
    assert (found.verdict, found.data["abandoned"]) == ("fail", True)
    assert time.monotonic() - began < 2
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: passed(x=1 // 0), 1)


# --- DNS ---------------------------------------------------------------------------------


Answerer = Callable[[dns.message.Message], bytes | None]


@pytest.fixture
def name_server() -> Iterator[Callable[[Answerer], int]]:
    sockets: list[socket.socket] = []

    def start(answer: Answerer) -> int:
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.bind(("127.0.0.1", 0))
        sockets.append(server)

        def serve() -> None:
            while True:
                try:
                    data, peer = server.recvfrom(4096)
                except OSError:
                    return
                found = answer(dns.message.from_wire(data))
                if found is not None:
                    server.sendto(found, peer)

        threading.Thread(target=serve, daemon=True).start()
        port: int = server.getsockname()[1]
        return port

    yield start
    for one in sockets:
        one.close()


def answer_with(rcode: int = dns.rcode.NOERROR, *records: str) -> Answerer:
    def answer(query: dns.message.Message) -> bytes:
        response = dns.message.make_response(query)
        response.set_rcode(dns.rcode.Rcode(rcode))
        name = query.question[0].name
        for record in records:
            kind, _, text = record.partition(" ")
            response.answer.append(dns.rrset.from_text(name, 30, "IN", kind, text))
        return response.to_wire()

    return answer


def ask(port: int, **more: Any) -> Outcome:
    data = {"type": "dns", "name": "db.test", "server": "127.0.0.1", "port": port, "timeout": "1s"}
    return take(data | more)


def test_dns_answers(name_server: Callable[[Answerer], int]) -> None:
    port = name_server(answer_with(dns.rcode.NOERROR, "A 10.0.0.1", "A 10.0.0.2"))
    found = ask(port, expect=["10.0.0.1"])
    assert (found.verdict, found.data["answers"], found.data["ttl"]) == (
        "pass",
        ["10.0.0.1", "10.0.0.2"],
        30,
    )
    missing = ask(port, expect=["10.0.0.3"])
    assert (missing.verdict, missing.data["cause"]) == ("fail", "answer")
    name = name_server(answer_with(dns.rcode.NOERROR, "CNAME Other.Test."))
    assert ask(name, record="CNAME", expect=["other.test"]).verdict == "pass"
    text = name_server(answer_with(dns.rcode.NOERROR, 'TXT "hello"'))
    assert ask(text, record="TXT", expect=["hello"]).verdict == "pass"


def test_dns_failures_have_causes(name_server: Callable[[Answerer], int]) -> None:
    for rcode, cause in (
        (dns.rcode.NXDOMAIN, "nxdomain"),
        (dns.rcode.SERVFAIL, "servfail"),
        (dns.rcode.REFUSED, "servfail"),
        (dns.rcode.NOERROR, "no-answer"),
    ):
        found = ask(name_server(answer_with(rcode)))
        assert (found.verdict, found.data["cause"]) == ("fail", cause), rcode
    silent = ask(name_server(lambda q: None), timeout="400ms")
    assert (silent.verdict, silent.data["cause"]) == ("fail", "time-out")
    garbage = ask(name_server(lambda q: b"\x00" * 30), timeout="400ms")
    assert garbage.verdict == "fail"
    assert ask(closed_port(), timeout="400ms").verdict == "fail"


def test_a_name_that_cannot_be_asked_is_unknown(name_server: Callable[[Answerer], int]) -> None:
    port = name_server(answer_with())
    assert ask(port, name="a..b").verdict == "unknown"
    assert ask(port, name="x" * 64 + ".test").verdict == "unknown"


# --- gRPC health -----------------------------------------------------------------------------


@pytest.fixture
def health_server() -> Iterator[tuple[Any, int]]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, port
    server.stop(0)


def check(port: int, **more: Any) -> Outcome:
    return take({"type": "grpc-health", "host": "127.0.0.1", "port": port, **more})


def test_grpc_health(health_server: tuple[Any, int]) -> None:
    servicer, port = health_server
    status = health_pb2.HealthCheckResponse.ServingStatus
    servicer.set("", status.SERVING)
    servicer.set("shop", status.NOT_SERVING)
    assert check(port).verdict == "pass"
    shop = check(port, service="shop")
    assert (shop.verdict, shop.data["status"]) == ("fail", "NOT_SERVING")
    servicer.set("shop", status.SERVING)
    assert check(port, service="shop").verdict == "pass", "no state is kept between samples"
    nobody = check(port, service="nobody")
    assert (nobody.verdict, nobody.data["code"]) == ("fail", "NOT_FOUND")


def test_grpc_that_is_not_there() -> None:
    refused = check(closed_port(), timeout="1s")
    assert (refused.verdict, refused.data["cause"]) == ("fail", "refused")
    with Server(lambda c: time.sleep(2)) as server:
        silent = check(server.port, timeout="400ms")
        assert silent.verdict == "fail"
        assert silent.data["cause"] == "time-out"
    with Server(lambda c: c.sendall(b"SSH-2.0-x\r\n" * 10)) as server:
        assert check(server.port, timeout="1s").verdict == "fail"


def test_grpc_without_a_health_service_measures_nothing() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        assert check(port).verdict == "unknown"
    finally:
        server.stop(0)


def test_grpc_over_tls(tmp_path_factory: pytest.TempPathFactory) -> None:
    authority = Authority(tmp_path_factory.mktemp("ca"))
    cert, key = authority.issue("grpc", ["grpc.example"])
    server = grpc.server(futures.ThreadPoolExecutor(1))
    servicer = health.HealthServicer()
    servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), cert.read_bytes())])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        good = {"tls": True, "ca": str(authority.path), "server_name": "grpc.example"}
        assert check(port, **good).verdict == "pass"
        assert check(port, tls=True, server_name="grpc.example").verdict == "fail"
        assert check(port, **(good | {"server_name": "x.example"})).verdict == "fail"
        assert check(port, **good, verify=False).verdict == "unknown"
        assert check(port, tls=True, ca="/nonexistent").verdict == "unknown"
    finally:
        server.stop(0)
