"""Certificates for mutual TLS between this host and one node's agent.

A CA of its own for each node, valid for hours: nothing that leaks from a lab
opens anything else.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = datetime.timedelta(days=1)
# A guest's clock starts from the host's, but may be set back a little.
BACK = datetime.timedelta(minutes=10)


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key."""

    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def cert_pem(self) -> bytes:
        return self.cert.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


@dataclass(frozen=True)
class Files:
    """PEM files on this host; keys are readable by their owner only."""

    ca: Path
    server_cert: Path
    server_key: Path
    client_cert: Path
    client_key: Path


def _builder(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: x509.Name, valid: datetime.timedelta
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACK)
        .not_valid_after(now + valid)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    )


def make_ca(name: str, valid: datetime.timedelta = VALID) -> Pair:
    """A self-signed certificate that may sign others, but no further CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = _builder(name, key, issuer, valid)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    return Pair(builder.add_extension(usage, True).sign(key, hashes.SHA256()), key)


def issue(
    ca: Pair,
    name: str,
    *,
    server: bool,
    names: tuple[str, ...] = (),
    valid: datetime.timedelta = VALID,
) -> Pair:
    """A certificate for one side; `names` are host names and addresses that it stands for."""
    key = ec.generate_private_key(ec.SECP256R1())
    usage = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = _builder(name, key, ca.cert.subject, valid)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), False)
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key())
    builder = builder.add_extension(authority, False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(map(_name, names)), False)
    return Pair(builder.sign(ca.key, hashes.SHA256()), key)


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _write(path: Path, data: bytes, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(fd, "wb") as file:
        os.fchmod(fd, mode)
        file.write(data)


def write_all(home: Path, node: str, names: tuple[str, ...] = ()) -> Files:
    """A CA, the agent's certificate and a client's, as files in `home`; the CA's key is dropped."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    ca = make_ca(f"faultctl lab {node}")
    server = issue(ca, node, server=True, names=("localhost", "127.0.0.1", node, *names))
    client = issue(ca, f"{node} client", server=False)
    files = Files(
        *(home / f"{n}.pem" for n in ("ca", "server", "server-key", "client", "client-key"))
    )
    _write(files.ca, ca.cert_pem, 0o644)
    for pair, cert, key in (
        (server, files.server_cert, files.server_key),
        (client, files.client_cert, files.client_key),
    ):
        _write(cert, pair.cert_pem, 0o644)
        _write(key, pair.key_pem, 0o600)
    return files
