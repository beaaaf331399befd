"""HTTP probes against servers that redirect, dawdle, reset and lie."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from probe_kit import (
    Authority,
    Server,
    answering,
    closed_port,
    full_queue,
    http,
    https,
    reply,
    reset,
    take,
)
from pydantic import ValidationError

from controller.probes.http import target_of
from controller.probes.spec import HttpProbe, parse_probe


def get(port: int, **more: Any) -> Any:
    return take({"type": "http", "host": "127.0.0.1", "port": port, **more})


def test_a_good_answer_passes_with_numbers() -> None:
    with answering(reply("all is well")) as server:
        found = get(server.port, contains="well", matches="^all", latency="2s")
        assert found.verdict == "pass"
        assert (found.data["status"], found.data["bytes"]) == (200, 11)
        assert 0 < found.data["first_byte_ns"] < 2 * 10**9


@pytest.mark.parametrize(
    ("status", "accepted", "verdict"),
    [
        ("204 No Content", None, "pass"),
        ("300 Multiple", None, "fail"),
        ("404 Not Found", None, "fail"),
        ("404 Not Found", (404, 404), "pass"),
        ("503 Busy", None, "fail"),
    ],
)
def test_status(status: str, accepted: Any, verdict: str) -> None:
    with answering(reply("", status)) as server:
        more = {} if accepted is None else {"status": accepted}
        found = get(server.port, **more)
        assert found.verdict == verdict
        assert verdict == "pass" or status.split()[0] in found.reason


def test_body_that_is_not_as_it_should_be() -> None:
    with answering(reply("maintenance")) as server:
        assert "does not contain 'orders'" in get(server.port, contains="orders").reason
        assert "does not match" in get(server.port, matches="^ok$").reason
        assert "longer than 4 bytes" in get(server.port, max_body="4B").reason


# --- redirects (CASES 148) ------------------------------------------------------------------


def test_redirects_are_not_followed_unless_asked() -> None:
    with answering(reply("maintenance page")) as page:
        to = f"http://localhost:{page.port}/down"
        with answering(reply("", "302 Found", f"Location: {to}")) as server:
            found = get(server.port)
            assert (found.verdict, found.data["status"]) == ("fail", 302)
            assert to in found.reason
            assert page.requests == []
            followed = get(server.port, follow=True)
            assert (followed.verdict, followed.data["redirects"]) == ("pass", 1)
            stay = get(server.port, follow=True, final_host="127.0.0.1")
            assert stay.verdict == "fail"
            assert "answered by localhost" in stay.reason
            assert get(server.port, status=(302, 302)).verdict == "pass"


def test_redirect_loop_fails() -> None:
    with answering(reply("", "302 Found", "Location: /")) as server:
        found = get(server.port, follow=True)
        assert (found.verdict, found.data["cause"]) == ("fail", "redirects")
        assert len(server.requests) <= 12


def test_redirect_to_nonsense_fails() -> None:
    for where in ("http://[::1", "gopher://x/", "http://"):
        with answering(reply("", "302 Found", f"Location: {where}")) as server:
            assert get(server.port, follow=True).verdict == "fail"


# --- what the network does (CASES 147) ------------------------------------------------------


def test_refused_is_a_failure_with_its_reason() -> None:
    found = get(closed_port())
    assert (found.verdict, found.data["cause"]) == ("fail", "refused")
    assert "ECONNREFUSED" in found.reason


def test_dropped_syn_is_a_time_out() -> None:
    with full_queue() as port:
        began = time.monotonic()
        found = get(port, timeout="300ms")
        assert (found.verdict, found.data["cause"]) == ("fail", "time-out")
        assert time.monotonic() - began < 2


def test_half_open_is_a_time_out() -> None:
    with Server(lambda c: time.sleep(3)) as server:
        assert get(server.port, timeout="300ms").data["cause"] == "time-out"


def test_reset_before_and_in_the_middle_of_the_body() -> None:
    with Server(reset) as server:
        found = get(server.port)
        assert (found.verdict, found.data["cause"]) == ("fail", "reset")

    def half(connection: socket.socket, head: bytes) -> None:
        connection.sendall(reply("x" * 100)[:-50])
        time.sleep(0.1)
        reset(connection)

    with http(half) as server:
        found = get(server.port)
        assert (found.verdict, found.data["cause"], found.data["status"]) == ("fail", "reset", 200)


def test_connection_closed_in_the_middle_of_the_body() -> None:
    with answering(reply("x" * 100)[:-50]) as server:
        found = get(server.port)
        assert (found.verdict, found.data["cause"]) == ("fail", "cut")


def test_name_that_does_not_resolve_is_a_failure() -> None:
    found = take({"type": "http", "host": "nobody.invalid"})
    assert (found.verdict, found.data["cause"]) == ("fail", "dns")


@pytest.mark.parametrize("part", ["head", "body"])
def test_dripping_answers_end_at_the_time_out(part: str) -> None:
    """Each byte is on time, the whole is not: one limit for everything together."""
    whole = reply("x" * 500)
    start = 1 if part == "head" else len(whole) - 499

    def drip(connection: socket.socket, head: bytes) -> None:
        connection.sendall(whole[:start])
        for at in range(start, len(whole)):
            connection.sendall(whole[at : at + 1])
            time.sleep(0.05)

    with http(drip) as server:
        began = time.monotonic()
        found = get(server.port, timeout="400ms")
        assert (found.verdict, found.data["cause"]) == ("fail", "time-out")
        assert time.monotonic() - began < 1.5


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\xff" * 100,
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        reply("not gzip", "200 OK", "Content-Encoding: gzip"),
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"a" * 300_000 + b"\r\n\r\n",
    ],
)
def test_garbage_is_a_failure_and_no_crash(garbage: bytes) -> None:
    with answering(garbage) as server:
        found = get(server.port)
        assert found.verdict == "fail"
        assert found.reason


def test_broken_text_is_read_anyway() -> None:
    data = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=klingon\r\n\r\n\xff\xfe ok"
    with answering(data) as server:
        assert get(server.port, contains="ok").verdict == "pass"


# --- TLS (CASES 149) --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def tls_get(server: Server, **more: Any) -> Any:
    return get(server.port, scheme="https", **{k: str(v) for k, v in more.items()})


def test_own_ca_is_verified_against_its_file(authority: Authority) -> None:
    with https(authority.issue("good", ["127.0.0.1"])) as server:
        assert tls_get(server, ca=authority.path).verdict == "pass"
        found = tls_get(server)
        assert (found.verdict, found.data["cause"]) == ("fail", "unknown-ca")
        assert "unknown CA" in found.reason
        assert get(server.port, scheme="https", verify=False).verdict == "pass"


@pytest.mark.parametrize(
    ("label", "names", "days", "own", "cause"),
    [
        ("self", ["127.0.0.1"], 30, True, "unknown-ca"),
        ("old", ["127.0.0.1"], -1, False, "expired"),
        ("address", ["127.0.0.2"], 30, False, "wrong-name"),
        ("name", ["other.example"], 30, False, "wrong-name"),
    ],
)
def test_bad_certificates_have_reasons_of_their_own(
    authority: Authority, label: str, names: list[str], days: int, own: bool, cause: str
) -> None:
    with https(authority.issue(label, names, days, own=own)) as server:
        found = tls_get(server, ca=authority.path)
        assert (found.verdict, found.data["cause"]) == ("fail", cause)
        assert get(server.port, scheme="https", verify=False).verdict == "pass"


def test_server_name_stands_in_for_the_address(authority: Authority) -> None:
    with https(authority.issue("named", ["db.example"])) as server:
        assert tls_get(server, ca=authority.path).data["cause"] == "wrong-name"
        named = tls_get(server, ca=authority.path, server_name="db.example")
        assert named.verdict == "pass"
        other = tls_get(server, ca=authority.path, server_name="x.example")
        assert other.data["cause"] == "wrong-name"


def test_client_certificate(authority: Authority) -> None:
    pair = authority.issue("mutual", ["127.0.0.1"])
    cert, key = authority.issue("client", ["me"])
    with https(pair, client_ca=authority.path) as server:
        assert tls_get(server, ca=authority.path).verdict == "fail"
        assert tls_get(server, ca=authority.path, cert=cert, key=key).verdict == "pass"


def test_down_is_told_apart_from_tls(authority: Authority) -> None:
    with Server(lambda c: c.sendall(reply("plain"))) as server:
        found = tls_get(server, ca=authority.path)
        assert (found.verdict, found.data["cause"]) == ("fail", "tls")
    assert get(closed_port(), scheme="https").data["cause"] == "refused"


def test_bad_configuration_measures_nothing(authority: Authority, tmp_path: Path) -> None:
    rubbish = tmp_path / "ca.pem"
    rubbish.write_text("no certificate")
    cert, _ = authority.issue("half", ["127.0.0.1"])
    with https(authority.issue("fine", ["127.0.0.1"])) as server:
        for more in ({"ca": tmp_path / "none"}, {"ca": rubbish}, {"cert": cert}):
            found = tls_get(server, **more)
            assert (found.verdict, found.data["cause"]) == ("unknown", "configuration")


def test_trust_is_not_taken_from_the_environment(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proxies of the user's shell must not stand between the probe and what it measures."""
    with answering(reply("ok")) as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port()}")
        assert get(server.port).verdict == "pass"


# --- addresses (CASES 150) --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "url", "host"),
    [
        ({"host": "::1", "port": 4240}, "http://[::1]:4240/", "[::1]:4240"),
        ({"host": "[::1]", "port": 4240}, "http://[::1]:4240/", "[::1]:4240"),
        ({"host": "f00d::1"}, "http://[f00d::1]:80/", "[f00d::1]"),
        ({"host": "fe80::1%eth0", "port": 81}, "http://[fe80::1%25eth0]:81/", "[fe80::1]:81"),
        ({"host": "[fe80::1%eth0]"}, "http://[fe80::1%25eth0]:80/", "[fe80::1]"),
        ({"url": "http://[::1]:8080/a?b=c"}, "http://[::1]:8080/a?b=c", "[::1]:8080"),
        ({"url": "http://[fe80::1%25lo]/"}, "http://[fe80::1%25lo]:80/", "[fe80::1]"),
        ({"url": "https://h"}, "https://h:443/", "h"),
        ({"host": "h", "path": "/x"}, "http://h:80/x", "h"),
    ],
)
def test_exactly_one_pair_of_brackets(given: dict[str, Any], url: str, host: str) -> None:
    spec = parse_probe({"type": "http", **given})
    assert isinstance(spec, HttpProbe)
    assert target_of(spec) == (url, host)


@pytest.mark.parametrize(
    "given",
    [
        {"host": "[[::1]]"},
        {"host": "[::1"},
        {"host": "::1]"},
        {"host": "[h]"},
        {"host": "h:80"},
        {"host": "1:2:3"},
        {"host": ""},
        {"host": "a b"},
        {"host": "a/b"},
        {"host": "u@h"},
        {"url": "http://::1:4240/"},
        {"url": "http://[[::1]]/"},
        {"url": "ftp://h/"},
        {"url": "h:80"},
        {"url": "http://"},
        {"url": "http://h:99999/"},
        {"url": "http://h/", "host": "h"},
        {},
        {"host": "h", "path": "x"},
        {"host": "h", "port": 0},
        {"host": "h", "matches": "("},
        {"host": "h", "timeout": "5"},
        {"host": "h", "timeout": "0s"},
        {"host": "h", "interval": "0s"},
        {"host": "h", "statuz": 200},
    ],
)
def test_bad_probes_are_refused_when_read(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        parse_probe({"type": "http", **given})


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this kernel has no IPv6")
@pytest.mark.parametrize("host", ["::1", "[::1]", "::1%1", "url", "url-zone"])
def test_ipv6_only_service(host: str) -> None:
    with answering(reply("six"), "::1") as server:
        if host == "url":
            data = {"url": f"http://[::1]:{server.port}/"}
        elif host == "url-zone":
            data = {"url": f"http://[::1%251]:{server.port}/"}
        else:
            data = {"host": host, "port": server.port}
        found = take({"type": "http", **data})
        assert found.verdict == "pass", found
        assert f"Host: [::1]:{server.port}\r\n".encode() in server.requests[0]


def test_openssl_is_new_enough_to_say_why() -> None:
    assert ssl.OPENSSL_VERSION_INFO >= (1, 1)
