"""Host names and addresses as people write them: IPv6 bare, in brackets, with a zone."""

from __future__ import annotations

import ipaddress
from typing import Annotated
from urllib.parse import quote

from pydantic import AfterValidator


def bare_host(text: str) -> str:
    """The host without brackets. Raises ValueError for what is no host.

    `::1`, `[::1]`, `fe80::1%eth0` and names are hosts; `[[::1]]`, `h:80` and `1:2` are not.
    """
    host = text.strip()
    if host.startswith("[") or host.endswith("]"):
        inner = host[1:-1] if host.startswith("[") and host.endswith("]") else ""
        if not inner or "[" in inner or "]" in inner or ":" not in inner:
            raise ValueError(f"{text!r} is not a host: one pair of brackets around an IPv6 address")
        host = inner
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(
                f"{text!r} is not a host: no IPv6 address, and a port goes into `port`"
            ) from None
    if not host or any(c.isspace() or c in "/?#@" for c in host):
        raise ValueError(f"{text!r} is not a host")
    return host


def url_host(host: str) -> str:
    """A bare host as it stands in a URL: IPv6 in one pair of brackets, its zone escaped
    (RFC 6874)."""
    if ":" not in host:
        return host
    address, _, zone = host.partition("%")
    return f"[{address}%25{quote(zone, safe='')}]" if zone else f"[{address}]"


def host_header(host: str, port: int, default_port: int) -> str:
    """The Host header: a zone never leaves the machine (RFC 6874 section 4)."""
    shown = url_host(host.partition("%")[0])
    return shown if port == default_port else f"{shown}:{port}"


Host = Annotated[str, AfterValidator(bare_host)]
