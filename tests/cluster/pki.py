"""Certificates and keys of a test cluster; everybody but the API server's kubelet client
logs in with a token, so that few are needed."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from controller.lab import certs

KUBELET_CLIENT = "kube-apiserver-kubelet-client"


@dataclass(frozen=True)
class Identity:
    """A user of the API: a name, the groups of it, and the token that it shows."""

    name: str
    groups: tuple[str, ...]
    token: str


class Pki:
    """PEM files and the token table in a folder of the cluster's own."""

    def __init__(self, home: Path, names: tuple[str, ...]) -> None:
        home.mkdir(parents=True, mode=0o700)
        self.home = home
        authority = certs.make_ca("faultctl test cluster")
        self.ca = self._write("ca.pem", authority.cert_pem)
        server = certs.issue(authority, "kube-apiserver", server=True, names=names)
        self.cert, self.key = self._pair("apiserver", server)
        client = certs.issue(authority, KUBELET_CLIENT, server=False)
        self.kubelet_cert, self.kubelet_key = self._pair("kubelet-client", client)
        accounts = ec.generate_private_key(ec.SECP256R1())
        pem = serialization.Encoding.PEM
        self.accounts = self._write(
            "accounts-key.pem",
            accounts.private_bytes(
                pem,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            ),
        )
        self.accounts_public = self._write(
            "accounts.pem",
            accounts.public_key().public_bytes(
                pem, serialization.PublicFormat.SubjectPublicKeyInfo
            ),
        )
        self.tokens = home / "tokens.csv"
        self.users: dict[str, Identity] = {}

    def _write(self, name: str, data: bytes) -> Path:
        path = self.home / name
        path.touch(mode=0o600)
        path.write_bytes(data)
        return path

    def _pair(self, name: str, pair: certs.Pair) -> tuple[Path, Path]:
        return (
            self._write(f"{name}.pem", pair.cert_pem),
            self._write(f"{name}-key.pem", pair.key_pem),
        )

    def user(self, name: str, *groups: str) -> Identity:
        """A user with a new token; only before the API server starts: it reads them once."""
        self.users[name] = Identity(name, groups, secrets.token_hex(16))
        rows = [f'{u.token},{u.name},{u.name},"{",".join(u.groups)}"' for u in self.users.values()]
        self._write("tokens.csv", ("\n".join(rows) + "\n").encode())
        return self.users[name]
