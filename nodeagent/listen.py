"""Where the agent listens: addresses and TLS files, as data."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from nodeagent.model.errors import InvalidSpec


@dataclass(frozen=True)
class TlsFiles:
    """PEM files for mutual TLS: our certificate and key, and the CA of our clients."""

    cert: Path
    key: Path
    ca: Path


def needs_tls(address: str) -> InvalidSpec:
    """The error for a TCP listener without certificates."""
    return InvalidSpec(
        f"tcp://{address} needs mutual TLS",
        "there is no listener without it, on loopback neither",
        "give --tls-cert, --tls-key and --tls-ca",
    )


def parse_listen(text: str) -> tuple[str, str]:
    """`unix:///path` or `tcp://host:port` as (scheme, gRPC address). Raises InvalidSpec."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in ("unix", "tcp"):
        raise InvalidSpec(f"--listen {text!r} is not an address", "unix:///PATH or tcp://HOST:PORT")
    if scheme == "unix":
        if not rest.startswith("/") or len(rest) > 100:
            raise InvalidSpec(f"--listen {text!r}", "an absolute path of at most 100 characters")
        return scheme, rest
    host, separator, port = rest.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    try:
        address = ipaddress.ip_address(bare)
        valid = separator and port.isascii() and port.isdigit() and 0 < int(port) < 65536
    except ValueError:
        valid = False
    if not valid:
        raise InvalidSpec(f"--listen {text!r}", "tcp:// takes an IP address and a port")
    return scheme, f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
