"""Real servers on loopback that misbehave on purpose, certificates, and a local node."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from controller.probes.measure import Meter, Surroundings
from controller.probes.outcome import Outcome
from controller.probes.spec import parse_probe
from nodeagent.probes import run_probe

Handler = Callable[[socket.socket], None]


class Server:
    """Accepts connections and hands each to a function in a thread; closes it afterwards."""

    def __init__(self, handler: Handler, host: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.listener = socket.socket(family)
        self.listener.bind((host, 0))
        self.listener.listen(16)
        self.port: int = self.listener.getsockname()[1]
        self.requests: list[bytes] = []
        self._handler = handler
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ssl.SSLError), connection:
            self._handler(connection)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def http(handler: Callable[[socket.socket, bytes], None], host: str = "127.0.0.1") -> Server:
    """A server whose handler gets the request's head."""

    def serve(connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            more = connection.recv(4096)
            if not more:
                return
            head += more
        server.requests.append(head)
        handler(connection, head)

    server = Server(serve, host)
    return server


def reply(text: str, status: str = "200 OK", *headers: str) -> bytes:
    length = f"Content-Length: {len(text.encode())}"
    # The servers here close after one answer; unsaid, a client would send the next request
    # into a connection that is going away.
    lines = [f"HTTP/1.1 {status}", length, "Connection: close", *headers, "", text]
    return "\r\n".join(lines).encode()


def answering(data: bytes, host: str = "127.0.0.1") -> Server:
    return http(lambda c, _: c.sendall(data), host)


def reset(connection: socket.socket) -> None:
    """Close with RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def closed_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextlib.contextmanager
def full_queue() -> Iterator[int]:
    """A port whose accept queue is full, so that the kernel drops every further SYN."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(listener.getsockname())
        yield listener.getsockname()[1]


# --- certificates ------------------------------------------------------------------------


class Authority:
    """A CA that signs what it is asked to, right or wrong."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._build(self.name, self.key, [], 365, ca=True, own=True)
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def _build(
        self, name: Any, key: Any, names: list[str], days: int, *, ca: bool, own: bool
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        alternatives: list[x509.GeneralName] = []
        for one in names:
            try:
                alternatives.append(x509.IPAddress(ipaddress.ip_address(one)))
            except ValueError:
                alternatives.append(x509.DNSName(one))
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name if own else self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=30))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
        )
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), False)
        return builder.sign(key if own else self.key, hashes.SHA256())

    def issue(
        self, label: str, names: list[str], days: int = 30, *, own: bool = False
    ) -> tuple[Path, Path]:
        """(certificate, key); with `own` it signs itself."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, label)])
        certificate = self._build(name, key, names, days, ca=False, own=own)
        paths = self.folder / f"{label}.crt", self.folder / f"{label}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return paths


def https(pair: tuple[Path, Path], client_ca: Path | None = None) -> Server:
    """Answers `ok` over TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            server.requests.append(secure.recv(4096))
            secure.sendall(reply("ok"))

    server = Server(serve)
    return server


# --- measuring -----------------------------------------------------------------------------


def take(data: dict[str, Any], surroundings: Surroundings | None = None) -> Outcome:
    """One sample of a probe as it stands in an experiment."""
    return Meter(parse_probe({"timeout": "2s", **data}), surroundings).sample()[0]


class LocalNode:
    """The node agent's own code for probes, without the wire."""

    def probe(self, probe: dict[str, Any], timeout: float) -> Iterator[Any]:
        for sample in run_probe(json.dumps(probe), threading.Event()):
            yield SimpleNamespace(
                verdict=sample.verdict,
                reason=sample.reason,
                boottime_ns=sample.boottime_ns,
                duration_ns=sample.duration_ns,
                data_json=json.dumps(sample.data),
            )


NODE = Surroundings(agents=lambda name: LocalNode())
