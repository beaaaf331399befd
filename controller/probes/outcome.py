"""What a measurement comes to, and reasons in words that tell causes apart."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from controller.records import Verdict


@dataclass(frozen=True)
class Outcome:
    """One measurement. A measured failure is fail; what could not be measured is unknown."""

    verdict: Verdict
    reason: str = ""
    data: dict[str, Any] = field(default_factory=dict)


def passed(**data: Any) -> Outcome:
    """Explicitly healthy."""
    return Outcome("pass", "", data)


def failed(reason: str, **data: Any) -> Outcome:
    """Measured, and not healthy."""
    return Outcome("fail", reason, data)


def unknown(reason: str, **data: Any) -> Outcome:
    """Not measured."""
    return Outcome("unknown", reason, data)


def timed_out(**data: Any) -> Outcome:
    """The system did not answer in time: that is measured."""
    return Outcome("fail", "no answer within the time-out", {**data, "cause": "time-out"})


def causes(exc: BaseException) -> Iterator[BaseException]:
    """An exception, what it was raised from, and the members of groups."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [exc]
    while todo:
        one = todo.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, BaseExceptionGroup):
            todo.extend(one.exceptions)
        todo += [one.__cause__, one.__context__]


_CERTIFICATE = {
    10: ("expired", "the certificate has expired"),
    9: ("not-yet-valid", "the certificate is not valid yet"),
    18: ("unknown-ca", "unknown CA: the certificate is self-signed"),
    19: ("unknown-ca", "unknown CA: self-signed certificate in the chain"),
    20: ("unknown-ca", "unknown CA: the issuer is not known here"),
    21: ("unknown-ca", "unknown CA: the certificate cannot be verified"),
    62: ("wrong-name", "the certificate is for another name"),
    64: ("wrong-name", "the certificate is for another address"),
}
"""OpenSSL's X509_V_ERR_ codes (x509_vfy.h)."""


def network_failure(exc: BaseException, **data: Any) -> Outcome | None:
    """A failure for what the network or TLS did; None if that is not what it was."""
    chain = list(causes(exc))
    for one in chain:
        if isinstance(one, ssl.SSLCertVerificationError):
            cause, text = _CERTIFICATE.get(one.verify_code, ("certificate", one.verify_message))
            return failed(text, **data, cause=cause)
    for one in chain:
        if isinstance(one, ssl.SSLError):
            return failed(f"TLS: {one.reason or one}", **data, cause="tls")
        if isinstance(one, socket.gaierror):
            return failed(f"the name does not resolve: {one.strerror}", **data, cause="dns")
        if isinstance(one, TimeoutError) and not one.errno:
            return timed_out(**data)
    for one in chain:
        if isinstance(one, OSError) and one.errno:
            name = errno.errorcode.get(one.errno, str(one.errno))
            text = one.strerror or str(one)
            return failed(f"{name}: {text}", **data, cause=_CAUSES.get(name, name))
    return None


_CAUSES = {
    "ECONNREFUSED": "refused",
    "ECONNRESET": "reset",
    "EPIPE": "reset",
    "ETIMEDOUT": "time-out",
    "EHOSTUNREACH": "unreachable",
    "ENETUNREACH": "unreachable",
}
