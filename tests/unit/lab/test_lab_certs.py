"""Certificates: a real TLS handshake decides what they are good for."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest

from controller.lab import certs


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Both ends in memory, until both are done or one refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname=name),
    ]
    for _ in range(10):
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)
    assert not ends


def contexts(files: certs.Files, *, client: bool = True) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files.ca)
    server.verify_mode = ssl.CERT_REQUIRED
    server.maximum_version = ssl.TLSVersion.TLSv1_2  # there a client sees the refusal at once
    server.load_cert_chain(files.server_cert, files.server_key)
    one = ssl.create_default_context(cafile=files.ca)
    if client:
        one.load_cert_chain(files.client_cert, files.client_key)
    return server, one


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "n1", "10.77.0.2"])
def test_both_sides_are_content(tmp_path: Path, name: str) -> None:
    files = certs.write_all(tmp_path / "tls", "n1", ("10.77.0.2",))
    handshake(*contexts(files), name)


def test_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(*contexts(certs.write_all(tmp_path, "n1")), "n2")


def test_no_client_certificate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLError):
        handshake(*contexts(certs.write_all(tmp_path, "n1"), client=False), "n1")


def test_another_nodes_client_is_refused(tmp_path: Path) -> None:
    server, _ = contexts(certs.write_all(tmp_path / "a", "n1"))
    other = certs.write_all(tmp_path / "b", "n1")
    client = ssl.create_default_context(cafile=tmp_path / "a/ca.pem")
    client.load_cert_chain(other.client_cert, other.client_key)
    with pytest.raises(ssl.SSLError):
        handshake(server, client, "n1")


def test_a_client_cannot_pose_as_the_agent(tmp_path: Path) -> None:
    files = certs.write_all(tmp_path, "n1")
    server, client = contexts(files)
    server.load_cert_chain(files.client_cert, files.client_key)
    with pytest.raises(ssl.SSLError):
        handshake(server, client, "n1")


def test_keys_are_private_and_the_cas_is_nowhere(tmp_path: Path) -> None:
    home = tmp_path / "tls"
    certs.write_all(home, "n1")
    assert sorted(path.name for path in home.iterdir()) == [
        "ca.pem", "client-key.pem", "client.pem", "server-key.pem", "server.pem"
    ]  # fmt: skip
    for path in home.glob("*-key.pem"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert b"PRIVATE" not in (home / "ca.pem").read_bytes()
